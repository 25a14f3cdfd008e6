// Offsets of the rows of a strided operand. The including kernel's block p contains sizes and
// strides of the row axes (at least one, outermost first), their count `kept`, and an offset.
// uses arg_extreme_key.wgsl or channel_norm_stats.wgsl or cumsum.wgsl or cumsum_vectors.wgsl or fft_load.wgsl or reduce.wgsl or softmax.wgsl or softmax_apply.wgsl or softmax_vectors.wgsl: p

// First element of a row. Strides may be negative: the sum wraps modulo 2^32.
fn row_start(row: u32) -> u32 {
    var rest = row;
    var at = p.offset;
    for (var k = p.kept; k > 1u; k -= 1u) {
        let axis = k - 1u;
        let size = p.sizes[axis / 4u][axis % 4u];
        at += (rest % size) * p.strides[axis / 4u][axis % 4u];
        rest /= size;
    }
    return at + rest * p.strides[0].x;
}
