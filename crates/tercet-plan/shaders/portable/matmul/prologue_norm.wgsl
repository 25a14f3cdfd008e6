// Fused RMSNorm prologue of a GEMV. With NORMED = 1, the row of a is x / sqrt(mean(x^2) + eps) *
// gain. Elements of the row are multiplied by their gains at load, and their squares are summed.
// The division by the root is applied to the results of the GEMV. If the squares overflow or
// underflow F32, the row is processed again, scaled by a power of two.
//
// The including shader defines squares_of(unit): the sum of squares of the elements that a unit
// loaded, one of SQUARE_UNITS. The including shader also defines `memory`: the fourth float of
// element TOTAL_AT is unused, and from SHARES_AT there is one element per thread.

override NORMED: u32 = 0u;

// If the mean square of the row is between these limits, the row needs no rescaling.
const LEAST_MEAN: f32 = 1e-24;
const MOST_MEAN: f32 = 1e24;

// The power-of-two scale, this thread's sum of squares, and 1 / sqrt(mean + eps).
var<private> row_scale: f32 = 1.0;
var<private> row_squares: f32 = 0.0;
var<private> row_factor: f32 = 1.0;

// Scales and sums four elements from k on.
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

// Largest magnitude of the row; every thread receives it.
fn greatest(local: u32) -> f32 {
    var size = 0u;
    for (var k = local; k < p.k; k += INVOCATIONS) {
        size = max(size, magnitude(a_at(0u, k)));
    }
    memory[SHARES_AT + local].x = as_float(size);
    workgroupBarrier();
    // The runtime trip count prevents unrolling of this rarely executed loop.
    for (var other = 0u; other < min(p.k, INVOCATIONS); other += 1u) {
        size = max(size, magnitude(memory[SHARES_AT + other].x));
    }
    workgroupBarrier();
    return as_float(size);
}

// Checks the sum of squares after the first columns. Returns false if the row must be processed
// again with a rescaling factor. The second pass always returns true.
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
