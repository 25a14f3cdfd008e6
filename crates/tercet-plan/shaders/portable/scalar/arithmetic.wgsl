// F32 addition, multiplication and division with subnormal numbers, also on devices that flush them
// to zero. Integer implementation of fused multiply-add, because the WGSL builtin fma may round
// twice.
// uses prelude.wgsl: as_float, magnitude, nan
// uses scalar/base.wgsl: copy_sign, negated, parts, quotient, rounded, scaled
// uses scalar/floats.wgsl: NATIVE_FLOATS
// uses scalar/wide.wgsl: wide_product

// x 2^100 for |x| < 2^-100.
fn lifted(x: f32) -> f32 {
    let size = magnitude(x);
    if (size < 0x800000u) {
        return copy_sign(f32(size) * 1.7763568394002505e-15, x);
    }
    return bitcast<f32>(bitcast<u32>(x) + (100u << 23u));
}

fn f_add(a: f32, b: f32) -> f32 {
    if (!NATIVE_FLOATS && max(magnitude(a), magnitude(b)) < 0x0d000000u) {
        return scaled(lifted(a) + lifted(b), -100);
    }
    return rounded(a + b);
}

fn f_sub(a: f32, b: f32) -> f32 {
    return f_add(a, negated(b));
}

fn f_mul(a: f32, b: f32) -> f32 {
    let product = rounded(a * b);
    let a_size = magnitude(a);
    let b_size = magnitude(b);
    let small = magnitude(product) <= 0x800000u || min(a_size, b_size) < 0x800000u;
    if (!NATIVE_FLOATS && small && a_size != 0u && b_size != 0u) {
        let zero = bitcast<f32>((bitcast<u32>(a) ^ bitcast<u32>(b)) & 0x80000000u);
        return soft_fma(a, b, zero, false);
    }
    return product;
}

fn f_div(a: f32, b: f32) -> f32 {
    let sign = (bitcast<u32>(a) ^ bitcast<u32>(b)) & 0x80000000u;
    let a_size = magnitude(a);
    let b_size = magnitude(b);
    if (a_size > 0x7f800000u || b_size > 0x7f800000u) {
        return nan();
    }
    if (a_size == 0x7f800000u || b_size == 0u) {
        return as_float(select(sign | 0x7f800000u, 0x7fc00000u, a_size == b_size || (a_size == 0u && b_size == 0u)));
    }
    if (b_size == 0x7f800000u || a_size == 0u) {
        return bitcast<f32>(sign);
    }
    let x = parts(a);
    let y = parts(b);
    return scaled(quotient(x.a, y.a), x.e - y.e);
}

fn f_recip(x: f32) -> f32 {
    return f_div(1.0, x);
}

// Right shift by any count; bits shifted out are or-ed into the last bit (sticky bit). v.x is the
// high word.
fn shift_right_jam(v: vec2<u32>, count: u32) -> vec2<u32> {
    if (count == 0u) {
        return v;
    }
    if (count >= 64u) {
        return vec2<u32>(0u, u32((v.x | v.y) != 0u));
    }
    if (count >= 32u) {
        let n = count - 32u;
        let out = v.y | (v.x & ((1u << n) - 1u));
        return vec2<u32>(0u, (v.x >> n) | u32(out != 0u));
    }
    let out = v.y & ((1u << count) - 1u);
    return vec2<u32>(v.x >> count, (v.y >> count) | (v.x << (32u - count)) | u32(out != 0u));
}

fn shift_left64(v: vec2<u32>, count: u32) -> vec2<u32> {
    if (count == 0u) {
        return v;
    }
    if (count >= 32u) {
        return vec2<u32>(v.y << (count - 32u), 0u);
    }
    return vec2<u32>((v.x << count) | (v.y >> (32u - count)), v.y << count);
}

fn add64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let low = a.y + b.y;
    return vec2<u32>(a.x + b.x + u32(low < a.y), low);
}

fn sub64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return vec2<u32>(a.x - b.x - u32(a.y < b.y), a.y - b.y);
}

