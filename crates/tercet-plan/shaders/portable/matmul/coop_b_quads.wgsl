// Operand b whose vectors another fragment loads, converted to the type of staged elements.
// uses matmul/b_quads_half.wgsl or matmul/b_quads_packed.wgsl or matmul/b_quads_wide.wgsl: b_quad
// uses matmul/coop_half_16.wgsl or matmul/coop_half_8.wgsl or matmul/coop_wide_8.wgsl: Staged

fn b_load(line: u32, at: u32) -> vec4<Staged> {
    return vec4<Staged>(b_quad(line, at));
}
