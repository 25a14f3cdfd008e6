// Tile loads of a quantized operand b, whose columns are rows of blocks. A thread dequantizes 4
// adjacent elements along k of 4 columns. k is a multiple of the block length; `b_col` is in bytes.
// uses matmul/b_words.wgsl: b_data
// uses matmul/gemm.wgsl: COUNT, TILE, b_tile, place

fn packed_word(i: u32) -> u32 {
    return b_data[i];
}

fn row_blocks() -> u32 {
    return p.k / BLOCK_LEN;
}

fn four_weights(col: u32, k: u32) -> vec4<f32> {
    if col >= p.n || k >= p.k {
        return vec4<f32>();
    }
    let block = Block(b_base + col * p.b_col, k / BLOCK_LEN);
    return weights(block, k % BLOCK_LEN);
}

fn load_b(first: u32, k_first: u32, local: u32) {
    for (var i = local; i < TILE; i += COUNT) {
        let k = (i % 4u) * 4u;
        let quad = i / 4u;
        let col = first + quad * 4u;
        let at = k_first + k;
        let c0 = four_weights(col, at);
        let c1 = four_weights(col + 1u, at);
        let c2 = four_weights(col + 2u, at);
        let c3 = four_weights(col + 3u, at);
        b_tile[place(k, quad)] = vec4<f32>(c0.x, c1.x, c2.x, c3.x);
        b_tile[place(k + 1u, quad)] = vec4<f32>(c0.y, c1.y, c2.y, c3.y);
        b_tile[place(k + 2u, quad)] = vec4<f32>(c0.z, c1.z, c2.z, c3.z);
        b_tile[place(k + 3u, quad)] = vec4<f32>(c0.w, c1.w, c2.w, c3.w);
    }
}
