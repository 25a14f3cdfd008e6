// x P(x) for gates P that rise from 0 to 1 with P(-a) = 1 - P(a), computed from the tail T = P(-a)
// of a = |x|. The result for negative x is a product, for positive x a difference without
// cancellation. No division is needed.
// uses scalar/base.wgsl: head, rounded

// True for magnitudes from 2^-60 to 4, the range of the tail method.
fn is_near(size: u32) -> bool {
    return size - 0x21800000u <= 0x40800000u - 0x21800000u;
}

// x P(x) with T = e^(l - 0.59375 a^2 - 1.03856166) = 2^-n e^r. The last bits of `count` are n,
// about -log2(T).
fn less_tail(x: f32, a: f32, l: f32, count: f32) -> f32 {
    // m = 1.75 - n ln(2) / 0.59375, rounded to 9 bits; the remainder is added later. The square of
    // the leading 12 bits of a, and its sum with m, are exact. n must be opaque: otherwise results
    // on an H200 were wrong, probably because both constants were merged into one product.
    let n = rounded(count - 8388608.0);
    let m = 1.75 - n * 1.16796875;
    let high = head(a);
    let w = rounded(high * high + m) + (a - high) * (a + high);
    let r = (l + m * 0.00028619324) - 0.59375 * w;
    // (e^r - 1 - r) / r^2 as a polynomial for |r| <= 0.46; the error of e^r is below 2^-25.
    let p = 0.49999964 + r * (0.16666217 + r * (0.041671958 + r * (0.008395522 + r * 0.0013759614)));
    let q = r * (1.0 + r * p);
    let y = a * bitcast<f32>(0x3f800000u - (bitcast<u32>(count) << 23u));
    return max(x, 0.0) - (y + y * q);
}
