// Epilogue of a float matmul: bias and activation before the store.
// uses conv/col2im.wgsl or conv/conv_finish.wgsl or matmul/operands.wgsl or matmul/sum_parts.wgsl: BIAS, bias_data
// uses conv/conv_finish.wgsl or conv/windows.wgsl or matmul/operands.wgsl or matmul/sum_parts.wgsl: p
// uses matmul/activated.wgsl or matmul/plain.wgsl: activate
// uses prelude.wgsl: F16, F32, word_of

override A_TYPE: u32 = 0u;
override Y_TYPE: u32 = 0u;

fn pair_of(word: u32, dtype: u32) -> vec2<f32> {
    if dtype == F16 {
        return unpack2x16float(word);
    }
    return vec2<f32>(bitcast<f32>(word << 16u), bitcast<f32>(word & 0xffff0000u));
}

fn element_of(word: u32, at: u32, dtype: u32) -> f32 {
    if dtype == F32 {
        return bitcast<f32>(word);
    }
    let pair = pair_of(word, dtype);
    return select(pair.x, pair.y, (at & 1u) == 1u);
}

// Bias of row i < m and column j < n.
fn bias_at(i: u32, j: u32) -> f32 {
    let at = p.bias_offset + i * p.bias_row + j * p.bias_stride;
    return element_of(bias_data[word_of(at, A_TYPE)], at, A_TYPE);
}

// Result of the sum of row i < m and column j < n.
fn finish(sum: f32, i: u32, j: u32) -> f32 {
    var value = sum;
    if BIAS == 1u {
        value += bias_at(i, j);
    }
    return activate(value);
}
