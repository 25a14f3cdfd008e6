// Sign functions, rounding to integers, and predicates of floats.

fn f_neg(x: f32) -> f32 {
    return negated(x);
}

fn f_abs(x: f32) -> f32 {
    return bitcast<f32>(magnitude(x));
}

fn f_sign(x: f32) -> f32 {
    return select(copy_sign(1.0, x), x, magnitude(x) == 0u || is_nan(x));
}

// max(x, 0); NaN is preserved.
fn f_relu(x: f32) -> f32 {
    return select(0.0, x, bitcast<i32>(x) > 0 || bitcast<u32>(x) > 0xff800000u);
}

// min(max(x, 0), 6); NaN is preserved.
fn f_relu6(x: f32) -> f32 {
    let bits = bitcast<i32>(x);
    return select(f_relu(x), 6.0, bits > 0x40c00000 && bits <= 0x7f800000);
}

// x truncated toward zero, with the sign of x.
fn towards_zero(x: f32) -> f32 {
    let size = magnitude(x);
    let e = size >> 23u;
    if (e >= 150u) {
        return x;
    }
    let keep = select(0x80000000u, ~(0x7fffffu >> (min(max(e, 127u), 149u) - 127u)), e >= 127u);
    return bitcast<f32>(bitcast<u32>(x) & keep);
}

fn f_trunc(x: f32) -> f32 {
    return towards_zero(x);
}

fn f_floor(x: f32) -> f32 {
    let whole = towards_zero(x);
    let below = bitcast<u32>(x) >= 0x80000000u && bitcast<u32>(whole) != bitcast<u32>(x);
    return select(whole, whole - 1.0, below);
}

fn f_ceil(x: f32) -> f32 {
    let whole = towards_zero(x);
    let above = bitcast<u32>(x) < 0x80000000u && bitcast<u32>(whole) != bitcast<u32>(x);
    return select(whole, whole + 1.0, above);
}

fn f_round(x: f32) -> f32 {
    let size = magnitude(x);
    if (size >= 0x4b000000u) {
        return x;
    }
    let whole = towards_zero(as_float(size));
    let rest = as_float(size) - whole;
    let up = rest > 0.5 || (rest == 0.5 && (u32(whole) & 1u) == 1u);
    return copy_sign(select(whole, whole + 1.0, up), x);
}

fn f_is_nan(x: f32) -> bool {
    return is_nan(x);
}

fn f_is_inf(x: f32) -> bool {
    return magnitude(x) == 0x7f800000u;
}

fn f_clamp(x: f32, low: f32, high: f32) -> f32 {
    return fmin(fmax(x, low), high);
}
