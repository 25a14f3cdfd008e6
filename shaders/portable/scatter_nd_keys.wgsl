// ScatterND keys: keys[i] = index of the slice that tuple i of COORDINATES indices selects, with
// axes of sizes `lens`. Negative coordinates count from the end. Out-of-range coordinates are
// clamped, and a separate data check fails the run. A thread writes one key.
// uses named.wgsl: named
// uses prelude.wgsl: flat_group

struct Params {
    lens: array<vec4<u32>, 2>,
    rows: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> idx: array<u32>;
@group(0) @binding(2) var<storage, read_write> keys: array<u32>;

override COORDINATES: u32 = 1u;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let row = flat_group(group, count) * 256u + local;
    if row >= p.rows {
        return;
    }
    var at = 0u;
    for (var c = 0u; c < COORDINATES; c += 1u) {
        let len = p.lens[c / 4u][c % 4u];
        if len > 0u {
            at = at * len + named(idx[row * COORDINATES + c], len);
        }
    }
    keys[row] = at;
}
