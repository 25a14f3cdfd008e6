// starts[i] = first rank of `updates` sorted keys whose key is at least i, for `count` values of i.
// uses prelude.wgsl: flat_group
// uses scatter_rank.wgsl: rank_of

struct Params {
    count: u32,
    updates: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> keys: array<u32>;
@group(0) @binding(2) var<storage, read_write> starts: array<u32>;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let at = flat_group(group, count) * 256u + local;
    if at < p.count {
        starts[at] = rank_of(at, p.updates);
    }
}