// The float v 2^(e - 63); the top bit of v must be set. Rounds to nearest even, or to odd.
// Rounding to odd makes a second rounding to a narrower type exact.
fn round64(v: vec2<u32>, e: i32, sign: u32, odd: bool) -> f32 {
    if (e > 127) {
        return as_float(sign | 0x7f800000u);
    }
    let drop = 8 + max(0, -126 - e);
    if (drop > 32) {
        return bitcast<f32>(sign | u32(odd));
    }
    var digits = 0u;
    var rest = v.x;
    if (drop < 32) {
        digits = v.x >> u32(drop);
        rest = v.x << u32(32 - drop);
    }
    let sticky = v.y != 0u;
    if (odd) {
        digits |= u32(rest != 0u || sticky);
    } else {
        digits += u32(rest > 0x80000000u || (rest == 0x80000000u && (sticky || (digits & 1u) == 1u)));
    }
    let base = select(0u, u32(max(e + 126, 0)) << 23u, e >= -126);
    return bitcast<f32>(sign | (base + digits));
}

// a b + c rounded once, for finite a, b, c and nonzero a, b.
fn soft_fma_finite(a: f32, b: f32, c: f32, odd: bool) -> f32 {
    let x = parts(a);
    let y = parts(b);
    let x_digits = (bitcast<u32>(x.a) & 0x7fffffu) | 0x800000u;
    let y_digits = (bitcast<u32>(y.a) & 0x7fffffu) | 0x800000u;
    // The product a b and the addend c become 64-bit integers, scaled by 2^(exponent - 60).
    var term = shift_left64(wide_product(x_digits, y_digits), 14u);
    var e = x.e + y.e;
    var sign = (bitcast<u32>(a) ^ bitcast<u32>(b)) & 0x80000000u;
    let other_sign = bitcast<u32>(c) & 0x80000000u;
    if (magnitude(c) != 0u) {
        let z = parts(c);
        var other = shift_left64(vec2<u32>(0u, (bitcast<u32>(z.a) & 0x7fffffu) | 0x800000u), 37u);
        if (z.e > e) {
            term = shift_right_jam(term, u32(z.e - e));
            e = z.e;
        } else {
            other = shift_right_jam(other, u32(e - z.e));
        }
        if (sign == other_sign) {
            term = add64(term, other);
        } else if (term.x > other.x || (term.x == other.x && term.y >= other.y)) {
            term = sub64(term, other);
        } else {
            term = sub64(other, term);
            sign = other_sign;
        }
    }
    if ((term.x | term.y) == 0u) {
        return 0.0;
    }
    let up = select(countLeadingZeros(term.x), 32u + countLeadingZeros(term.y), term.x == 0u);
    return round64(shift_left64(term, up), e + 3 - i32(up), sign, odd);
}

// a b + c rounded once.
fn soft_fma(a: f32, b: f32, c: f32, odd: bool) -> f32 {
    let a_size = magnitude(a);
    let b_size = magnitude(b);
    let c_size = magnitude(c);
    let sign = (bitcast<u32>(a) ^ bitcast<u32>(b)) & 0x80000000u;
    if (max(max(a_size, b_size), c_size) > 0x7f800000u) {
        return nan();
    }
    if (max(a_size, b_size) == 0x7f800000u) {
        let against = c_size == 0x7f800000u && (bitcast<u32>(c) & 0x80000000u) != sign;
        return as_float(select(sign | 0x7f800000u, 0x7fc00000u, against || min(a_size, b_size) == 0u));
    }
    if (c_size == 0x7f800000u) {
        return c;
    }
    if (min(a_size, b_size) == 0u) {
        // The sum of +0 and -0 is +0.
        return select(c, bitcast<f32>(sign & bitcast<u32>(c)), c_size == 0u);
    }
    return soft_fma_finite(a, b, c, odd);
}

fn f_fma(a: f32, b: f32, c: f32) -> f32 {
    return soft_fma(a, b, c, false);
}
