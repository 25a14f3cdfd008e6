// Tile loads of a float operand b.
// uses matmul/b_words.wgsl: b_data
// uses matmul/gemm.wgsl: COUNT, QUADS, STEP, b_tile, place
// uses prelude.wgsl: word_of

override B_TYPE: u32 = 0u;
override B_ALONG: u32 = 0u;

fn b_at(k: u32, col: u32) -> f32 {
    let inside = col < p.n && k < p.k;
    let at = select(0u, b_base + k * p.b_row + col * p.b_col, inside);
    return select(0.0, element_of(b_data[word_of(at, B_TYPE)], at, B_TYPE), inside);
}

fn load_b(first: u32, k_first: u32, local: u32) {
    for (var i = local; i < STEP * QUADS; i += COUNT) {
        var k = i % STEP;
        var quad = i / STEP;
        if B_ALONG == 1u {
            k = i / QUADS;
            quad = i % QUADS;
        }
        let col = first + quad * 4u;
        let at = k_first + k;
        b_tile[place(k, quad)] = vec4<f32>(b_at(at, col), b_at(at, col + 1u), b_at(at, col + 2u), b_at(at, col + 3u));
    }
}
