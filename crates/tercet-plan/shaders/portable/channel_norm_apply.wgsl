// Norm over channels: y = normalized(x) * gamma + beta of [batches, channels, places], with gamma
// and beta per channel. channel_norm_stats.wgsl computes the row statistics. A row is a group of
// `each` channels (BY_PLACE = 0) or of `each` places (BY_PLACE = 1) of a batch entry. x has strides
// for batches, channels and places. A thread writes one word.
// uses norm_value.wgsl: Row, normalized
// uses prelude.wgsl: flat_group, float_bits, float_of, lane_of, lanes, word_of

struct Params {
    numel: u32,
    offset: u32,
    along_batches: u32,
    along_channels: u32,
    along_places: u32,
    channels: u32,
    places: u32,
    each: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read> gamma: array<u32>;
@group(0) @binding(3) var<storage, read> beta: array<u32>;
@group(0) @binding(4) var<storage, read> stats: array<u32>;
@group(0) @binding(5) var<storage, read_write> y: array<u32>;

override DTYPE: u32 = 0u;
override BETA: u32 = 0u;
override BY_PLACE: u32 = 0u;

fn stat(row: u32, which: u32) -> f32 {
    return bitcast<f32>(stats[row * 4u + which]);
}

fn result(i: u32) -> f32 {
    let place = i % p.places;
    let c = i / p.places % p.channels;
    let n = i / p.places / p.channels;
    var row = n * p.places + place;
    if BY_PLACE == 0u {
        row = n * (p.channels / p.each) + c / p.each;
    }
    // Strides may be negative: the sum wraps modulo 2^32.
    let at = p.offset + n * p.along_batches + c * p.along_channels + place * p.along_places;
    let v = float_of(x[word_of(at, DTYPE)], lane_of(at, DTYPE), DTYPE);
    let about = Row(stat(row, 0u), stat(row, 1u), stat(row, 2u), stat(row, 3u));
    let word = word_of(c, DTYPE);
    let lane = lane_of(c, DTYPE);
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
    if word * per >= p.numel {
        return;
    }
    var out = 0u;
    for (var lane = 0u; lane < per; lane += 1u) {
        let i = word * per + lane;
        if i < p.numel {
            out |= float_bits(result(i), DTYPE) << (16u * (lane & 1u));
        }
    }
    y[word] = out;
}
