// pow: e^(b ln(a)) with a double-float logarithm.

// ln(a) as (high, low) for a positive finite a; the error is below about 2^-36.
fn pair_log(a: f32) -> vec2<f32> {
    let l = log_parts(a);
    // 2 atanh(s), s = f / (2 + f) <= 0.1716; atanh(s) = s (1 + t), t = s^2 / 3 + s^4 (1/5 + ...)
    let two = pair_sum(2.0, l.f);
    let s = pair_quotient(l.f, 0.0, two.x, two.y);
    let z = pair_product(s.x, s.x);
    let z_low = z.y + 2.0 * s.x * s.y;
    let p = 0.199999988 + z.x * (0.142859414 + z.x * (0.110922948 + z.x * 0.0973763466));
    let third = pair_product(z.x, 0.333333343);
    let t_low = (third.y + (z_low * 0.333333343 - z.x * 9.93410776e-9)) + z.x * z.x * p;
    let st = pair_product(s.x, third.x);
    let atanh = pair_sum(s.x, st.x);
    let atanh_low = atanh.y + (st.y + (s.y + (s.y * third.x + s.x * t_low)));
    let sum = pair_sum(l.k * 0.693359375, 2.0 * atanh.x);
    let rest = sum.y + (2.0 * atanh_low - l.k * 0.000212194442 + l.k * 1.64659496e-12);
    // For k = 0, `pair_sum` would receive its operands in the wrong order, but one of them is zero.
    return select(vec2<f32>(sum.x, rest), vec2<f32>(2.0 * atanh.x, 2.0 * atanh_low), l.k == 0.0);
}

// a^b for 0 < a < inf, a != 1, and a finite nonzero b.
fn positive_power(a: f32, b: f32) -> f32 {
    let l = pair_log(a);
    let size = b * l.x;
    if (magnitude(size) > 0x43000000u) {
        return select(0.0, inf(), size > 0.0);
    }
    let x = pair_product(b, l.x);
    let p = power(x.x, x.y + b * l.y);
    return scaled(1.0 + p.q, p.n);
}

// 0: b is not an integer; 1: odd integer; 2: even integer.
fn parity(b: f32) -> u32 {
    let e = i32(magnitude(b) >> 23u) - 150;
    if (e > 0) {
        return 2u;
    }
    if (e < -23) {
        return select(0u, 2u, magnitude(b) == 0u);
    }
    let digits = (bitcast<u32>(b) & 0x7fffffu) | 0x800000u;
    let out = u32(-e);
    if ((digits & ((1u << out) - 1u)) != 0u) {
        return 0u;
    }
    return select(2u, 1u, ((digits >> out) & 1u) == 1u);
}

fn f_pow(a: f32, b: f32) -> f32 {
    let a_size = magnitude(a);
    let b_size = magnitude(b);
    if (b_size == 0u || bitcast<u32>(a) == 0x3f800000u) {
        return 1.0;
    }
    if (a_size > 0x7f800000u || b_size > 0x7f800000u) {
        return nan();
    }
    let shrinks = bitcast<u32>(b) >= 0x80000000u;
    if (b_size == 0x7f800000u) {
        if (a_size == 0x3f800000u) {
            return 1.0;
        }
        return select(0.0, inf(), (a_size > 0x3f800000u) != shrinks);
    }
    let kind = parity(b);
    let negative = bitcast<u32>(a) >= 0x80000000u;
    let sign = select(0u, 0x80000000u, negative && kind == 1u);
    if (a_size == 0u || a_size == 0x7f800000u) {
        return as_float(sign | select(0u, 0x7f800000u, (a_size == 0u) == shrinks));
    }
    if (negative && kind == 0u) {
        return nan();
    }
    if (a_size == 0x3f800000u) {
        return bitcast<f32>(sign | 0x3f800000u);
    }
    return bitcast<f32>(sign | bitcast<u32>(positive_power(as_float(a_size), b)));
}
