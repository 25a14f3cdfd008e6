// Source elements of a resized axis whose size is known only at run time. For each result o, writes
// COUNT pairs of an index and a weight (F32 bits) from word `first` on, as resize.wgsl reads them.
//
// The source position is the fraction (step o + start + of_n n + of_m m) / under. All five numbers
// have 128 bits in two's complement, least word first, so that rounding never decides which
// elements are read. A thread computes one result.
// uses prelude.wgsl: flat_group

struct Params {
    step_start: array<vec4<u32>, 2>,
    of_sizes: array<vec4<u32>, 2>,
    under: array<vec4<u32>, 2>,
    n: u32,
    m: u32,
    first: u32,
    cubic_a: f32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read_write> taps: array<u32>;

// Number of source elements of a result: 1 (nearest), 2 (linear) or 4 (cubic).
override COUNT: u32 = 2u;
// Rounding of nearest: 0 to the nearest, halves down; 1 halves up; 2 down; 3 up.
override ROUNDING: u32 = 0u;
// 1 excludes elements outside the axis and renormalizes the other weights.
override EXCLUDE: u32 = 0u;
// 1 if the position of a single result is 0.
override ONE_AT_ZERO: u32 = 0u;

// The product of two words, as low and high word.
fn wide_product(a: u32, b: u32) -> vec2<u32> {
    let low = (a & 0xffffu) * (b & 0xffffu);
    let cross = (a >> 16u) * (b & 0xffffu);
    let other = (a & 0xffffu) * (b >> 16u);
    let middle = (low >> 16u) + (cross & 0xffffu) + (other & 0xffffu);
    let high = (a >> 16u) * (b >> 16u) + (cross >> 16u) + (other >> 16u) + (middle >> 16u);
    return vec2<u32>((low & 0xffffu) | (middle << 16u), high);
}

fn plus(a: vec4<u32>, b: vec4<u32>) -> vec4<u32> {
    var sum = a + b;
    var carry = u32(sum.x < a.x);
    var before = sum.y;
    sum.y += carry;
    carry = u32(before < a.y) | u32(sum.y < before);
    before = sum.z;
    sum.z += carry;
    carry = u32(before < a.z) | u32(sum.z < before);
    sum.w += carry;
    return sum;
}

fn times(a: vec4<u32>, b: u32) -> vec4<u32> {
    let x = wide_product(a.x, b);
    let y = wide_product(a.y, b);
    let z = wide_product(a.z, b);
    return plus(vec4<u32>(x.x, y.x, z.x, a.w * b), vec4<u32>(0u, x.y, y.y, z.y));
}

fn negated(a: vec4<u32>) -> vec4<u32> {
    return plus(~a, vec4<u32>(1u, 0u, 0u, 0u));
}

fn is_zero(a: vec4<u32>) -> bool {
    return all(a == vec4<u32>(0u));
}

// True if a >= b, as unsigned numbers.
fn is_at_least(a: vec4<u32>, b: vec4<u32>) -> bool {
    if a.w != b.w {
        return a.w > b.w;
    }
    if a.z != b.z {
        return a.z > b.z;
    }
    if a.y != b.y {
        return a.y > b.y;
    }
    return a.x >= b.x;
}

fn doubled(a: vec4<u32>) -> vec4<u32> {
    return (a << vec4<u32>(1u)) | vec4<u32>(0u, a.x >> 31u, a.y >> 31u, a.z >> 31u);
}

struct Quotient {
    whole: i32,
    rest: vec4<u32>,
}

// over / under rounded down, with the rest; under is positive.
fn divided(over: vec4<u32>, under: vec4<u32>) -> Quotient {
    let negative = (over.w >> 31u) == 1u;
    var a = over;
    if negative {
        a = negated(over);
    }
    var rest = vec4<u32>(0u);
    var whole = 0u;
    for (var i = 0u; i < 128u; i += 1u) {
        rest = doubled(rest);
        rest.x |= a.w >> 31u;
        a = doubled(a);
        whole = whole << 1u;
        if is_at_least(rest, under) {
            rest = plus(rest, negated(under));
            whole |= 1u;
        }
    }
    if negative && is_zero(rest) {
        return Quotient(-bitcast<i32>(whole), rest);
    }
    if negative {
        return Quotient(-bitcast<i32>(whole) - 1, plus(under, negated(rest)));
    }
    return Quotient(bitcast<i32>(whole), rest);
}

fn as_f32(a: vec4<u32>) -> f32 {
    return ((f32(a.w) * 4294967296.0 + f32(a.z)) * 4294967296.0 + f32(a.y)) * 4294967296.0 + f32(a.x);
}

// The index of nearest mode.
fn rounded(x: Quotient, under: vec4<u32>) -> i32 {
    let twice = doubled(x.rest);
    let is_half = all(twice == under);
    let is_upper = is_at_least(twice, under);
    if ROUNDING == 0u {
        return x.whole + i32(is_upper && !is_half);
    }
    if ROUNDING == 1u {
        return x.whole + i32(is_upper);
    }
    return x.whole + i32(ROUNDING == 3u && !is_zero(x.rest));
}

// Weight of an element at distance 1 + d, for its distance g = 1 - d to the end of the cubic.
fn far(d: f32, g: f32) -> f32 {
    return p.cubic_a * d * g * g;
}

fn near(d: f32) -> f32 {
    return ((p.cubic_a + 2.0) * d - (p.cubic_a + 3.0)) * d * d + 1.0;
}

@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let o = flat_group(group, groups) * 128u + local;
    if o >= p.m {
        return;
    }
    var over = plus(times(p.step_start[0], o), p.step_start[1]);
    over = plus(over, plus(times(p.of_sizes[0], p.n), times(p.of_sizes[1], p.m)));
    var under = p.under[0];
    if ONE_AT_ZERO == 1u && p.m == 1u {
        over = vec4<u32>(0u);
        under = vec4<u32>(1u, 0u, 0u, 0u);
    }
    let x = divided(over, under);
    var first = x.whole;
    var weights = vec4<f32>(1.0, 0.0, 0.0, 0.0);
    if COUNT == 1u {
        first = rounded(x, under);
    } else {
        let f = as_f32(x.rest) / as_f32(under);
        let g = as_f32(plus(under, negated(x.rest))) / as_f32(under);
        weights = vec4<f32>(g, f, 0.0, 0.0);
        if COUNT == 4u {
            first -= 1;
            weights = vec4<f32>(far(f, g), near(f), near(g), far(g, f));
            if is_zero(x.rest) {
                weights = vec4<f32>(0.0, 1.0, 0.0, 0.0);
            }
        }
    }
    let last = bitcast<i32>(p.n) - 1;
    if EXCLUDE == 1u && COUNT > 1u {
        var sum = 0.0;
        for (var t = 0u; t < COUNT; t += 1u) {
            let at = first + i32(t);
            weights[t] = select(weights[t], 0.0, at < 0 || at > last);
            sum += weights[t];
        }
        weights = weights / sum;
    }
    for (var t = 0u; t < COUNT; t += 1u) {
        let at = p.first + (o * COUNT + t) * 2u;
        taps[at] = bitcast<u32>(clamp(first + i32(t), 0, max(last, 0)));
        taps[at + 1u] = bitcast<u32>(weights[t]);
    }
}
