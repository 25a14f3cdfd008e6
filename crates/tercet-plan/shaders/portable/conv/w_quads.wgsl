// Vector loads of four adjacent F32 weights along k. Rows are multiples of 4 elements.

@group(0) @binding(2) var<storage, read> w_data: array<vec4<u32>>;

fn w_quad(at: u32, left: u32) -> vec4<f32> {
    if left == 0u {
        return vec4<f32>();
    }
    return bitcast<vec4<f32>>(w_data[at / 4u]);
}
