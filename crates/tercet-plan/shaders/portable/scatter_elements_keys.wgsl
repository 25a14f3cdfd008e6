// ScatterElements keys: keys[i] = target element of update i in a dense tensor. Along one axis the
// index gives the position; along the others it is the position of the update. `shape` contains the
// RANK axes of the indices, `strides` those of the tensor. Negative indices count from the end.
// Out-of-range indices are clamped, and a separate data check fails the run. A thread writes one
// key.
// uses named.wgsl: named
// uses prelude.wgsl: flat_group

struct Params {
    shape: array<vec4<u32>, 2>,
    strides: array<vec4<u32>, 2>,
    numel: u32,
    axis: u32,
    len: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> idx: array<u32>;
@group(0) @binding(2) var<storage, read_write> keys: array<u32>;

override RANK: u32 = 2u;

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
    var rest = i;
    var at = 0u;
    for (var k = 0u; k < RANK; k += 1u) {
        let axis = RANK - (k + 1u);
        let size = p.shape[axis / 4u][axis % 4u];
        var place = rest % size;
        rest /= size;
        if axis == p.axis {
            place = 0u;
            if p.len > 0u {
                place = named(idx[i], p.len);
            }
        }
        at += place * p.strides[axis / 4u][axis % 4u];
    }
    keys[i] = at;
}
