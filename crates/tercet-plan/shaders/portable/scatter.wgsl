// Scatter: y = data in slices of `inner` elements. Each slice receives the updates with its key, in
// order. With REDUCE the elements are combined, otherwise the last update wins. Keys of the
// `updates` slices are sorted; places[r] is the update with rank r. Without DATA, every slice
// starts with the identity of the reduction. With STARTS, the third argument contains the first
// rank with key >= i for each slice i and one more (scatter_starts.wgsl). Large slices then search
// once, not once per element.
//
// Combined numbers are 32 bits wide: F32 for floats, wrapping integers otherwise. Elements without
// updates keep their bits. A thread writes one word, so no two threads combine the same element and
// the order is fixed.
// uses numbers.wgsl: combine, identity, number_of
// uses prelude.wgsl: BF16, bits_of, flat_group, float_bits, int_bits, lane_of, lane_shift, lanes, word_of
// uses scatter_rank.wgsl: rank_of

struct Params {
    numel: u32,
    inner: u32,
    updates: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> data: array<u32>;
@group(0) @binding(2) var<storage, read> keys: array<u32>;
@group(0) @binding(3) var<storage, read> places: array<u32>;
@group(0) @binding(4) var<storage, read> updates: array<u32>;
@group(0) @binding(5) var<storage, read_write> y: array<u32>;

override IN: u32 = 0u;
override REDUCE: u32 = 1u;
override DATA: u32 = 1u;
override STARTS: u32 = 0u;

// First rank whose key is at least `slice`.
fn start_of(slice: u32) -> u32 {
    if STARTS == 1u {
        return keys[slice];
    }
    return rank_of(slice, p.updates);
}

// True if the update of this rank belongs to the slice. `rank` is not before the slice's first
// rank, and the slice ends before `end`.
fn is_of(rank: u32, slice: u32, end: u32) -> bool {
    if STARTS == 1u {
        return rank < end;
    }
    return rank < p.updates && keys[min(rank, max(p.updates, 1u) - 1u)] == slice;
}

// Bits of a number as an element, in the low bits of the word.
fn bits_from(number: u32) -> u32 {
    if IN <= BF16 {
        return float_bits(bitcast<f32>(number), IN);
    }
    return int_bits(bitcast<i32>(number), IN);
}

fn update_at(rank: u32, within: u32) -> u32 {
    return places[rank] * p.inner + within;
}

// Bits of result element `i`.
fn bits_at(i: u32) -> u32 {
    let bytes = 4u >> lane_shift(IN);
    let slice = i / p.inner;
    let within = i % p.inner;
    if REDUCE == 0u {
        let after = start_of(slice + 1u);
        var before = 0u;
        if STARTS == 1u {
            before = start_of(slice);
        }
        if after > before && (STARTS == 1u || keys[max(after, 1u) - 1u] == slice) {
            let at = update_at(max(after, 1u) - 1u, within);
            return bits_of(updates[word_of(at, IN)], lane_of(at, IN), bytes);
        }
        return bits_of(data[word_of(i, IN)], lane_of(i, IN), bytes);
    }
    let first = start_of(slice);
    var end = p.updates;
    if STARTS == 1u {
        end = start_of(slice + 1u);
    }
    var so_far = identity();
    if DATA == 1u {
        if !is_of(first, slice, end) {
            return bits_of(data[word_of(i, IN)], lane_of(i, IN), bytes);
        }
        so_far = number_of(data[word_of(i, IN)], lane_of(i, IN), IN);
    }
    for (var rank = first; is_of(rank, slice, end); rank += 1u) {
        let at = update_at(rank, within);
        so_far = combine(so_far, number_of(updates[word_of(at, IN)], lane_of(at, IN), IN));
    }
    return bits_from(so_far);
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let word = flat_group(group, count) * 256u + local;
    let per = lanes(IN);
    if word * per >= p.numel {
        return;
    }
    var out = 0u;
    for (var lane = 0u; lane < per; lane += 1u) {
        let i = word * per + lane;
        if i < p.numel {
            out |= bits_at(i) << ((32u / per) * lane);
        }
    }
    y[word] = out;
}
