// Operand a of F16 in 8-byte vectors of four.

@group(0) @binding(1) var<storage, read> a_quads: array<vec4<f16>>;

fn a_load(i: u32) -> vec4<f16> {
    return a_quads[i];
}
