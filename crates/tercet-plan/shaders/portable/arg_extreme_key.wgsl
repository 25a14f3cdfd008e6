// Order-preserving integer keys, and the extreme (key, index) of a row for ArgMax and ArgMin. NaN
// is the most extreme element, or ranks as -inf if NAN_LOW = 1. Ties select the lower index.
// uses cluster.wgsl: shuffle_xor2
// uses prelude.wgsl: BF16, I32, I8, float_of, int_of, is_nan, lane_of, magnitude, uint_of, word_of
// uses rows.wgsl: ALIKE, CLUSTERS, local, mate, own_row, thread

struct Params {
    sizes: array<vec4<u32>, 2>,
    strides: array<vec4<u32>, 2>,
    kept: u32,
    offset: u32,
    rows: u32,
    len: u32,
    stride: u32,
    parts: u32,
    chunk: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>;

override IN: u32 = 0u;
override LEAST: u32 = 0u;
override NAN_LOW: u32 = 0u;

var<workgroup> pool: array<vec2<u32>, 272>;

const NAN_KEY: u32 = 0xffffffffu;
const MINUS_INF_KEY: u32 = 0x007fffffu;

// Integer key of an element: a more extreme element has a greater key. Equal elements, such as 0
// and -0, have equal keys.
fn key_of(word: u32, lane: u32) -> u32 {
    var key = 0u;
    if IN <= BF16 {
        let value = float_of(word, lane, IN);
        if is_nan(value) {
            return select(NAN_KEY, MINUS_INF_KEY, NAN_LOW == 1u);
        }
        let bits = select(bitcast<u32>(value), 0u, magnitude(value) == 0u);
        key = select(bits | 0x80000000u, ~bits, bits >= 0x80000000u);
    } else if IN == I32 || IN == I8 {
        key = bitcast<u32>(int_of(word, lane, IN)) ^ 0x80000000u;
    } else {
        key = uint_of(word, lane, IN);
    }
    return select(key, ~key, LEAST == 1u);
}

// Selects the more extreme of two (key, index) pairs.
fn better(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let second = b.x > a.x || (b.x == a.x && b.y < a.y);
    return select(a, b, second);
}

// Loads element `i` of the row at offset `start` as (key, index).
fn element(start: u32, i: u32) -> vec2<u32> {
    let at = start + i * p.stride;
    return vec2<u32>(key_of(x[word_of(at, IN)], lane_of(at, IN)), i);
}

// Reduces the pairs of all threads of a row. All threads of the workgroup must call this function.
fn over_row(mine: vec2<u32>) -> vec2<u32> {
    var own = mine;
    for (var mask = 1u; mask < ALIKE; mask *= 2u) {
        own = better(own, shuffle_xor2(own, mask));
    }
    pool[local] = own;
    workgroupBarrier();
    if CLUSTERS <= 16u {
        var best = pool[mate(0u)];
        for (var k = 1u; k < CLUSTERS; k += 1u) {
            best = better(best, pool[mate(k * ALIKE)]);
        }
        return best;
    }
    let groups = CLUSTERS / 16u;
    let tops = 256u + own_row * groups;
    if thread < groups {
        var some = pool[mate(thread * ALIKE)];
        for (var k = 1u; k < 16u; k += 1u) {
            some = better(some, pool[mate((thread + k * groups) * ALIKE)]);
        }
        pool[tops + thread] = some;
    }
    workgroupBarrier();
    var best = pool[tops];
    for (var k = 1u; k < groups; k += 1u) {
        best = better(best, pool[tops + k]);
    }
    return best;
}
