// Fast square root by one Newton step, for zeros, negative numbers and 2^-100 to 2^100; other
// values set `doubt`.

fn q_sqrt(x: f32) -> f32 {
    let size = magnitude(x);
    doubt = doubt | ((size - 0x0d800000u > 0x71800000u - 0x0d800000u) & (size != 0u));
    let inverse = inverseSqrt(max(x, 7.888609e-31));
    let y = x * inverse;
    let root = y + (0.5 * inverse) * (x - y * y);
    return select(root, nan(), x < 0.0);
}
