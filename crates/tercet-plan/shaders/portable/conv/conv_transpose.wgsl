// Transposed convolution, direct: y[n, o, p] = sum_{c, t} w[c, o, t] x[n, c, i(p, t)] + bias[o].
// This kernel is used for few channels. A thread writes one word.
// uses conv/spread.wgsl: element_of_tap, padded_at
// uses matmul/floats.wgsl: A_TYPE, Y_TYPE, element_of, finish
// uses matmul/plain.wgsl: begin
// uses prelude.wgsl: flat_group, float_bits, lanes, word_of

@group(0) @binding(2) var<storage, read> w_data: array<u32>;

fn sum_at(i: u32) -> f32 {
    let place = padded_at(i % p.windows);
    let plane = i / p.windows;
    let own = plane % (p.groups * p.m);
    let g = own / p.m;
    let source = p.x_offset + (plane / (p.groups * p.m)) * p.x_batch + g * p.channels * p.x_channel;
    var sum = 0.0;
    for (var d = 0u; d < KD; d += 1u) {
        let at_d = element_of_tap(place.x, d, p.dilation_d, p.stride_d);
        for (var h = 0u; h < KH; h += 1u) {
            let at_h = element_of_tap(place.y, h, p.dilation_h, p.stride_h);
            for (var w = 0u; w < KW; w += 1u) {
                let at_w = element_of_tap(place.z, w, p.dilation_w, p.stride_w);
                if at_d < p.size_d && at_h < p.size_h && at_w < p.size_w {
                    let element = source + place_of(vec3<u32>(at_d, at_h, at_w));
                    let tap = (d * KH + h) * KW + w;
                    for (var c = 0u; c < p.channels; c += 1u) {
                        let j = ((g * p.channels + c) * p.m + own % p.m) * TAPS + tap;
                        let weight = element_of(w_data[word_of(j, A_TYPE)], j, A_TYPE);
                        sum += weight * x_at(element + c * p.x_channel, true);
                    }
                }
            }
        }
    }
    return finish(sum, 0u, own);
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
