// One step of a global-memory bitonic sort of rows of (key, index) pairs: orders pairs at distance
// `step`, or mirrored pairs within runs of 2 step if `mirrored`. A thread orders one pair.
// uses prelude.wgsl: flat_group

struct Params {
    pairs: u32,
    step: u32,
    mirrored: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read_write> keys: array<u32>;
@group(0) @binding(2) var<storage, read_write> indices: array<u32>;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let pair = flat_group(group, count) * 256u + local;
    if pair >= p.pairs {
        return;
    }
    let first = pair / p.step * p.step * 2u;
    let at = pair % p.step;
    let a = first + at;
    let b = first + select(at + p.step, 2u * p.step - 1u - at, p.mirrored == 1u);
    let key_a = keys[a];
    let key_b = keys[b];
    let index_a = indices[a];
    let index_b = indices[b];
    if key_b < key_a || (key_b == key_a && index_b < index_a) {
        keys[a] = key_b;
        keys[b] = key_a;
        indices[a] = index_b;
        indices[b] = index_a;
    }
}
