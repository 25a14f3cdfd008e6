// F16 functions with F32 arithmetic. Errors are below 2^-10 of the result, half of the tolerance.
// For arguments beyond its limits, each function returns x or zero, which is exact in F16.

fn n_exp(x: f32) -> f32 {
    // |x| > 20
    if (magnitude(x) > 0x41a00000u) {
        return select(x * 1e30, 0.0, x < -1.0);
    }
    return exp(x);
}

fn n_tanh(x: f32) -> f32 {
    // |x| > 4.5
    if (magnitude(x) > 0x40900000u) {
        return select(sign(x), x, is_nan(x));
    }
    let z = x * x;
    let above = 0.999971975 + z * (0.103918116 + z * 0.000719543258);
    return x * above / (1.0 + z * (0.437063093 + z * 0.013290632));
}

fn n_sqrt(x: f32) -> f32 {
    // This branch handles zeros, negative numbers, infinity and NaN.
    if (bitcast<u32>(x) - 1u >= 0x7f7fffffu) {
        return select(x, nan(), x < 0.0);
    }
    return sqrt(x);
}

// x / (1 + e^-z) for |z| <= 60.
fn n_gated(x: f32, z: f32) -> f32 {
    return x / (1.0 + exp(-z));
}

fn n_sigmoid(x: f32) -> f32 {
    if (is_nan(x)) {
        return x;
    }
    return n_gated(1.0, clamp(x, -60.0, 60.0));
}

fn n_silu(x: f32) -> f32 {
    // |x| > 32
    if (magnitude(x) > 0x42000000u) {
        return n_limit(x);
    }
    return n_gated(x, x);
}

// Like `n_gelu`, with sigmoid(-2 y) instead of Phi(-a).
fn n_gelu_tanh(x: f32) -> f32 {
    // |x| > 6.5
    if (magnitude(x) > 0x40d00000u) {
        return n_limit(x);
    }
    let a = as_float(magnitude(x));
    let o = 0.0581712648 + a * (-0.0174986199 + a * (0.00505760778 + a * -0.000385758554));
    let s = 1.00016701 + a * (1.14947426 + a * (0.459816724 + a * o));
    return max(x, 0.0) - a * exp2(-s);
}

// GELU: x Phi(x) = max(x, 0) - a Phi(-a) with Phi(-a) = 2^-s and a polynomial s. This form avoids
// cancellation; the error is below 2^-13.
fn n_gelu(x: f32) -> f32 {
    // |x| > 6.5
    if (magnitude(x) > 0x40d00000u) {
        return n_limit(x);
    }
    let a = as_float(magnitude(x));
    let o = 0.0482381694 + a * (-0.00582750002 + a * 0.000320528692);
    let s = 1.00012052 + a * (1.14917707 + a * (0.464119226 + a * o));
    return max(x, 0.0) - a * exp2(-s);
}

// x, or -0 if x is far below 0; NaN is preserved.
fn n_limit(x: f32) -> f32 {
    return select(x, bitcast<f32>(0x80000000u), x < -1.0);
}
