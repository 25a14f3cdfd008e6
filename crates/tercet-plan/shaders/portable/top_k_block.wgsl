// Top-k, block sort: the first `take` (key, index) pairs of each chunk of 1024 pairs of a row, in
// ascending order; ties by index. Chunks that extend beyond the row are padded with the greatest
// pair. With FIRST, an element's index is its position, and `indices` is not read. A workgroup
// sorts one chunk. Only the first SORTED pairs of the chunk, a power of two, belong to a row.
// uses prelude.wgsl: flat_group

struct Params {
    rows: u32,
    len: u32,
    row_stride: u32,
    chunks: u32,
    take: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> keys: array<u32>;
@group(0) @binding(2) var<storage, read> indices: array<u32>;
@group(0) @binding(3) var<storage, read_write> out_keys: array<u32>;
@group(0) @binding(4) var<storage, read_write> out_indices: array<u32>;

override FIRST: u32 = 1u;
override SORTED: u32 = 1024u;

const CHUNK: u32 = 1024u;

var<workgroup> key: array<u32, CHUNK>;
var<workgroup> index: array<u32, CHUNK>;

fn is_before(a: u32, b: u32) -> bool {
    return key[a] < key[b] || (key[a] == key[b] && index[a] < index[b]);
}

fn order_pair(a: u32, b: u32) {
    if is_before(b, a) {
        let k = key[a];
        let i = index[a];
        key[a] = key[b];
        index[a] = index[b];
        key[b] = k;
        index[b] = i;
    }
}

// Bitonic sort (Batcher 1968) with ascending runs: a mirrored step, then halving distances.
fn sort(local: u32) {
    for (var size = 2u; size <= SORTED; size *= 2u) {
        for (var pair = local; pair < SORTED / 2u; pair += 256u) {
            let first = pair / (size / 2u) * size;
            let at = pair % (size / 2u);
            order_pair(first + at, first + size - 1u - at);
        }
        workgroupBarrier();
        for (var step = size / 4u; step > 0u; step /= 2u) {
            for (var pair = local; pair < SORTED / 2u; pair += 256u) {
                let at = pair / step * step * 2u + pair % step;
                order_pair(at, at + step);
            }
            workgroupBarrier();
        }
    }
}

// Moves the smallest pair to position 0.
fn least(local: u32) {
    for (var step = SORTED / 2u; step > 0u; step /= 2u) {
        for (var at = local; at < step; at += 256u) {
            order_pair(at, at + step);
        }
        workgroupBarrier();
    }
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let chunk = flat_group(group, count);
    if chunk >= p.rows * p.chunks {
        return;
    }
    let row = chunk / p.chunks;
    let first = chunk % p.chunks * CHUNK;
    for (var at = local; at < SORTED; at += 256u) {
        let i = first + at;
        var k = 0xffffffffu;
        var own = 0xffffffffu;
        if i < p.len {
            k = keys[row * p.row_stride + i];
            if FIRST == 1u {
                own = i;
            } else {
                own = indices[row * p.row_stride + i];
            }
        }
        key[at] = k;
        index[at] = own;
    }
    workgroupBarrier();
    if p.take == 1u {
        least(local);
    } else {
        sort(local);
    }
    for (var at = local; at < min(p.take, SORTED); at += 256u) {
        out_keys[chunk * p.take + at] = key[at];
        out_indices[chunk * p.take + at] = index[at];
    }
}
