// Functions of F16 whose results are rounded to F16: within 2^-10 of them, which is half of the tolerance. Beyond
// their limits a result is x or zero to the last bit of an F16.

// 1 / (1 + e^-z) for |z| <= 60, times x.
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
    // 32
    if (magnitude(x) > 0x42000000u) {
        return n_limit(x);
    }
    return n_gated(x, x);
}

fn n_gelu_tanh(x: f32) -> f32 {
    // 8
    if (magnitude(x) > 0x41000000u) {
        return n_limit(x);
    }
    return n_gated(x, clamp(x * (1.59576912 + 0.0713548163 * x * x), -60.0, 60.0));
}

// x Phi(x), by the tail that erfc gives (Abramowitz and Stegun, 7.1.26), so that no difference cancels.
fn n_gelu(x: f32) -> f32 {
    // 8
    if (magnitude(x) > 0x41000000u) {
        return n_limit(x);
    }
    let a = as_float(magnitude(x));
    let t = 1.0 / (1.0 + 0.231641889 * a);
    let p = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
    let tail = 0.5 * a * p * exp(-0.5 * a * a);
    return select(x - tail, -tail, x < 0.0);
}

// x, or -0 where x is far below 0; NaN stays.
fn n_limit(x: f32) -> f32 {
    return select(x, bitcast<f32>(0x80000000u), x < -1.0);
}
