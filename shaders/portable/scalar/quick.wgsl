// Sums and products of normal numbers, which raise a doubt where f_add and f_mul would do more: a kernel
// that finds one computes its elements again with those.

var<private> doubt: bool;

fn q_add(a: f32, b: f32) -> f32 {
    // Below 2^-95 both, and not both zero.
    let sizes = (bitcast<u32>(a) | bitcast<u32>(b)) & 0x7fffffffu;
    doubt = doubt | (sizes - 1u < 0x0fffffffu);
    return rounded(a + b);
}

fn q_sub(a: f32, b: f32) -> f32 {
    let sizes = (bitcast<u32>(a) | bitcast<u32>(b)) & 0x7fffffffu;
    doubt = doubt | (sizes - 1u < 0x0fffffffu);
    return rounded(a - b);
}

fn q_mul(a: f32, b: f32) -> f32 {
    let product = rounded(a * b);
    // Zero, subnormal or NaN, of factors that are not zero.
    let odd = magnitude(product) - 0x800001u > 0x7effffffu;
    doubt = doubt | (odd & (min(magnitude(a), magnitude(b)) != 0u));
    return product;
}
