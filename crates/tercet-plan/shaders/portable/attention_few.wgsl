// Shared code of decode attention with few queries: constants, shared memory for maxima and
// weights, and the setup of a key range.
// uses attention_common.wgsl: Four
// uses prelude.wgsl: as_float

@group(0) @binding(7) var<storage, read_write> stats: array<u32>;

// Rows per workgroup: 1, 2, 4 or 8.
override ROWS: u32 = 8u;
// Threads that share a key in the value phase: a power of two from 4 to 256.
override COLS: u32 = 32u;
// 1: y receives the partial result of one of several key ranges.
override SPLIT: u32 = 0u;

var<workgroup> weights: array<f32, 512>;
var<workgroup> tops: array<atomic<i32>, 8>;

// Loads the maximum scores of four rows.
fn tops_of(first: u32) -> vec4<i32> {
    var out = vec4<i32>(UNSEEN);
    out.x = atomicLoad(&tops[first]);
    out.y = atomicLoad(&tops[first + 1u]);
    out.z = atomicLoad(&tops[first + 2u]);
    out.w = atomicLoad(&tops[first + 3u]);
    return out;
}

fn rescales(before: vec4<i32>, now: vec4<i32>) -> vec4<f32> {
    return vec4<f32>(
        rescale(before.x, center_of(now.x)),
        rescale(before.y, center_of(now.y)),
        rescale(before.z, center_of(now.z)),
        rescale(before.w, center_of(now.w)),
    );
}

// Loads the softmax weights of four rows for one of the 64 keys.
fn weights_of(key: u32, first: u32) -> vec4<f32> {
    let at = key * ROWS + first;
    var out = vec4<f32>(as_float(0x80000000u));
    out.x = weights[at];
    if (ROWS > 1u) {
        out.y = weights[at + 1u];
    }
    if (ROWS > 2u) {
        out.z = weights[at + 2u];
        out.w = weights[at + 3u];
    }
    return out;
}

fn pick(sum: Four, i: u32) -> vec4<f32> {
    return select(select(sum.a, sum.b, i == 1u), select(sum.c, sum.d, i == 3u), i >= 2u);
}
