// Exponentials, sigmoids and products with them without branches, right or else in doubt.

// e^(x + low) = scale (1 + q) for |x| <= 80 and a small low.
struct QuickPower {
    q: f32,
    scale: f32,
}

fn quick_power(x: f32, low: f32) -> QuickPower {
    // The last bits of `count` are the exponent.
    let count = rounded(x * 1.44269502 + 12582912.0);
    let n = count - 12582912.0;
    let r = rounded(n * -0.693359375 + x) + (n * 0.000212194442 + low);
    return QuickPower(r + exp_tail(r), bitcast<f32>((bitcast<u32>(count) << 23u) + 0x3f800000u));
}

// The sum of a number and a smaller one as (high, low).
fn quick_sum(a: f32, b: f32) -> vec2<f32> {
    let high = rounded(a + b);
    return vec2<f32>(high, rounded(a - high) + b);
}

// x (above.x + above.y) / (1 + t) with t = scale (1 + q), however roughly the device divides.
fn quick_share(x: f32, above: vec2<f32>, e: vec2<f32>, scale: f32) -> f32 {
    var below = quick_sum(1.0, e.x * scale);
    below.y += e.y * scale;
    let inverse = 1.0 / below.x;
    let share = above.x * inverse;
    let left = (above.x - below.x * share) + (above.y - below.y * share);
    return x * share + (x * left) * inverse;
}

// True for a size from 2^-100 to `most`, and zero.
fn is_common(size: u32, most: u32) -> bool {
    return (size == 0u) | (size - 0x0d800000u <= most - 0x0d800000u);
}

// x / (1 + e^-(z + low)) for z of the sign of x, |z| <= 80.
fn quick_gated(x: f32, z: f32, low: f32) -> f32 {
    let p = quick_power(-as_float(magnitude(z)), select(-low, low, z < 0.0));
    let e = quick_sum(1.0, p.q);
    let above = select(vec2<f32>(1.0, 0.0), e, z < 0.0);
    return quick_share(x, above, e, p.scale) * select(1.0, p.scale, z < 0.0);
}

fn q_sigmoid(x: f32) -> f32 {
    doubt = doubt | !is_common(magnitude(x), 0x42a00000u);
    return quick_gated(1.0, x, 0.0);
}

fn q_silu(x: f32) -> f32 {
    doubt = doubt | !is_common(magnitude(x), 0x42a00000u);
    return copy_sign(quick_gated(x, x, 0.0), x);
}

fn q_gelu_tanh(x: f32) -> f32 {
    // 9.5
    doubt = doubt | !is_common(magnitude(x), 0x41180000u);
    let z = gelu_tanh_gate(x);
    return copy_sign(quick_gated(x, z.x, z.y), x);
}

fn q_tanh(x: f32) -> f32 {
    doubt = doubt | !is_common(magnitude(x), 0x7f800000u);
    // (1 - t) / (1 + t) with t = e^-2a; the upper one keeps its relative accuracy where t is next to 1.
    let p = quick_power(-2.0 * min(as_float(magnitude(x)), 40.0), 0.0);
    let above = quick_sum(1.0 - p.scale, -(p.scale * p.q));
    return copy_sign(quick_share(1.0, above, quick_sum(1.0, p.q), p.scale), x);
}

fn q_exp(x: f32) -> f32 {
    doubt = doubt | (magnitude(x) > 0x42a00000u);
    let p = quick_power(x, 0.0);
    return (1.0 + p.q) * p.scale;
}
