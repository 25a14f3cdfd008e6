// Operand b in 16-byte vectors of four F32 numbers.
// uses matmul/operands.wgsl: b_base, p

override B_ALONG: u32 = 0u;

@group(0) @binding(2) var<storage, read> b_quads: array<vec4<u32>>;

fn b_line(col: u32) -> u32 {
    return b_base + col * p.b_col;
}

fn b_quad(line: u32, at: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(b_quads[(line + at) / 4u]);
}
