// OneHot: y[i, j] = `one` if index i selects j of `depth`, else 0, bit for bit. Negative indices
// count from the end. A thread writes one word: 4 / ELEM_BYTES elements.
// uses named.wgsl: named
// uses prelude.wgsl: flat_group

struct Params {
    numel: u32,
    depth: u32,
    one: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> idx: array<u32>;
@group(0) @binding(2) var<storage, read_write> y: array<u32>;

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
        if i < p.numel && named(idx[i / p.depth], p.depth) == i % p.depth {
            out |= p.one << (lane * ELEM_BYTES * 8u);
        }
    }
    y[word] = out;
}
