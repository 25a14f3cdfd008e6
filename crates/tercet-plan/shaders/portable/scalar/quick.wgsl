// Fast arithmetic for normal numbers. Each function sets `doubt` if f_add, f_mul or f_div might
// give another result. If `doubt` is set, the kernel recomputes its elements with the exact
// functions.

var<private> doubt: bool;

fn q_add(a: f32, b: f32) -> f32 {
    // Doubtful: both operands below 2^-95, and at least one of them nonzero.
    let sizes = (bitcast<u32>(a) | bitcast<u32>(b)) & 0x7fffffffu;
    doubt = doubt | (!NATIVE_FLOATS & (sizes - 1u < 0x0fffffffu));
    return rounded(a + b);
}

fn q_sub(a: f32, b: f32) -> f32 {
    let sizes = (bitcast<u32>(a) | bitcast<u32>(b)) & 0x7fffffffu;
    doubt = doubt | (!NATIVE_FLOATS & (sizes - 1u < 0x0fffffffu));
    return rounded(a - b);
}

fn q_mul(a: f32, b: f32) -> f32 {
    let product = rounded(a * b);
    // Doubtful: a zero, subnormal or NaN product of nonzero factors.
    let odd = !(abs(product) > 1.1754943508222875e-38);
    doubt = doubt | (!NATIVE_FLOATS & odd & (min(magnitude(a), magnitude(b)) != 0u));
    return product;
}

// a / b for magnitudes from 2^-60 to 2^60, and for a = 0.
fn q_div(a: f32, b: f32) -> f32 {
    let a_size = magnitude(a);
    let of_a = (a_size == 0u) | (a_size - 0x21800000u <= 0x5d800000u - 0x21800000u);
    doubt = doubt | !(of_a & (magnitude(b) - 0x21800000u <= 0x5d800000u - 0x21800000u));
    let sign = (bitcast<u32>(a) ^ bitcast<u32>(b)) & 0x80000000u;
    return bitcast<f32>(magnitude(quotient(a, b)) | sign);
}
