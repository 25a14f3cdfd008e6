// x P(x) for gates P that rise from 0 to 1, P(-a) = 1 - P(a), by the tail T = P(-a) of a = |x|: a product for one sign
// and a difference that does not cancel for the other, without any division.
// uses scalar/base.wgsl: head, rounded

// True for the sizes that ways by tails take: from 2^-60 to 4.
fn is_near(size: u32) -> bool {
    return size - 0x21800000u <= 0x40800000u - 0x21800000u;
}

// x P(x) with T = e^(l - 0.59375 a^2 - 1.03856166) = 2^-n e^r; the last bits of `count` are n, about -log2(T).
fn less_tail(x: f32, a: f32, l: f32, count: f32) -> f32 {
    // m = 1.75 - n ln(2) / 0.59375 to 9 bits, the rest later. With the leading 12 bits of a its square and the sum
    // with m are exact. Results were wrong on an H200 while n was
    // not opaque: probably m became one product and a rounded sum of both constants.
    let n = rounded(count - 8388608.0);
    let m = 1.75 - n * 1.16796875;
    let high = head(a);
    let w = rounded(high * high + m) + (a - high) * (a + high);
    let r = (l + m * 0.00028619324) - 0.59375 * w;
    // e^r - 1 for |r| <= 0.46, within 2^-25.
    let p = 0.49999964 + r * (0.16666217 + r * (0.041671958 + r * (0.008395522 + r * 0.0013759614)));
    let q = r * (1.0 + r * p);
    let y = a * bitcast<f32>(0x3f800000u - (bitcast<u32>(count) << 23u));
    return max(x, 0.0) - (y + y * q);
}
