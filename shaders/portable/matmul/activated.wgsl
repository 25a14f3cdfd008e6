// f of a product: functions that take more code than the identity.

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
        default: {
            return f_softplus(x);
        }
    }
}
