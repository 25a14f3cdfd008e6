// Softmax along one axis from stored row statistics (max, 1 / sum or ln(sum)), for any strides and
// dtype. A thread writes one word.
// uses prelude.wgsl: flat_group, float_bits, float_of, lane_of, lanes, word_of
// uses softmax_value.wgsl: Row, part_of, value_of
// uses strided.wgsl: row_start

struct Params {
    sizes: array<vec4<u32>, 2>,
    strides: array<vec4<u32>, 2>,
    kept: u32,
    offset: u32,
    rows: u32,
    len: u32,
    stride: u32,
    inner: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read> stats: array<u32>;
@group(0) @binding(3) var<storage, read_write> y: array<u32>;

override DTYPE: u32 = 0u;

fn result(i: u32) -> f32 {
    let line = i / p.inner;
    let row = (line / p.len) * p.inner + i % p.inner;
    let about = Row(bitcast<f32>(stats[row * 2u]), bitcast<f32>(stats[row * 2u + 1u]));
    let begin = row_start(row) + (line % p.len) * p.stride;
    let value = float_of(x[word_of(begin, DTYPE)], lane_of(begin, DTYPE), DTYPE);
    return value_of(part_of(value, about.greatest), about);
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
