// Normal random numbers mean + deviation z by the Box-Muller transform (1958). For each pair of
// 24-bit uniform numbers u1, u2: r = sqrt(-2 ln(u1 + 2^-24)), t = 2 pi u2. The even element is r
// cos t, the odd one is r sin t. Logarithm, sine and cosine are implemented here, because the WGSL
// builtins may have errors of 2^-11. A thread computes the four numbers of one Philox block.
// uses philox.wgsl: philox
// uses prelude.wgsl: flat_group, float_bits, lanes

struct Params {
    numel: u32,
    seed_low: u32,
    seed_high: u32,
    stream: u32,
    step_low: u32,
    step_high: u32,
    mean: f32,
    deviation: f32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;

override DTYPE: u32 = 0u;

// -ln(x) for x in [2^-24, 1].
fn minus_log(x: f32) -> f32 {
    // x = m 2^e with m in [sqrt(1/2), sqrt(2)): avoids cancellation near 1.
    let shifted = bitcast<u32>(x) - 0x3f3504f3u;
    let e = f32(bitcast<i32>(shifted) >> 23u);
    let m = bitcast<f32>((shifted & 0x7fffffu) + 0x3f3504f3u);
    let s = (m - 1.0) / (m + 1.0);
    let s2 = s * s;
    let series = s2 * (0.33333334 + s2 * (0.2 + s2 * (0.14285715 + s2 * 0.11111111)));
    let log_m = 2.0 * (s + s * series);
    // ln 2 as two constants; the first has few bits, so its product with e is exact.
    return -(e * 0.693145751953125 + (e * 1.428606765330187e-6 + log_m));
}

// (cos, sin) of 2 pi k / 2^24.
fn turn(k: u32) -> vec2<f32> {
    let quarter = (k + 0x200000u) >> 22u;
    let rest = bitcast<i32>(k) - bitcast<i32>(quarter << 22u);
    let a = f32(rest) * 3.7450703e-7;
    let a2 = a * a;
    let sine = a + a * a2 * (-0.16666667 + a2 * (0.008333334 + a2 * (-0.0001984127 + a2 * 2.7557319e-6)));
    let cosine = 1.0 + a2 * (-0.5 + a2 * (0.041666668 + a2 * (-0.0013888889 + a2 * 2.4801587e-5)));
    switch quarter & 3u {
        case 0u: { return vec2(cosine, sine); }
        case 1u: { return vec2(-sine, cosine); }
        case 2u: { return vec2(-cosine, -sine); }
        default: { return vec2(sine, -cosine); }
    }
}

fn pair(first: u32, second: u32) -> vec2<f32> {
    let radius = sqrt(2.0 * minus_log(f32((first >> 8u) + 1u) * 5.9604644775390625e-8));
    return p.mean + p.deviation * (radius * turn(second >> 8u));
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let block = flat_group(group, count) * 256u + local;
    let first = block * 4u;
    if first >= p.numel {
        return;
    }
    let counter = vec4(block, p.stream, p.step_low, p.step_high);
    let words = philox(counter, vec2(p.seed_low, p.seed_high));
    let values = vec4(pair(words.x, words.y), pair(words.z, words.w));
    let per_word = lanes(DTYPE);
    for (var i = 0u; i < 4u && first + i < p.numel; i += per_word) {
        var out = 0u;
        for (var lane = 0u; lane < per_word; lane += 1u) {
            if first + i + lane < p.numel {
                out |= float_bits(values[i + lane], DTYPE) << (lane * 16u);
            }
        }
        y[(first + i) / per_word] = out;
    }
}
