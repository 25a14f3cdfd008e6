// y[n, o, p] = f(sums[n, o, p] + bias[o]), rounded to Y_TYPE. One invocation writes one word.

struct Params {
    count: u32,
    channels: u32,
    windows: u32,
    bias_offset: u32,
    bias_row: u32,
    bias_stride: u32,
    zero: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> sums: array<u32>;
@group(0) @binding(2) var<storage, read> bias_data: array<u32>;
@group(0) @binding(3) var<storage, read_write> y_data: array<u32>;

override BIAS: u32 = 0u;
override ACTIVATION: u32 = 0u;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    begin();
    let word = flat_group(group, groups) * 256u + local;
    let first = word * lanes(Y_TYPE);
    if first >= p.count {
        return;
    }
    var bits = 0u;
    for (var lane = 0u; lane < lanes(Y_TYPE); lane += 1u) {
        let i = first + lane;
        if i < p.count {
            let value = finish(bitcast<f32>(sums[i]), 0u, (i / p.windows) % p.channels);
            bits |= float_bits(value, Y_TYPE) << (16u * lane);
        }
    }
    y_data[word] = bits;
}
