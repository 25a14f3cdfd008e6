// Operand b of F16 in 8-byte vectors of four.
// uses matmul/operands.wgsl: b_base, p

override B_ALONG: u32 = 0u;

@group(0) @binding(2) var<storage, read> b_quads: array<vec4<f16>>;

fn b_line(col: u32) -> u32 {
    return b_base + col * p.b_col;
}

fn b_load(line: u32, at: u32) -> vec4<f16> {
    return b_quads[(line + at) / 4u];
}
