// One element of a norm, computed from the row statistics. Rows are scaled by a power of two if
// squares of their elements would overflow or underflow F32.

override RMS: u32 = 0u;

struct Row {
    // The power of two that scales the row.
    scale: f32,
    // Mean of the scaled elements, and the correction to add to it.
    mean: f32,
    rest: f32,
    // 1 / sqrt(variance + eps), of scaled elements.
    factor: f32,
}

fn normalized(x: f32, row: Row) -> f32 {
    if RMS == 1u {
        return x * row.scale * row.factor;
    }
    return ((x * row.scale - row.mean) - row.rest) * row.factor;
}
