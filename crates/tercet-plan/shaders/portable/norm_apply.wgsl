// Norm from stored row statistics, for rows of any stride and dtype. A thread writes one word.
// uses norm_value.wgsl: Row, normalized
// uses prelude.wgsl: flat_group, float_bits, float_of, lane_of, lanes, word_of

struct Params {
    rows: u32,
    len: u32,
    x_offset: u32,
    x_row: u32,
    x_stride: u32,
    eps: f32,
    // Row strides: x_row between rows, x_outer between groups of x_count rows.
    x_count: u32,
    x_outer: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read> gamma: array<u32>;
@group(0) @binding(3) var<storage, read> beta: array<u32>;
@group(0) @binding(4) var<storage, read> stats: array<u32>;
@group(0) @binding(5) var<storage, read_write> y: array<u32>;

override DTYPE: u32 = 1u;
override BETA: u32 = 0u;

fn stat(row: u32, which: u32) -> f32 {
    return bitcast<f32>(stats[row * 4u + which]);
}

fn result(i: u32) -> f32 {
    let row = i / p.len;
    let at = i % p.len;
    let start = p.x_offset + row / p.x_count * p.x_outer + row % p.x_count * p.x_row;
    let begin = start + at * p.x_stride;
    let v = float_of(x[word_of(begin, DTYPE)], lane_of(begin, DTYPE), DTYPE);
    let about = Row(stat(row, 0u), stat(row, 1u), stat(row, 2u), stat(row, 3u));
    let word = word_of(at, DTYPE);
    let lane = lane_of(at, DTYPE);
    let weighed = normalized(v, about) * float_of(gamma[word], lane, DTYPE);
    if BETA == 1u {
        return weighed + float_of(beta[word], lane, DTYPE);
    }
    return weighed;
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
    y[word] = out;
}
