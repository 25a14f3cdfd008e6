// RoPE and KV cache append in one dispatch, before the attention of new tokens. Rotated queries are
// written to a dense tensor (see rope.wgsl). Rotated keys and unchanged values are written to the
// same rows of two states. The states are dense, with heads of the same size, a multiple of a word.
// Operands have the dtype FROM, and all results are rounded once, to DTYPE.
// If the record of a data check reports a failed run, nothing is written. A thread writes the same
// word of HEADS adjacent heads: first queries, then keys, then values.
// uses prelude.wgsl: bits_of, flat_group, float_bits, float_of, lane_of, lanes, word_of
// uses rope_append_scatter.wgsl or rope_append_window.wgsl: cache_row
// uses rope_turn.wgsl: DTYPE, turn_of, turned_pair

struct Params {
    sizes: array<vec4<u32>, 2>,
    window: array<vec4<u32>, 2>,
    q_offset: u32,
    q_batch: u32,
    q_first: u32,
    q_second: u32,
    q_dim: u32,
    k_offset: u32,
    k_batch: u32,
    k_first: u32,
    k_second: u32,
    k_dim: u32,
    v_offset: u32,
    v_batch: u32,
    v_first: u32,
    v_second: u32,
    v_dim: u32,
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
    q_heads: u32,
    k_heads: u32,
    n_rot: u32,
    adjacent: u32,
    q_numel: u32,
    k_numel: u32,
    checks: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> q: array<u32>;
@group(0) @binding(2) var<storage, read> k: array<u32>;
@group(0) @binding(3) var<storage, read> v: array<u32>;
@group(0) @binding(4) var<storage, read> cosines: array<u32>;
@group(0) @binding(5) var<storage, read> sines: array<u32>;
@group(0) @binding(6) var<storage, read> starts: array<u32>;
@group(0) @binding(7) var<storage, read_write> turned_q: array<u32>;
@group(0) @binding(8) var<storage, read_write> keys: array<u32>;
@group(0) @binding(9) var<storage, read_write> values: array<u32>;
@group(0) @binding(10) var<storage, read> faults: array<u32>;

// The row of a head that is not stored.
const NO_ROW: u32 = 0xffffffffu;

// Elements of a head. The number is a constant because divisions by values unknown to the compiler
// are slow.
override HEAD: u32 = 64u;
// Heads per thread: a divisor of the query heads and of the KV heads.
override HEADS: u32 = 1u;
override FROM: u32 = 0u;

// What this thread writes: 0: queries, 1: keys, 2: values. `start` and `dim` are the offset of the
// head and the stride of its elements.
var<private> part: u32;
var<private> start: u32;
var<private> dim: u32;
// Offsets of the cosine and sine tables of the head's position.
var<private> cos_start: u32;
var<private> sin_start: u32;

fn word_at(at: u32) -> u32 {
    let word = word_of(at, FROM);
    if part == 0u {
        return q[word];
    }
    if part == 1u {
        return k[word];
    }
    return v[word];
}

fn element(d: u32) -> f32 {
    let at = start + d * dim;
    return float_of(word_at(at), lane_of(at, FROM), FROM);
}

// Bits of element d of the head.
fn bits_at(d: u32) -> u32 {
    if part == 2u || d >= p.n_rot {
        let at = start + d * dim;
        if FROM != DTYPE {
            return float_bits(element(d), DTYPE);
        }
        return bits_of(word_at(at), lane_of(at, DTYPE), 4u / lanes(DTYPE));
    }
    let turn = turn_of(d);
    let cos_at = cos_start + turn.pair * p.cos_pair;
    let sin_at = sin_start + turn.pair * p.sin_pair;
    return turned_pair(element(d), element(turn.other), cos_at, sin_at, turn.is_b);
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let n = lanes(DTYPE);
    var i = (flat_group(group, count) * 256u + local) * n;
    let q_numel = p.q_numel / HEADS;
    let k_numel = p.k_numel / HEADS;
    if i >= q_numel + 2u * k_numel {
        return;
    }
    // The fault records are tested right before the write, so that no earlier instruction waits for
    // their loads.
    var failed = 0u;
    for (var check = 0u; check < p.checks; check += 1u) {
        failed |= faults[check * 64u];
    }
    var heads = p.q_heads;
    var strides = vec3<u32>(p.q_batch, p.q_first, p.q_second);
    start = p.q_offset;
    dim = p.q_dim;
    if i >= q_numel {
        i -= q_numel;
        part = 1u;
        heads = p.k_heads;
        strides = vec3<u32>(p.k_batch, p.k_first, p.k_second);
        start = p.k_offset;
        dim = p.k_dim;
        if i >= k_numel {
            i -= k_numel;
            part = 2u;
            strides = vec3<u32>(p.v_batch, p.v_first, p.v_second);
            start = p.v_offset;
            dim = p.v_dim;
        }
    }
    let d = i % HEAD;
    let some = i / HEAD;
    let across = heads / HEADS;
    let second = some % across * HEADS;
    let first = some / across % p.first;
    let batch = some / across / p.first;
    start += batch * strides.x + first * strides.y + second * strides.z;
    cos_start = p.cos_offset + batch * p.cos_batch + first * p.cos_first + second * p.cos_second;
    sin_start = p.sin_offset + batch * p.sin_batch + first * p.sin_first + second * p.sin_second;
    var bits: array<u32, HEADS>;
    for (var h = 0u; h < HEADS; h += 1u) {
        bits[h] = bits_at(d);
        if n == 2u {
            bits[h] |= bits_at(d + 1u) << 16u;
        }
        start += strides.z;
        cos_start += p.cos_second;
        sin_start += p.sin_second;
    }
    if failed != 0u {
        return;
    }
    var row = some * HEADS;
    if part != 0u {
        row = cache_row(batch, first, second);
        if row == NO_ROW {
            return;
        }
    }
    for (var h = 0u; h < HEADS; h += 1u) {
        let at = ((row + h) * HEAD + d) / n;
        if part == 0u {
            turned_q[at] = bits[h];
        } else if part == 1u {
            keys[at] = bits[h];
        } else {
            values[at] = bits[h];
        }
    }
}
