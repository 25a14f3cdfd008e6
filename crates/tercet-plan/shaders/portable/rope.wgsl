// RoPE (rotary position embedding): rotates the pairs (a, b) of the first n_rot elements of each
// head to (a cos - b sin, a sin + b cos). rope_turn.wgsl defines the pairs.
//
// The result is [batch, axis 1, axis 2, head dim]. Strides belong to views: the four axes of x;
// batch, axis 1, axis 2 and pair of the tables, 0 for broadcast axes. rope_update.wgsl uses
// `sizes`, `window` and `checks`.
// uses prelude.wgsl: bits_of, float_of, lane_of, lanes, word_of
// uses rope_turn.wgsl: DTYPE, turn_of, turned_pair

struct Params {
    sizes: array<vec4<u32>, 2>,
    window: array<vec4<u32>, 2>,
    x_offset: u32,
    x_batch: u32,
    x_first: u32,
    x_second: u32,
    x_dim: u32,
    cos_offset: u32,
    cos_batch: u32,
    cos_first: u32,
    cos_second: u32,
    cos_pair: u32,
    sin_offset: u32,
    sin_batch: u32,
    sin_first: u32,
    sin_second: u32,
    sin_pair: u32,
    first: u32,
    second: u32,
    head_dim: u32,
    n_rot: u32,
    adjacent: u32,
    numel: u32,
    checks: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read> cosines: array<u32>;
@group(0) @binding(3) var<storage, read> sines: array<u32>;

fn x_bits(at: u32) -> u32 {
    return bits_of(x[word_of(at, DTYPE)], lane_of(at, DTYPE), 4u / lanes(DTYPE));
}

fn x_element(at: u32) -> f32 {
    return float_of(x[word_of(at, DTYPE)], lane_of(at, DTYPE), DTYPE);
}

// Bits of an element of the result.
fn turned(i: u32) -> u32 {
    let d = i % p.head_dim;
    let second = i / p.head_dim % p.second;
    let first = i / p.head_dim / p.second % p.first;
    let batch = i / p.head_dim / p.second / p.first;
    let start = p.x_offset + batch * p.x_batch + first * p.x_first + second * p.x_second;
    if (d >= p.n_rot) {
        return x_bits(start + d * p.x_dim);
    }
    let turn = turn_of(d);
    let cos_at = p.cos_offset + batch * p.cos_batch + first * p.cos_first + second * p.cos_second
        + turn.pair * p.cos_pair;
    let sin_at = p.sin_offset + batch * p.sin_batch + first * p.sin_first + second * p.sin_second
        + turn.pair * p.sin_pair;
    let own = x_element(start + d * p.x_dim);
    let other = x_element(start + turn.other * p.x_dim);
    return turned_pair(own, other, cos_at, sin_at, turn.is_b);
}
