// sum = x + residual + bias, for rows that are not whole words. A thread writes one word.
// uses prelude.wgsl: flat_group, float_bits, float_of, lane_of, lanes, word_of

struct Params {
    rows: u32,
    len: u32,
    x_offset: u32,
    x_row: u32,
    x_stride: u32,
    r_offset: u32,
    r_row: u32,
    r_stride: u32,
    eps: f32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read> residual: array<u32>;
@group(0) @binding(3) var<storage, read> bias: array<u32>;
@group(0) @binding(4) var<storage, read_write> sum: array<u32>;

override DTYPE: u32 = 1u;
override BIAS: u32 = 0u;

fn result(i: u32) -> f32 {
    let row = i / p.len;
    let at = i % p.len;
    let a = p.x_offset + row * p.x_row + at * p.x_stride;
    let b = p.r_offset + row * p.r_row + at * p.r_stride;
    let v = float_of(x[word_of(a, DTYPE)], lane_of(a, DTYPE), DTYPE)
        + float_of(residual[word_of(b, DTYPE)], lane_of(b, DTYPE), DTYPE);
    if BIAS == 1u {
        return v + float_of(bias[word_of(at, DTYPE)], lane_of(at, DTYPE), DTYPE);
    }
    return v;
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) index: u32,
) {
    let word = flat_group(group, groups) * 256u + index;
    let per = lanes(DTYPE);
    let numel = p.rows * p.len;
    if word * per >= numel {
        return;
    }
    var out = 0u;
    for (var lane = 0u; lane < per; lane += 1u) {
        let i = word * per + lane;
        if i < numel {
            out |= float_bits(result(i), DTYPE) << (16u * (lane & 1u));
        }
    }
    sum[word] = out;
}
