// Conversions between floats and integers.

// x truncated and saturated to the integer range; NaN gives 0.
fn i_from_f(x: f32) -> i32 {
    if (is_nan(x)) {
        return 0;
    }
    if (x >= 2147483648.0) {
        return 0x7fffffff;
    }
    if (x <= -2147483648.0) {
        return bitcast<i32>(0x80000000u);
    }
    return i32(x);
}

fn u_from_f(x: f32) -> u32 {
    if (is_nan(x) || x <= 0.0) {
        return 0u;
    }
    if (x >= 4294967296.0) {
        return 0xffffffffu;
    }
    return u32(x);
}

fn i8_from_f(x: f32) -> i32 {
    return clamp(i_from_f(x), -128, 127);
}

fn u8_from_f(x: f32) -> u32 {
    return min(u_from_f(x), 255u);
}

// The nearest float, ties to even; with `odd`, rounded to odd for a second rounding to a narrower
// type.
fn f_from_size(x: u32, odd: bool) -> f32 {
    let zeros = countLeadingZeros(x);
    if (zeros >= 8u) {
        return f32(x);
    }
    let out = 8u - zeros;
    let below = x & ((1u << out) - 1u);
    var digits = x >> out;
    if (odd) {
        digits |= u32(below != 0u);
    } else {
        let half = 1u << (out - 1u);
        digits += u32(below > half || (below == half && (digits & 1u) == 1u));
    }
    return f32(digits) * f32(1u << out);
}

fn f_from_u(x: u32, dtype: u32) -> f32 {
    return f_from_size(x, dtype != F32);
}

fn f_from_i(x: i32, dtype: u32) -> f32 {
    let size = f_from_size(select(bitcast<u32>(x), 0u - bitcast<u32>(x), x < 0), dtype != F32);
    return select(size, -size, x < 0);
}

fn b_from_f(x: f32) -> bool {
    return magnitude(x) != 0u;
}
