// Final reduction of a one-row GEMV. From SHARES_AT on, `memory` contains SHARE_QUADS vectors per
// column and per unit of squares, with one partial sum per slice. This code adds the partial sums
// and stores the results.
//
// The including kernel defines SLICES, COLUMNS, SQUARE_UNITS, INVOCATIONS, GATED and columns(), the
// number of results of the row.

const JOINED: u32 = 8u;
const SLICE_QUADS: u32 = SLICES / 4u;

// Bias values for the results of this thread.
var<private> added: vec2<f32>;

fn total(v: vec4<f32>) -> f32 {
    return (v.x + v.y) + (v.z + v.w);
}

// Reduces the slices of a column: each of JOINED threads adds every JOINED-th vector.
fn join(local: u32) {
    workgroupBarrier();
    for (var i = local; i < (COLUMNS + SQUARE_UNITS) * JOINED; i += INVOCATIONS) {
        let at = SHARES_AT + i / JOINED * SHARE_QUADS + i % JOINED;
        var sum = vec4<f32>();
        for (var other = 0u; other < SLICE_QUADS; other += JOINED) {
            if other + JOINED <= SLICE_QUADS || other + i % JOINED < SLICE_QUADS {
                sum += memory[at + other];
            }
        }
        // No other thread reads this element.
        memory[at].x = total(sum);
    }
    workgroupBarrier();
}

fn joined(place: u32) -> f32 {
    let at = SHARES_AT + place * SHARE_QUADS;
    var sum = 0.0;
    for (var i = 0u; i < JOINED; i += 1u) {
        sum += memory[at + i].x;
    }
    return sum;
}

// Sum of the squares of the row elements that a thread group loaded.
fn squares_of(unit: u32) -> f32 {
    return joined(COLUMNS + unit);
}

// Result `within` of the workgroup, which is lane `lane` of a word.
fn result_of(within: u32, lane: u32) -> f32 {
    if GATED == 1u {
        return activate(settled(joined(2u * within))) * settled(joined(2u * within + 1u));
    }
    return activate(settled(joined(within)) + added[lane]);
}

// Prefetches the bias, so that the final store does not wait for it.
fn ask_for_added(first: u32, local: u32) {
    for (var lane = 0u; BIAS == 1u && lane < lanes(Y_TYPE); lane += 1u) {
        added[lane] = bias_at(0u, min(first + local * lanes(Y_TYPE) + lane, columns() - 1u));
    }
}

// Stores the words of the results.
fn store(first: u32, local: u32) {
    let within = local * lanes(Y_TYPE);
    var word = 0u;
    var some = false;
    for (var lane = 0u; lane < lanes(Y_TYPE); lane += 1u) {
        if within + lane < COLUMNS / (1u + GATED) && first + within + lane < columns() {
            word |= float_bits(result_of(within + lane, lane), Y_TYPE) << (16u * lane);
            some = true;
        }
    }
    if some {
        y_data[word_of(y_base + first + within, Y_TYPE)] = word;
    }
}
