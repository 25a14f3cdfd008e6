// Operand a of F32 in 16-byte vectors of four.

@group(0) @binding(1) var<storage, read> a_quads: array<vec4<f32>>;

fn a_load(i: u32) -> vec4<f32> {
    return a_quads[i];
}
