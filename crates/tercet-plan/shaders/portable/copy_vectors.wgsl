// copy.wgsl with 16-byte vectors. The innermost axis of x has unit stride. The innermost sizes, the
// strides, the offset and numel count vectors. A thread copies two vectors, half a grid apart.
// uses prelude.wgsl: flat_group

struct Params {
    shape: array<vec4<u32>, 2>,
    strides: array<vec4<u32>, 2>,
    numel: u32,
    offset: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read_write> y: array<vec4<u32>>;

override RANK: u32 = 2u;

fn source_of(i: u32) -> u32 {
    var rest = i;
    var at = p.offset;
    for (var k = 1u; k < RANK; k += 1u) {
        let axis = RANK - k;
        let size = p.shape[axis / 4u][axis % 4u];
        at += (rest % size) * p.strides[axis / 4u][axis % 4u];
        rest /= size;
    }
    return at + rest * p.strides[0].x;
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let first = flat_group(group, groups) * 256u + local;
    let second = first + groups.x * groups.y * 256u;
    if first >= p.numel {
        return;
    }
    let a = x[source_of(first)];
    let b = x[source_of(min(second, p.numel - 1u))];
    y[first] = a;
    if second < p.numel {
        y[second] = b;
    }
}
