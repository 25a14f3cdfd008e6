// Row operand of gemv_strips.wgsl without a norm.

fn prepare(is_first: bool, index: u32) {}

// Element k of the row; 0 beyond its end.
fn row_at(k: u32) -> f32 {
    return a_at(0u, k);
}
