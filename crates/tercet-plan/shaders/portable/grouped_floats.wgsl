// Weights of `grouped_matmul.wgsl` as floats with arbitrary strides.
// uses grouped_matmul.wgsl: COUNT, DTYPE, QUADS, STEP, p
// uses prelude.wgsl: float_of, lane_of, word_of

@group(0) @binding(2) var<storage, read> w: array<u32>;

var<workgroup> w_tile: array<vec4<f32>, STEP * QUADS>;

fn w_at(key: u32, k: u32, col: u32) -> f32 {
    if k >= p.k || col >= p.n {
        return 0.0;
    }
    let at = p.w_offset + key * p.w_matrix + k * p.w_row + col * p.w_col;
    return float_of(w[word_of(at, DTYPE)], lane_of(at, DTYPE), DTYPE);
}

fn fill_w(key: u32, k_first: u32, col_first: u32, local: u32) {
    for (var i = local; i < STEP * QUADS; i += COUNT) {
        let k = k_first + i / QUADS;
        let col = col_first + i % QUADS * 4u;
        w_tile[i] = vec4<f32>(w_at(key, k, col), w_at(key, k, col + 1u), w_at(key, k, col + 2u), w_at(key, k, col + 3u));
    }
}

fn w_quad(k: u32, quad: u32) -> vec4<f32> {
    return w_tile[k * QUADS + quad];
}
