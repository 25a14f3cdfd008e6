// f of a product: the identity (0) or relu (1).
// uses conv/col2im.wgsl or conv/conv_finish.wgsl or matmul/operands.wgsl or matmul/sum_parts.wgsl: ACTIVATION
// uses prelude.wgsl: fmax

fn begin() {}

fn activate(x: f32) -> f32 {
    if ACTIVATION == 1u {
        return fmax(x, 0.0);
    }
    return x;
}
