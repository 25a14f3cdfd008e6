// Pooling: y[n, c, p] = f of the elements of x in window p. OP 0: sum, 1: mean, 2: maximum, 3:
// minimum, 4: product. `groups` is the number of channels. Float sums are F32 and nested by rows, planes and
// blocks, so that rounding errors of long sums stay small; integers wrap. A thread writes one word.
//
// A mean divides by the number of covered elements. With COUNT_PAD, a mean divides by the number of
// taps within the padded input.
// uses conv/windows.wgsl: KD, KH, KW, is_inside, p, place_of, window_at
// uses prelude.wgsl: BF16, I32, I8, U8, flat_group, float_bits, float_of, fmax, fmin, int_bits, int_of, lane_of, lanes, nan, uint_of, word_of

@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read_write> y: array<u32>;

override DTYPE: u32 = 0u;
override OP: u32 = 0u;
override COUNT_PAD: u32 = 0u;

const MEAN: u32 = 1u;
const MAX: u32 = 2u;
const PRODUCT: u32 = 4u;

fn is_signed() -> bool {
    return DTYPE == I32 || DTYPE == I8;
}

// The identity element of the reduction.
fn identity() -> u32 {
    if OP <= MEAN {
        return 0u;
    }
    if OP == PRODUCT {
        return select(1u, 0x3f800000u, DTYPE <= BF16);
    }
    if DTYPE <= BF16 {
        return select(0x7f800000u, 0xff800000u, OP == MAX);
    }
    if DTYPE == I32 {
        return select(0x7fffffffu, 0x80000000u, OP == MAX);
    }
    if DTYPE == I8 {
        return select(127u, 0xffffff80u, OP == MAX);
    }
    return select(select(0xffffffffu, 0xffu, DTYPE == U8), 0u, OP == MAX);
}

fn number_at(i: u32) -> u32 {
    let word = x[word_of(i, DTYPE)];
    let lane = lane_of(i, DTYPE);
    if DTYPE <= BF16 {
        return bitcast<u32>(float_of(word, lane, DTYPE));
    }
    if is_signed() {
        return bitcast<u32>(int_of(word, lane, DTYPE));
    }
    return uint_of(word, lane, DTYPE);
}

fn combine(a: u32, b: u32) -> u32 {
    if DTYPE <= BF16 {
        let u = bitcast<f32>(a);
        let v = bitcast<f32>(b);
        if OP <= MEAN {
            return bitcast<u32>(u + v);
        }
        if OP == PRODUCT {
            return bitcast<u32>(u * v);
        }
        if OP == MAX {
            return bitcast<u32>(fmax(u, v));
        }
        return bitcast<u32>(fmin(u, v));
    }
    if OP <= MEAN {
        return a + b;
    }
    if OP == PRODUCT {
        return a * b;
    }
    // Flipping the sign bit makes signed numbers comparable as unsigned.
    let flip = select(0u, 0x80000000u, is_signed());
    return select(b, a, ((a ^ flip) >= (b ^ flip)) == (OP == MAX));
}

// Number of taps of an axis that are before `end`.
fn taps_before(first: u32, pad: u32, end: u32, taps: u32, step: u32) -> u32 {
    let source = first + pad;
    return select(min((end + pad - source + step - 1u) / step, taps), 0u, source >= end + pad);
}

fn result_at(i: u32) -> u32 {
    let at = window_at(i % p.windows);
    let plane = i / p.windows;
    let place = p.x_offset + (plane / p.groups) * p.x_batch + (plane % p.groups) * p.x_channel;
    var all = identity();
    var count = 0u;
    for (var d = 0u; d < KD; d += 1u) {
        var of_plane = identity();
        for (var h = 0u; h < KH; h += 1u) {
            var of_row = identity();
            for (var w = 0u; w < KW; w += 1u) {
                let source = at + vec3<u32>(d * p.dilation_d, h * p.dilation_h, w * p.dilation_w);
                if is_inside(source) {
                    of_row = combine(of_row, number_at(place + place_of(source)));
                    count += 1u;
                }
            }
            of_plane = combine(of_plane, of_row);
        }
        all = combine(all, of_plane);
    }
    if OP == MEAN {
        if COUNT_PAD == 1u {
            count = taps_before(at.x, p.pad_d, p.end_d, KD, p.dilation_d)
                * taps_before(at.y, p.pad_h, p.end_h, KH, p.dilation_h)
                * taps_before(at.z, p.pad_w, p.end_w, KW, p.dilation_w);
        }
        if count == 0u {
            return float_bits(nan(), DTYPE);
        }
        return float_bits(bitcast<f32>(all) / f32(count), DTYPE);
    }
    if DTYPE <= BF16 {
        return float_bits(bitcast<f32>(all), DTYPE);
    }
    return int_bits(bitcast<i32>(all), DTYPE);
}

@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let word = flat_group(group, groups) * 128u + local;
    let per = lanes(DTYPE);
    let numel = p.batch * p.groups * p.windows;
    if word * per >= numel {
        return;
    }
    var out = 0u;
    for (var lane = 0u; lane < per; lane += 1u) {
        let i = word * per + lane;
        if i < numel {
            out |= result_at(i) << (lane * (32u / per));
        }
    }
    y[word] = out;
}
