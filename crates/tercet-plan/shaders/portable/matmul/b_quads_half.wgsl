// Operand b in 8-byte vectors of four 16-bit floats.
// uses matmul/floats.wgsl: pair_of
// uses matmul/operands.wgsl: b_base, p

override B_TYPE: u32 = 1u;
override B_ALONG: u32 = 0u;

@group(0) @binding(2) var<storage, read> b_quads: array<vec2<u32>>;

fn b_line(col: u32) -> u32 {
    return b_base + col * p.b_col;
}

fn b_quad(line: u32, at: u32) -> vec4<f32> {
    let words = b_quads[(line + at) / 4u];
    return vec4<f32>(pair_of(words.x, B_TYPE), pair_of(words.y, B_TYPE));
}
