// Weights of `grouped_matmul.wgsl` as quantized blocks along k, with `w_row` bytes from one column
// to the next. A thread dequantizes 4 adjacent elements along k of a column. Shared memory stores
// the dequantized weights as scalars: 4 threads fill each vector that is read later.
// uses grouped_matmul.wgsl: COUNT, QUADS, STEP, TILE, p

@group(0) @binding(2) var<storage, read> w: array<u32>;

var<workgroup> w_tile: array<f32, STEP * TILE>;

fn packed_word(i: u32) -> u32 {
    return w[i];
}

fn row_blocks() -> u32 {
    return p.k / BLOCK_LEN;
}

fn fill_w(key: u32, k_first: u32, col_first: u32, local: u32) {
    for (var i = local; i < STEP * QUADS; i += COUNT) {
        let down = i % 4u * 4u;
        let across = i / 4u;
        let k = k_first + down;
        let col = col_first + across;
        var four = vec4<f32>();
        if k < p.k && col < p.n {
            let block = Block(p.w_offset + key * p.w_matrix + col * p.w_row, k / BLOCK_LEN);
            four = weights(block, k % BLOCK_LEN);
        }
        let at = down * TILE + across;
        w_tile[at] = four.x;
        w_tile[at + TILE] = four.y;
        w_tile[at + 2u * TILE] = four.z;
        w_tile[at + 3u * TILE] = four.w;
    }
}

fn w_quad(k: u32, quad: u32) -> vec4<f32> {
    let at = k * TILE + quad * 4u;
    return vec4<f32>(w_tile[at], w_tile[at + 1u], w_tile[at + 2u], w_tile[at + 3u]);
}
