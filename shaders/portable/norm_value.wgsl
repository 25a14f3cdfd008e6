// One element of a norm, given what is known of its row. Rows are computed times a power of two, where
// the squares of their elements would leave the range of f32.

override RMS: u32 = 0u;

struct Row {
    // The power of two.
    scale: f32,
    // The mean of scaled elements, and what was missing from it.
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
