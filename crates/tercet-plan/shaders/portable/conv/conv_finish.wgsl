// Split-K reduction of a convolution: y[n, o, p] = f(sum_s part_sums[s, n, o, p] + bias[o]),
// rounded to Y_TYPE. PARTS partial sums are added; parts, batch entries and channels have strides.
// A thread writes one word.
// uses matmul/activated.wgsl or matmul/plain.wgsl: begin
// uses matmul/floats.wgsl: Y_TYPE, finish
// uses prelude.wgsl: flat_group, float_bits, lanes

struct Params {
    count: u32,
    channels: u32,
    windows: u32,
    sums_part: u32,
    sums_entry: u32,
    sums_channel: u32,
    bias_offset: u32,
    bias_row: u32,
    bias_stride: u32,
    zero: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> part_sums: array<u32>;
@group(0) @binding(2) var<storage, read> bias_data: array<u32>;
@group(0) @binding(3) var<storage, read_write> y_data: array<u32>;

override BIAS: u32 = 0u;
override ACTIVATION: u32 = 0u;
override PARTS: u32 = 1u;

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
            let line = i / p.windows;
            let channel = line % p.channels;
            let at = line / p.channels * p.sums_entry + channel * p.sums_channel + i % p.windows;
            var sum = bitcast<f32>(part_sums[at]);
            for (var part = 1u; part < PARTS; part += 1u) {
                sum += bitcast<f32>(part_sums[part * p.sums_part + at]);
            }
            bits |= float_bits(finish(sum, 0u, channel), Y_TYPE) << (16u * lane);
        }
    }
    y_data[word] = bits;
}
