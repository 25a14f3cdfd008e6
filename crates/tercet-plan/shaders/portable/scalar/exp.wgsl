// Exponentials: e^x = 2^n (1 + q) with q = e^r - 1, r = x - n ln(2), |r| <= ln(2) / 2.
// uses prelude.wgsl: is_nan, magnitude
// uses scalar/base.wgsl: exact, scaled

struct Power {
    q: f32,
    n: i32,
}

// e^r - 1 - r. The polynomial is (e^r - 1 - r) / r^2, with an error below 2^-34.
fn exp_tail(r: f32) -> f32 {
    let p = 0.00833327183 + r * (0.00139465361 + r * 0.000199145463);
    return r * r * (0.5 + r * (0.166666672 + r * (0.0416662618 + r * p)));
}

// e^(x + low) for |x| < 400 and a small `low`.
fn power(x: f32, low: f32) -> Power {
    let n = round(x * 1.44269502);
    // ln(2) as two constants. The first has 9 bits, so its product with n is exact.
    let r = (x - n * 0.693359375) + (low + n * 0.000212194442);
    return Power(r + exp_tail(r), i32(n));
}

fn f_exp(x: f32) -> f32 {
    if (is_nan(x)) {
        return x;
    }
    let p = power(clamp(x, -110.0, 110.0), 0.0);
    return scaled(1.0 + p.q, p.n);
}

fn f_exp2(x: f32) -> f32 {
    if (is_nan(x)) {
        return x;
    }
    let y = clamp(x, -200.0, 200.0);
    let n = round(y);
    let r = (y - n) * 0.693147182;
    return scaled(1.0 + (r + exp_tail(r)), i32(n));
}

fn f_expm1(x: f32) -> f32 {
    if (is_nan(x) || magnitude(x) < 0x33000000u) {
        return x;
    }
    let y = clamp(x, -30.0, 110.0);
    let n = round(y * 1.44269502);
    if (n > 30.0) {
        return f_exp(x);
    }
    // 2^n (1 + high + low + tail) - 1, adding the exact terms first.
    let high = y - n * 0.693359375;
    let low = n * 0.000212194442;
    let tail = exp_tail(high + low);
    let scale = scaled(1.0, i32(n));
    return (exact(scale - 1.0, y) + scale * high) + scale * (low + tail);
}
