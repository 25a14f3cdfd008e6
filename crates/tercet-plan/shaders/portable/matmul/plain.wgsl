// Basic epilogue f of a matmul: identity (0), ReLU (1) or ReLU6 (8).
// uses conv/col2im.wgsl or conv/conv_finish.wgsl or matmul/operands.wgsl or matmul/sum_parts.wgsl: ACTIVATION
// uses prelude.wgsl: fmax, fmin

fn begin() {}

fn activate(x: f32) -> f32 {
    if ACTIVATION == 1u {
        return fmax(x, 0.0);
    }
    if ACTIVATION == 8u {
        return fmin(fmax(x, 0.0), 6.0);
    }
    return x;
}
