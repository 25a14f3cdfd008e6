// Sums, products and quotients of normal numbers, which raise a doubt where f_add, f_mul and f_div would do more: a kernel
// that finds one computes its elements again with those.

var<private> doubt: bool;

fn q_add(a: f32, b: f32) -> f32 {
    // Below 2^-95 both, and not both zero.
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
    // Zero, subnormal or NaN, of factors that are not zero.
    let odd = !(abs(product) > 1.1754943508222875e-38);
    doubt = doubt | (!NATIVE_FLOATS & odd & (min(magnitude(a), magnitude(b)) != 0u));
    return product;
}

// a / b for sizes from 2^-60 to 2^60 and for a = 0.
fn q_div(a: f32, b: f32) -> f32 {
    let a_size = magnitude(a);
    let of_a = (a_size == 0u) | (a_size - 0x21800000u <= 0x5d800000u - 0x21800000u);
    doubt = doubt | !(of_a & (magnitude(b) - 0x21800000u <= 0x5d800000u - 0x21800000u));
    let sign = (bitcast<u32>(a) ^ bitcast<u32>(b)) & 0x80000000u;
    return bitcast<f32>(magnitude(quotient(a, b)) | sign);
}
