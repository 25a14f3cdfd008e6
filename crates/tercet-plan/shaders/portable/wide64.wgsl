// 64-bit integers as (low, high) words. Needs `scalar/wide.wgsl`.
// uses scalar/wide.wgsl: wide_product

// a b
fn mul_wide(a: u32, b: u32) -> vec2<u32> {
    return wide_product(a, b).yx;
}

// a + b
fn add64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let low = a.x + b.x;
    return vec2(low, a.y + b.y + select(0u, 1u, low < a.x));
}

// a - b
fn sub64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return vec2(a.x - b.x, a.y - b.y - select(0u, 1u, a.x < b.x));
}

// a < b
fn less64(a: vec2<u32>, b: vec2<u32>) -> bool {
    return a.y < b.y || (a.y == b.y && a.x < b.x);
}

// a << n; 0 for n >= 64.
fn shl64(a: vec2<u32>, n: u32) -> vec2<u32> {
    if n >= 64u {
        return vec2(0u, 0u);
    }
    if n >= 32u {
        return vec2(0u, a.x << (n - 32u));
    }
    if n == 0u {
        return a;
    }
    return vec2(a.x << n, (a.y << n) | (a.x >> (32u - n)));
}

// a >> n; 0 for n >= 64.
fn shr64(a: vec2<u32>, n: u32) -> vec2<u32> {
    if n >= 64u {
        return vec2(0u, 0u);
    }
    if n >= 32u {
        return vec2(a.y >> (n - 32u), 0u);
    }
    if n == 0u {
        return a;
    }
    return vec2((a.x >> n) | (a.y << (32u - n)), a.y >> n);
}

// Number of leading zero bits.
fn leading_zeros64(a: vec2<u32>) -> u32 {
    return select(32u + countLeadingZeros(a.x), countLeadingZeros(a.y), a.y != 0u);
}

// The 128-bit product a b as four words, lowest first.
fn mul64(a: vec2<u32>, b: vec2<u32>) -> vec4<u32> {
    let low = mul_wide(a.x, b.x);
    let high = mul_wide(a.y, b.y);
    let left = mul_wide(a.x, b.y);
    let right = mul_wide(a.y, b.x);
    let first = add64(vec2(low.y, 0u), vec2(left.x, 0u));
    let second = add64(first, vec2(right.x, 0u));
    let carried = add64(vec2(second.y, 0u), vec2(left.y, 0u));
    let sum = add64(carried, vec2(right.y, 0u));
    return vec4(low.x, second.x, add64(high, sum));
}

// The high 64 bits of a b.
fn mul_high64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return mul64(a, b).zw;
}
