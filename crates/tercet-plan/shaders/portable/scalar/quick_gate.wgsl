// Fast exponential, sigmoid, SiLU and tanh without branches. These functions set `doubt` if the
// result may be wrong.

// e^x = scale (1 + q) for |x| <= 80.
struct QuickPower {
    q: f32,
    scale: f32,
}

fn quick_power(x: f32) -> QuickPower {
    // The last bits of `count` are the exponent.
    let count = rounded(x * 1.44269502 + 12582912.0);
    let n = count - 12582912.0;
    let r = rounded(n * -0.693359375 + x) + n * 0.000212194442;
    return QuickPower(r + exp_tail(r), bitcast<f32>((bitcast<u32>(count) << 23u) + 0x3f800000u));
}

// above / below with one correction step, even if the device's division is inaccurate.
fn quick_share(above: f32, below: f32) -> f32 {
    let inverse = 1.0 / below;
    let share = above * inverse;
    return share + inverse * (above - share * below);
}

// True for zero and for magnitudes from 2^-100 to `most`.
fn is_common(size: u32, most: u32) -> bool {
    return (size == 0u) | (size - 0x0d800000u <= most - 0x0d800000u);
}

// x / (1 + e^-z) for |z| <= 80.
fn quick_gated(x: f32, z: f32) -> f32 {
    let p = quick_power(-as_float(magnitude(z)));
    let y = x * p.scale;
    let above = select(x, y + y * p.q, z < 0.0);
    return quick_share(above, 1.0 + (p.scale + p.scale * p.q));
}

fn q_sigmoid(x: f32) -> f32 {
    doubt = doubt | !is_common(magnitude(x), 0x42a00000u);
    return quick_gated(1.0, x);
}

fn q_silu(x: f32) -> f32 {
    doubt = doubt | !is_common(magnitude(x), 0x42a00000u);
    return quick_gated(x, x);
}

fn q_gelu_tanh(x: f32) -> f32 {
    let size = magnitude(x);
    doubt = doubt | (!is_near(size) & (size != 0u));
    return gelu_tanh_near(x);
}

fn q_tanh(x: f32) -> f32 {
    doubt = doubt | !is_common(magnitude(x), 0x7f800000u);
    // (1 - t) / (1 + t) with t = e^-2a. The numerator preserves its relative accuracy for t near 1.
    let p = quick_power(-2.0 * min(as_float(magnitude(x)), 40.0));
    let above = rounded(1.0 - p.scale) - p.scale * p.q;
    return copy_sign(quick_share(above, (1.0 + p.scale) + p.scale * p.q), x);
}

fn q_exp(x: f32) -> f32 {
    doubt = doubt | (magnitude(x) > 0x42a00000u);
    let p = quick_power(x);
    return (1.0 + p.q) * p.scale;
}
