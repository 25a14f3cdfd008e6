// One row with its sums in shared memory: memory holds, from SHARES_AT on, a line of SHARE_QUADS vectors for each
// column and each unit of squares, in it a sum for each slice. Joins them and stores the results.
//
// Another piece says SLICES, COLUMNS, SQUARE_UNITS, INVOCATIONS and GATED, and columns(), the results of the row.

const JOINED: u32 = 8u;
const SLICE_QUADS: u32 = SLICES / 4u;

// What is added to the results of this invocation.
var<private> added: vec2<f32>;

fn total(v: vec4<f32>) -> f32 {
    return (v.x + v.y) + (v.z + v.w);
}

// Joins the sums of the slices of a column: JOINED invocations add every JOINED-th vector of them.
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
        // Nobody else reads this one.
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

// The sum of the squares of what a team fetched of the row.
fn squares_of(unit: u32) -> f32 {
    return joined(COLUMNS + unit);
}

// Result `within` of the workgroup, one of lane `lane` of a word.
fn result_of(within: u32, lane: u32) -> f32 {
    if GATED == 1u {
        return activate(settled(joined(2u * within))) * settled(joined(2u * within + 1u));
    }
    return activate(settled(joined(within)) + added[lane]);
}

// Asks for what is added to the results early, so that nobody waits for it in the end.
fn ask_for_added(first: u32, local: u32) {
    for (var lane = 0u; BIAS == 1u && lane < lanes(Y_TYPE); lane += 1u) {
        added[lane] = bias_at(0u, min(first + local * lanes(Y_TYPE) + lane, columns() - 1u));
    }
}

// The words of the results.
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
