// Data check, first stage: found[g] = first position in part g of x that is out of range (see
// check_bad.wgsl), or 2^32 - 1. Elements form rows of `columns`, and each column has a separate
// length. A workgroup checks the 4096 elements of one part.
// uses check_bad.wgsl: is_bad
// uses prelude.wgsl: flat_group

struct Params {
    lens: array<vec4<u32>, 2>,
    count: u32,
    columns: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read_write> found: array<u32>;

override KIND: u32 = 0u;

const PART: u32 = 4096u;

var<workgroup> first: atomic<u32>;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let part = flat_group(group, groups);
    if local == 0u {
        atomicStore(&first, 0xffffffffu);
    }
    workgroupBarrier();
    // The clamp makes parts beyond the end empty.
    let begin = min(part, p.count / PART + 1u) * PART;
    for (var k = local; k < PART; k += 256u) {
        let i = begin + k;
        if i >= p.count {
            break;
        }
        let column = i % p.columns;
        if is_bad(KIND, x[i], p.lens[column / 4u][column % 4u]) {
            atomicMin(&first, i);
            break;
        }
    }
    workgroupBarrier();
    if local == 0u && begin < p.count {
        found[part] = atomicLoad(&first);
    }
}
