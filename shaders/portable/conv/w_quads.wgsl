// Four neighbours along k of f32 weights whose rows are whole quads.

@group(0) @binding(2) var<storage, read> w_data: array<vec4<u32>>;

fn w_quad(at: u32, left: u32) -> vec4<f32> {
    if left == 0u {
        return vec4<f32>();
    }
    return bitcast<vec4<f32>>(w_data[at / 4u]);
}
