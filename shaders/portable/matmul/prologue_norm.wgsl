// Where NORMED is 1, the one row of a is x / sqrt(mean(x^2) + eps) * gain: its elements are taken times
// their gains, their squares are summed by the way, and what the row is divided by comes in at the end.
// Where the squares leave the range in which sums keep that exact, the row is taken again, times a power
// of two.
//
// The code that includes this has squares_of(unit): the sum of the squares of the row that a unit took, of
// SQUARE_UNITS of them; and memory, of which element TOTAL_AT has a fourth float that nobody else looks at, and
// SHARES_AT on has room for one of each invocation.

override NORMED: u32 = 0u;

// Means of squares that need no power of two.
const LEAST_MEAN: f32 = 1e-24;
const MOST_MEAN: f32 = 1e24;

// The power of two, the sum of the squares of what this invocation took, and 1 / sqrt(mean + eps).
var<private> row_scale: f32 = 1.0;
var<private> row_squares: f32 = 0.0;
var<private> row_factor: f32 = 1.0;

// Four elements from k on.
fn prepared(x: vec4<f32>, k: u32) -> vec4<f32> {
    if NORMED == 0u {
        return x;
    }
    let scaled = x * row_scale;
    row_squares += dot(scaled, scaled);
    return scaled * gain_four(k);
}

fn own_squares() -> f32 {
    return row_squares;
}

// The greatest magnitude of the row, for every invocation.
fn greatest(local: u32) -> f32 {
    var size = 0u;
    for (var k = local; k < p.k; k += INVOCATIONS) {
        size = max(size, magnitude(a_at(0u, k)));
    }
    memory[SHARES_AT + local].x = as_float(size);
    workgroupBarrier();
    // As many as have any; compilers must not write this out, for it is rare.
    for (var other = 0u; other < min(p.k, INVOCATIONS); other += 1u) {
        size = max(size, magnitude(memory[SHARES_AT + other].x));
    }
    workgroupBarrier();
    return as_float(size);
}

// With the sums of the first columns, and so of all squares, at hand: true if they are good; else the row
// must be taken again, after which they are.
fn settle(local: u32, again: bool) -> bool {
    if NORMED == 0u {
        return true;
    }
    if local == 0u {
        var sum = 0.0;
        for (var unit = 0u; unit < SQUARE_UNITS; unit += 1u) {
            sum += squares_of(unit);
        }
        memory[TOTAL_AT].w = sum;
    }
    let mean = workgroupUniformLoad(&memory[TOTAL_AT]).w / f32(p.k);
    if again || (mean >= LEAST_MEAN && mean <= MOST_MEAN) {
        row_factor = inverseSqrt(mean + scaled_eps(p.eps, row_scale));
        return true;
    }
    row_scale = scale_for(greatest(local));
    row_squares = 0.0;
    return false;
}

fn settled(sum: f32) -> f32 {
    return sum * row_factor;
}
