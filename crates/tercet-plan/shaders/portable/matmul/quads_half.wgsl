// Operands a and y in 8-byte vectors of four 16-bit floats.
// uses matmul/floats.wgsl: A_TYPE, Y_TYPE, pair_of
// uses prelude.wgsl: float_bits

@group(0) @binding(1) var<storage, read> a_quads: array<vec2<u32>>;
@group(0) @binding(4) var<storage, read_write> y_quads: array<vec2<u32>>;

fn a_quad(i: u32) -> vec4<f32> {
    let words = a_quads[i];
    return vec4<f32>(pair_of(words.x, A_TYPE), pair_of(words.y, A_TYPE));
}

fn store_quad(i: u32, x: vec4<f32>) {
    y_quads[i] = vec2<u32>(
        float_bits(x.x, Y_TYPE) | (float_bits(x.y, Y_TYPE) << 16u),
        float_bits(x.z, Y_TYPE) | (float_bits(x.w, Y_TYPE) << 16u),
    );
}
