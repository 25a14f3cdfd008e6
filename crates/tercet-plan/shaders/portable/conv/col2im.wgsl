// col2im: y[n, o, p] = sum_t columns[n, o, t, i(p, t)] + bias[o], the reduction of a transposed
// convolution. `columns` is dense F32 by batch, channel, tap and element. A thread writes one word.
// uses conv/spread.wgsl: element_of_tap, padded_at
// uses conv/windows.wgsl: KD, KH, KW, TAPS, p
// uses matmul/floats.wgsl: Y_TYPE, finish
// uses matmul/plain.wgsl: begin
// uses prelude.wgsl: flat_group, float_bits, lanes

@group(0) @binding(1) var<storage, read> columns: array<u32>;
@group(0) @binding(2) var<storage, read> bias_data: array<u32>;
@group(0) @binding(3) var<storage, read_write> y_data: array<u32>;

override BIAS: u32 = 0u;
override ACTIVATION: u32 = 0u;

fn sum_at(i: u32) -> f32 {
    let place = padded_at(i % p.windows);
    let plane = i / p.windows;
    let elements = p.size_d * p.size_h * p.size_w;
    var sum = 0.0;
    for (var d = 0u; d < KD; d += 1u) {
        let at_d = element_of_tap(place.x, d, p.dilation_d, p.stride_d);
        for (var h = 0u; h < KH; h += 1u) {
            let at_h = element_of_tap(place.y, h, p.dilation_h, p.stride_h);
            for (var w = 0u; w < KW; w += 1u) {
                let at_w = element_of_tap(place.z, w, p.dilation_w, p.stride_w);
                if at_d < p.size_d && at_h < p.size_h && at_w < p.size_w {
                    let tap = (d * KH + h) * KW + w;
                    let element = (at_d * p.size_h + at_h) * p.size_w + at_w;
                    sum += bitcast<f32>(columns[(plane * TAPS + tap) * elements + element]);
                }
            }
        }
    }
    return finish(sum, 0u, plane % (p.groups * p.m));
}

@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    begin();
    let word = flat_group(group, groups) * 128u + local;
    let per = lanes(Y_TYPE);
    let numel = p.batch * p.groups * p.m * p.windows;
    if word * per >= numel {
        return;
    }
    var out = 0u;
    for (var lane = 0u; lane < per; lane += 1u) {
        let i = word * per + lane;
        if i < numel {
            out |= float_bits(sum_at(i), Y_TYPE) << (16u * lane);
        }
    }
    y_data[word] = out;
}
