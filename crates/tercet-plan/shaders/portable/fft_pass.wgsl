// One pass of a Stockham FFT (1966) whose length n is known only at run time. The pass has any
// radix; `before` is the product of the radices of the passes before. Roots of unity are computed:
// their angles are fractions of integers, so rounding does not depend on n. A thread computes one
// complex number, as the sum of `radix` products.
//
// With `before` = b, radix = r and count = n / r, a pass computes
//
//     result[block b r + s b + k] = sum_j from[block b + k + j count] w^(j e).
//
// Here w = exp(-2 pi i / n) and e = k count / b + s count.
// uses halves.wgsl: two_bits
// uses prelude.wgsl: F32, flat_group

struct Params {
    rows: u32,
    n: u32,
    radix: u32,
    before: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<vec2<f32>>;
@group(0) @binding(2) var<storage, read_write> y: array<u32>;

override DTYPE: u32 = 0u;
override INVERSE: u32 = 0u;
// Scale of the results: 0 is 1, 1 is 1 / n, 2 is 1 / sqrt(n).
override NORM: u32 = 0u;

// (cos, sin) of an eighth of a turn at most.
fn unit(angle: f32) -> vec2<f32> {
    let s = angle * angle;
    let sin = angle * (1.0 + s * (-1.6666667e-1 + s * (8.333333e-3 + s * (-1.984127e-4 + s * 2.7557319e-6))));
    let cos = 1.0
        + s * (-0.5 + s * (4.1666667e-2 + s * (-1.3888889e-3 + s * (2.4801587e-5 - s * 2.755732e-7))));
    return vec2<f32>(cos, sin);
}

// e^(-2 pi i k / n) for k < n.
fn root(k: u32) -> vec2<f32> {
    let quarter = 4u * k / p.n;
    let rest = 4u * k % p.n;
    let half_pi = 1.5707964;
    var at: vec2<f32>;
    if 2u * rest <= p.n {
        at = unit(f32(rest) / f32(p.n) * half_pi);
    } else {
        at = unit(f32(p.n - rest) / f32(p.n) * half_pi).yx;
    }
    if quarter == 0u {
        return vec2<f32>(at.x, -at.y);
    }
    if quarter == 1u {
        return vec2<f32>(-at.y, -at.x);
    }
    if quarter == 2u {
        return vec2<f32>(-at.x, at.y);
    }
    return vec2<f32>(at.y, at.x);
}

@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = flat_group(group, groups) * 128u + local;
    if i >= p.rows * p.n {
        return;
    }
    let t = i % p.n;
    let count = p.n / p.radix;
    let span = p.before * p.radix;
    let s = t % span / p.before;
    let k = t % p.before;
    let first = i - t + t / span * p.before + k;
    // The exponents j (k count / before + s count), modulo n.
    let step = (k * (count / p.before) + s * count) % p.n;
    var exponent = 0u;
    var sum = vec2<f32>(0.0);
    for (var j = 0u; j < p.radix; j += 1u) {
        let v = x[first + j * count];
        var w = root(exponent);
        if INVERSE == 1u {
            w.y = -w.y;
        }
        sum += vec2<f32>(v.x * w.x - v.y * w.y, v.x * w.y + v.y * w.x);
        exponent += step;
        exponent -= select(0u, p.n, exponent >= p.n);
    }
    if NORM == 1u {
        sum = sum / f32(p.n);
    }
    if NORM == 2u {
        sum = sum / sqrt(f32(p.n));
    }
    if DTYPE == F32 {
        y[2u * i] = bitcast<u32>(sum.x);
        y[2u * i + 1u] = bitcast<u32>(sum.y);
    } else {
        y[i] = two_bits(sum, DTYPE);
    }
}
