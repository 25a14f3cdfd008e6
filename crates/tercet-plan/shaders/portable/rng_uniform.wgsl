// Uniform random numbers in [lo, hi): lo + span u with a 24-bit u. Product and sum are rounded
// separately, then the result is rounded to DTYPE. If the rounded result exceeds the parameter
// `last`, the largest number below hi, it becomes `last`. A thread computes the four numbers of one
// Philox block.
// uses philox.wgsl: philox
// uses prelude.wgsl: flat_group, float_bits, lanes, opaque, round_to

struct Params {
    numel: u32,
    seed_low: u32,
    seed_high: u32,
    stream: u32,
    step_low: u32,
    step_high: u32,
    lo: f32,
    span: f32,
    last: f32,
    zero: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;

override DTYPE: u32 = 0u;

fn number(word: u32) -> f32 {
    let unit = f32(word >> 8u) * 5.9604644775390625e-8;
    let value = round_to(p.lo + opaque(p.span * unit, p.zero), DTYPE);
    return select(value, p.last, value > p.last);
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
    let per_word = lanes(DTYPE);
    for (var i = 0u; i < 4u && first + i < p.numel; i += per_word) {
        var out = 0u;
        for (var lane = 0u; lane < per_word; lane += 1u) {
            if first + i + lane < p.numel {
                let bits = float_bits(number(words[i + lane]), DTYPE);
                out |= bits << (lane * 16u);
            }
        }
        y[(first + i) / per_word] = out;
    }
}
