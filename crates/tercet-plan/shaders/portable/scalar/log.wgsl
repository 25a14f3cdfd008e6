// Logarithms: ln(2^k (1 + f)) with 1 + f in [sqrt(1/2), sqrt(2)). The polynomial is (ln(1 + f) - f
// + f^2 / 2) / f^3, with an error below 2^-32 of the result.
// uses prelude.wgsl: as_float, is_nan, magnitude, nan
// uses scalar/base.wgsl: copy_sign, exact, head, parts, quotient, scaled, trim

struct Log {
    f: f32,
    k: f32,
}

// Decomposes a positive finite x to 2^k (1 + f).
fn log_parts(x: f32) -> Log {
    let p = parts(x);
    let upper = p.a > 1.41421354;
    return Log(trim(select(p.a - 1.0, 0.5 * p.a - 1.0, upper)), f32(p.e) + select(0.0, 1.0, upper));
}

// ln(1 + f) - f + f^2 / 2
fn log_tail(f: f32) -> f32 {
    let p = -0.124243915 + f * (0.11036206 + f * (-0.108196102 + f * (0.106320433 + f * -0.0597683229)));
    let q = 0.333333313 + f * (-0.249999672 + f * (0.200000912 + f * (-0.16669406 + f * (0.142851174 + f * p))));
    return f * f * f * q;
}

fn log_of(l: Log) -> f32 {
    let small = log_tail(l.f) - l.k * 0.000212194442;
    return l.k * 0.693359375 + (l.f - (0.5 * l.f * l.f - small));
}

// True if x is not a positive finite number.
fn log_special(x: f32) -> bool {
    return bitcast<u32>(x) - 1u >= 0x7f7fffffu;
}

fn log_limit(x: f32) -> f32 {
    if (magnitude(x) == 0u) {
        return as_float(0xff800000u);
    }
    return select(nan(), x, bitcast<u32>(x) == 0x7f800000u);
}

fn f_ln(x: f32) -> f32 {
    if (log_special(x)) {
        return log_limit(x);
    }
    return log_of(log_parts(x));
}

fn f_log2(x: f32) -> f32 {
    if (log_special(x)) {
        return log_limit(x);
    }
    let l = log_parts(x);
    let rest = log_tail(l.f) - 0.5 * l.f * l.f;
    // 1 / ln(2) as two constants; the product of the heads is exact.
    let high = head(l.f);
    let low = (l.f - high) * 1.44238281 + (l.f * 0.000312228396 + rest * 1.44269502);
    return (l.k + high * 1.44238281) + low;
}

fn f_log1p(x: f32) -> f32 {
    if (is_nan(x) || magnitude(x) < 0x33000000u || bitcast<u32>(x) == 0x7f800000u) {
        return x;
    }
    if (x <= -1.0) {
        return as_float(select(0x7fc00000u, 0xff800000u, x == -1.0));
    }
    if (x > 67108864.0) {
        return log_of(log_parts(x));
    }
    // 1 + f = 2^-k (1 + x) without rounding 1 + x.
    let k = log_parts(1.0 + x).k;
    let scale = scaled(1.0, -i32(k));
    return log_of(Log(x * scale + exact(scale - 1.0, x), k));
}

// ln(1 + 2 a / (1 - a)) / 2 with the sign of x, for a = |x|.
fn f_atanh(x: f32) -> f32 {
    let size = magnitude(x);
    if (size < 0x39000000u) {
        return x;
    }
    if (size >= 0x3f800000u) {
        return select(nan(), copy_sign(as_float(0x7f800000u), x), size == 0x3f800000u);
    }
    let a = as_float(size);
    return copy_sign(0.5 * f_log1p(quotient(2.0 * a, 1.0 - a)), x);
}
