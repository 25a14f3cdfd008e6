// Scalar loads of four adjacent weights along k, at any alignment.
// uses matmul/floats.wgsl: A_TYPE, element_of
// uses prelude.wgsl: word_of

@group(0) @binding(2) var<storage, read> w_data: array<u32>;

fn w_at(at: u32, left: u32) -> f32 {
    let i = select(0u, at, left > 0u);
    return select(0.0, element_of(w_data[word_of(i, A_TYPE)], i, A_TYPE), left > 0u);
}

// Loads four weights from `at`, of which at least `left` belong to the row.
fn w_quad(at: u32, left: u32) -> vec4<f32> {
    return vec4<f32>(
        w_at(at, left),
        w_at(at + 1u, max(left, 1u) - 1u),
        w_at(at + 2u, max(left, 2u) - 2u),
        w_at(at + 3u, max(left, 3u) - 3u),
    );
}
