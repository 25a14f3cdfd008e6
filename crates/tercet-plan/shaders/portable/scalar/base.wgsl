// Double-float arithmetic: numbers of more than 24 bits as unevaluated sums of two floats.
//
// Compilers may contract a * b + c to an FMA, and some reorder sums. Error terms are therefore
// computed only against values that passed through integer operations. `head` and `trim` drop bits,
// and the dropped part is exact with or without contraction. `exact` excludes a constant or a
// difference from reordering.
// uses prelude.wgsl: as_float, magnitude, opaque, shift_to_even

// Zero at run time; set by the kernel. See `opaque`.
var<private> opaque_zero: u32;

fn rounded(x: f32) -> f32 {
    return opaque(x, opaque_zero);
}

// The leading 12 bits of x. Products of two heads, or of a head and a remainder, are exact.
fn head(x: f32) -> f32 {
    return bitcast<f32>(bitcast<u32>(x) & 0xfffff000u);
}

// x with its last bit cleared.
fn trim(x: f32) -> f32 {
    return bitcast<f32>(bitcast<u32>(x) & 0xfffffffeu);
}

fn copy_sign(size: f32, sign: f32) -> f32 {
    return bitcast<f32>(magnitude(size) | (bitcast<u32>(sign) & 0x80000000u));
}

fn negated(x: f32) -> f32 {
    return bitcast<f32>(bitcast<u32>(x) ^ 0x80000000u);
}

// x, hidden from the compiler. The last bit of n (n + 1) is always 0, which compilers do not
// deduce.
fn exact(x: f32, other: f32) -> f32 {
    let n = bitcast<u32>(other);
    return opaque(x, (n * (n + 1u)) & 1u);
}

// a + b as (high, low), |a| >= |b|.
fn pair_sum(a: f32, b: f32) -> vec2<f32> {
    let high = trim(a + b);
    return vec2<f32>(high, exact(a - high, high) + b);
}

// a b as (high, low).
fn pair_product(a: f32, b: f32) -> vec2<f32> {
    let a_high = head(a);
    let b_high = head(b);
    let a_low = a - a_high;
    let b_low = b - b_high;
    let high = trim(a * b);
    return vec2<f32>(high, ((a_high * b_high - high) + (a_high * b_low + a_low * b_high)) + a_low * b_low);
}

// (a + a_low) / (b + b_low) for magnitudes between about 2^-60 and 2^60. The error is little more
// than half an ulp, even if the device's division is inaccurate.
fn pair_quotient(a: f32, a_low: f32, b: f32, b_low: f32) -> vec2<f32> {
    let q = trim(a / b);
    let q_high = head(q);
    let q_rest = q - q_high;
    let b_high = head(b);
    let b_rest = b - b_high;
    let left = ((a - q_high * b_high) - (q_high * b_rest + q_rest * b_high)) - q_rest * b_rest;
    return vec2<f32>(q, (left + (a_low - q * b_low)) / b);
}

fn quotient(a: f32, b: f32) -> f32 {
    let q = pair_quotient(a, 0.0, b, 0.0);
    return q.x + q.y;
}

// A finite nonzero number as a 2^e with 1 <= |a| < 2.
struct Parts {
    a: f32,
    e: i32,
}

fn parts(x: f32) -> Parts {
    let bits = bitcast<u32>(x);
    var size = bits & 0x7fffffffu;
    var e = i32(size >> 23u) - 127;
    if (size < 0x800000u) {
        let up = countLeadingZeros(size) - 8u;
        size = size << up;
        e = -126 - i32(up);
    }
    return Parts(bitcast<f32>((bits & 0x80000000u) | (size & 0x7fffffu) | 0x3f800000u), e);
}

// m 2^n for a normal m or zero; a subnormal result is rounded once.
fn scaled(m: f32, n: i32) -> f32 {
    let sign = bitcast<u32>(m) & 0x80000000u;
    let size = magnitude(m);
    let e = i32(size >> 23u) + clamp(n, -1000, 1000);
    if (size == 0u || size >= 0x7f800000u) {
        return m;
    }
    if (e >= 255) {
        return as_float(sign | 0x7f800000u);
    }
    let digits = size & 0x7fffffu;
    if (e > 0) {
        return bitcast<f32>(sign | (u32(e) << 23u) | digits);
    }
    return bitcast<f32>(sign | shift_to_even(digits | 0x800000u, u32(min(1 - e, 25))));
}
