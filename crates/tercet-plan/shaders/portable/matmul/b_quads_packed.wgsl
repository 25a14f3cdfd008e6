// Operand b in vectors of four dequantized weights. A column is a row of blocks, with `b_col` bytes
// from column to column. k is a multiple of the block length.
// uses matmul/b_words.wgsl: b_data
// uses matmul/operands.wgsl: b_base, p

const B_ALONG: u32 = 0u;

fn packed_word(i: u32) -> u32 {
    return b_data[i];
}

fn row_blocks() -> u32 {
    return p.k / BLOCK_LEN;
}

fn b_line(col: u32) -> u32 {
    return b_base + col * p.b_col;
}

fn b_quad(line: u32, at: u32) -> vec4<f32> {
    return weights(Block(line, at / BLOCK_LEN), at % BLOCK_LEN);
}
