// Top-k by rank counting: the first `k` elements of each row of at most 256 words, in order, and
// their indices; ties by index. `shape` and `strides` are those of the RANK row axes. A row is
// processed by LANES threads, a power of two and at least 8, one element each. An element's output
// position is the number of elements before it. Consecutive ranks are `inner` elements apart in the
// results. With SOFTMAX, the elements are the F32 softmax of each row. With SHARES, the results are
// divided by their sum.
// uses prelude.wgsl: flat_group, nan
// uses softmax_value.wgsl: Row, part_of, value_of
// uses top_k_key.wgsl: key_of
// uses top_k_place.wgsl: place_of

struct Params {
    shape: array<vec4<u32>, 2>,
    strides: array<vec4<u32>, 2>,
    rows: u32,
    offset: u32,
    along: u32,
    len: u32,
    inner: u32,
    k: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read_write> values: array<u32>;
@group(0) @binding(3) var<storage, read_write> indices: array<u32>;

override LANES: u32 = 128u;
override SOFTMAX: u32 = 0u;
override SHARES: u32 = 0u;

const WORKGROUP: u32 = 256u;

const EACH: u32 = 8u;

var<workgroup> keys: array<u32, WORKGROUP>;
var<private> others: array<u32, EACH>;

// Bits of one softmax element of the row at `first` in `keys`. Every thread sums the whole row, so
// that all obtain the same result.
fn softmax_of(word: u32, is_some: bool, local: u32, first: u32) -> u32 {
    let below = 0xff800000u;
    keys[local] = select(below, word, is_some);
    workgroupBarrier();
    var greatest = bitcast<f32>(below);
    var is_nan = false;
    for (var i = 0u; i < LANES; i += EACH) {
        for (var j = 0u; j < EACH; j += 1u) {
            others[j] = keys[first + i + j];
        }
        for (var j = 0u; j < EACH; j += 1u) {
            let odd = (others[j] & 0x7fffffffu) > 0x7f800000u;
            is_nan = is_nan || odd;
            greatest = max(greatest, bitcast<f32>(select(others[j], below, odd)));
        }
    }
    if is_nan {
        greatest = nan();
    }
    let part = part_of(bitcast<f32>(word), greatest);
    workgroupBarrier();
    keys[local] = select(0u, bitcast<u32>(part), is_some);
    workgroupBarrier();
    var sum = 0.0;
    for (var i = 0u; i < LANES; i += EACH) {
        for (var j = 0u; j < EACH; j += 1u) {
            others[j] = keys[first + i + j];
        }
        for (var j = 0u; j < EACH; j += 1u) {
            sum += bitcast<f32>(others[j]);
        }
    }
    workgroupBarrier();
    return bitcast<u32>(value_of(part, Row(greatest, 1.0 / sum)));
}

// Number of elements that precede this one in the row at `first` in `keys`.
fn rank_of(key: u32, own: u32, first: u32) -> u32 {
    var rank = 0u;
    for (var i = 0u; i < LANES; i += EACH) {
        // All keys are loaded together to hide the latency.
        for (var j = 0u; j < EACH; j += 1u) {
            others[j] = keys[first + i + j];
        }
        for (var j = 0u; j < EACH; j += 1u) {
            let is_before = others[j] < key || (others[j] == key && i + j < own);
            rank += select(0u, 1u, is_before);
        }
    }
    return rank;
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let row = flat_group(group, count) * (WORKGROUP / LANES) + local / LANES;
    let own = local % LANES;
    let is_some = row < p.rows && own < p.len;
    var word = 0u;
    var key = 0u;
    if is_some {
        word = x[place_of(row) + own * p.along];
    }
    let first = local - own;
    if SOFTMAX == 1u {
        word = softmax_of(word, is_some, local, first);
    }
    if is_some {
        key = key_of(word, 0u);
    }
    // Padding beyond the row sorts last.
    keys[local] = select(0xffffffffu, key, is_some);
    workgroupBarrier();
    var rank = p.k;
    if is_some {
        rank = rank_of(key, own, first);
    }
    if SHARES == 1u {
        workgroupBarrier();
        if rank < p.k {
            keys[first + rank] = word;
        }
        workgroupBarrier();
        var sum = 0.0;
        for (var i = 0u; i < p.k; i += 1u) {
            sum += bitcast<f32>(keys[first + i]);
        }
        word = bitcast<u32>(bitcast<f32>(word) / sum);
    }
    if rank < p.k {
        let to = (row / p.inner * p.k + rank) * p.inner + row % p.inner;
        values[to] = word;
        indices[to] = own;
    }
}
