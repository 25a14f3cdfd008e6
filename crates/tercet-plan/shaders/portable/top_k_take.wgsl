// Top-k, output: values[o, r, i] = the element of row (o, i) of a strided operand that `sorted` has
// at rank r, and its index. Values are copied bit for bit. `shape` and `strides` are those of the
// RANK row axes. A thread writes one word of values, 4 / ELEM_BYTES elements, and their indices.
// uses prelude.wgsl: bits_of, flat_group
// uses top_k_place.wgsl: place_of

struct Params {
    shape: array<vec4<u32>, 2>,
    strides: array<vec4<u32>, 2>,
    numel: u32,
    offset: u32,
    along: u32,
    inner: u32,
    k: u32,
    row_stride: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read> sorted: array<u32>;
@group(0) @binding(3) var<storage, read_write> values: array<u32>;
@group(0) @binding(4) var<storage, read_write> indices: array<u32>;

override ELEM_BYTES: u32 = 4u;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let word = flat_group(group, count) * 256u + local;
    let lanes = 4u / ELEM_BYTES;
    if word * lanes >= p.numel {
        return;
    }
    var out = 0u;
    for (var lane = 0u; lane < lanes; lane += 1u) {
        let i = word * lanes + lane;
        if i < p.numel {
            let rank = i / p.inner % p.k;
            let row = i / (p.inner * p.k) * p.inner + i % p.inner;
            let index = sorted[row * p.row_stride + rank];
            let at = place_of(row) + index * p.along;
            out |= bits_of(x[at / lanes], at % lanes, ELEM_BYTES) << (lane * ELEM_BYTES * 8u);
            indices[i] = index;
        }
    }
    values[word] = out;
}
