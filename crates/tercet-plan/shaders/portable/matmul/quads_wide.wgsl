// Operands a and y in 16-byte vectors of four F32 numbers.

@group(0) @binding(1) var<storage, read> a_quads: array<vec4<u32>>;
@group(0) @binding(4) var<storage, read_write> y_quads: array<vec4<u32>>;

fn a_quad(i: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(a_quads[i]);
}

fn store_quad(i: u32, x: vec4<f32>) {
    y_quads[i] = bitcast<vec4<u32>>(x);
}
