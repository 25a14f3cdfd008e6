// Activation epilogue f of a matmul: functions that need more code than the identity.
// uses conv/conv_finish.wgsl or matmul/operands.wgsl or matmul/sum_parts.wgsl: ACTIVATION, p
// uses prelude.wgsl: fmax, fmin
// uses scalar/base.wgsl: opaque_zero
// uses scalar/erf.wgsl: f_gelu
// uses scalar/gate.wgsl: f_gelu_tanh, f_sigmoid, f_silu
// uses scalar/hyperbolic.wgsl: f_tanh
// uses scalar/softplus.wgsl: f_softplus

fn begin() {
    opaque_zero = p.zero;
}

fn activate(x: f32) -> f32 {
    switch ACTIVATION {
        case 2u: {
            return f_sigmoid(x);
        }
        case 3u: {
            return f_tanh(x);
        }
        case 4u: {
            return f_gelu(x);
        }
        case 5u: {
            return f_gelu_tanh(x);
        }
        case 6u: {
            return f_silu(x);
        }
        case 7u: {
            return f_softplus(x);
        }
        default: {
            return fmin(fmax(x, 0.0), 6.0);
        }
    }
}
