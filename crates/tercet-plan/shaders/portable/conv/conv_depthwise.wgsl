// Depthwise convolution: y[n, o, p] = f(sum_t w[o, t] x[n, o / m, p, t] + bias[o]), where m is the
// number of result channels per channel of x. A thread computes STRIP adjacent windows of a row. If
// the taps of a row are contiguous (NEAR), the row is loaded once for all windows of the strip:
// SPAN elements. 16-bit results require an even number of windows per row.
// uses matmul/activated.wgsl or matmul/plain.wgsl: begin
// uses matmul/floats.wgsl: A_TYPE, Y_TYPE, element_of, finish
// uses prelude.wgsl: flat_group, float_bits, lane_of, lanes, word_of

@group(0) @binding(2) var<storage, read> w_data: array<u32>;

override STRIDE: u32 = 1u;
override NEAR: u32 = 0u;
override SPAN: u32 = 1u;

const STRIP: u32 = 4u;

fn w_at(i: u32) -> f32 {
    return element_of(w_data[word_of(i, A_TYPE)], i, A_TYPE);
}

@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    begin();
    let strips = (p.out_w + STRIP - 1u) / STRIP;
    let i = flat_group(group, groups) * 128u + local;
    let line = i / strips;
    let channels = p.groups * p.m;
    if line >= p.batch * channels * p.out_d * p.out_h {
        return;
    }
    let first = (i % strips) * STRIP;
    let plane = line / (p.out_d * p.out_h);
    let o = plane % channels;
    let row = line % (p.out_d * p.out_h);
    let at = vec3<u32>(
        (row / p.out_h) * p.stride_d - p.pad_d,
        (row % p.out_h) * p.stride_h - p.pad_h,
        first * p.stride_w - p.pad_w,
    );
    let place = p.x_offset + (plane / channels) * p.x_batch + (o / p.m) * p.x_channel;
    var sums = array<f32, STRIP>();
    for (var t = 0u; t < KD * KH; t += 1u) {
        let tap = tap_at(t * KW);
        let start = at + tap;
        let source = place + place_of(start);
        if NEAR == 1u {
            var held: array<f32, SPAN>;
            for (var j = 0u; j < SPAN; j += 1u) {
                held[j] = x_at(source + j * p.x_col, is_inside(start + vec3<u32>(0u, 0u, j)));
            }
            for (var kw = 0u; kw < KW; kw += 1u) {
                let weight = w_at(o * TAPS + t * KW + kw);
                for (var s = 0u; s < STRIP; s += 1u) {
                    sums[s] += weight * held[min(s * STRIDE + kw, SPAN - 1u)];
                }
            }
        } else {
            for (var kw = 0u; kw < KW; kw += 1u) {
                let weight = w_at(o * TAPS + t * KW + kw);
                for (var s = 0u; s < STRIP; s += 1u) {
                    let j = s * p.stride_w + kw * p.dilation_w;
                    sums[s] += weight * x_at(source + j * p.x_col, is_inside(start + vec3<u32>(0u, 0u, j)));
                }
            }
        }
    }
    var word = 0u;
    for (var s = 0u; s < STRIP; s += 1u) {
        if first + s >= p.out_w {
            break;
        }
        let to = line * p.out_w + first + s;
        let lane = lane_of(to, Y_TYPE);
        word |= float_bits(finish(sums[s], 0u, o), Y_TYPE) << (16u * lane);
        if lane + 1u == lanes(Y_TYPE) {
            y_data[word_of(to, Y_TYPE)] = word;
            word = 0u;
        }
    }
}
