// Scatter into a state, in place: y in slices of `inner` units of ELEM_BYTES. Each slice receives
// the update with its key; scatter_nd_keys.wgsl leaves at most one. Other slices are not modified.
// If the record of a data check reports a failed run, nothing is written.
//
// If units are words, a workgroup writes BLOCK units of one update. Smaller units may share words
// between slices, so one workgroup writes all updates in order.
// uses prelude.wgsl: bits_of, flat_group

struct Params {
    rows: u32,
    inner: u32,
    blocks: u32,
    checks: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> updates: array<u32>;
@group(0) @binding(2) var<storage, read> keys: array<u32>;
@group(0) @binding(3) var<storage, read_write> y: array<u32>;
@group(0) @binding(4) var<storage, read> faults: array<u32>;

override ELEM_BYTES: u32 = 4u;

const WORKGROUP: u32 = 256u;
const BLOCK: u32 = 1024u;

// The key of an update that a later one overwrites.
const NO_KEY: u32 = 0xffffffffu;

// Writes the elements of an update that word `word` of y contains.
fn write_word(word: u32, row: u32) {
    let lanes = 4u / ELEM_BYTES;
    let first = keys[row] * p.inner;
    var bits = y[word];
    for (var lane = 0u; lane < lanes; lane += 1u) {
        let i = word * lanes + lane;
        if i >= first && i - first < p.inner {
            let at = row * p.inner + (i - first);
            let shift = lane * ELEM_BYTES * 8u;
            let mask = bits_of(0xffffffffu, 0u, ELEM_BYTES) << shift;
            bits = (bits & ~mask) | (bits_of(updates[at / lanes], at % lanes, ELEM_BYTES) << shift);
        }
    }
    y[word] = bits;
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    for (var check = 0u; check < p.checks; check += 1u) {
        if faults[check * 64u] != 0u {
            return;
        }
    }
    if ELEM_BYTES < 4u {
        let lanes = 4u / ELEM_BYTES;
        for (var row = 0u; row < p.rows; row += 1u) {
            if keys[row] == NO_KEY {
                continue;
            }
            let first = keys[row] * p.inner;
            let end = first + p.inner;
            for (var word = first / lanes + local; word * lanes < end; word += WORKGROUP) {
                write_word(word, row);
            }
            storageBarrier();
        }
        return;
    }
    let item = flat_group(group, count);
    let row = item / p.blocks;
    if row >= p.rows {
        return;
    }
    let key = keys[row];
    if key == NO_KEY {
        return;
    }
    let begin = item % p.blocks * BLOCK;
    for (var i = begin + local; i < min(begin + BLOCK, p.inner); i += WORKGROUP) {
        y[key * p.inner + i] = updates[row * p.inner + i];
    }
}
