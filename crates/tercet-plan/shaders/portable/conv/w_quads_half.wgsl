// Vector loads of four adjacent 16-bit weights along k. Rows are multiples of 4 elements.
// uses matmul/floats.wgsl: A_TYPE, pair_of

@group(0) @binding(2) var<storage, read> w_data: array<vec2<u32>>;

fn w_quad(at: u32, left: u32) -> vec4<f32> {
    if left == 0u {
        return vec4<f32>();
    }
    let words = w_data[at / 4u];
    return vec4<f32>(pair_of(words.x, A_TYPE), pair_of(words.y, A_TYPE));
}
