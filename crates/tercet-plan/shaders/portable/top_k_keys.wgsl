// keys[i] = sort key of element i of a strided operand of RANK axes. A thread writes one key.
// uses prelude.wgsl: flat_group, lane_of, word_of
// uses top_k_key.wgsl: DTYPE, key_of
// uses top_k_place.wgsl: place_of

struct Params {
    shape: array<vec4<u32>, 2>,
    strides: array<vec4<u32>, 2>,
    numel: u32,
    offset: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read_write> keys: array<u32>;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = flat_group(group, count) * 256u + local;
    if i >= p.numel {
        return;
    }
    let at = place_of(i);
    keys[i] = key_of(x[word_of(at, DTYPE)], lane_of(at, DTYPE));
}
