// Data check: for each value x0, x1..., record = [position + 1, element] of the first element
// outside its range (see check_bad.wgsl), or [0, 0]. Group g checks all elements of value g; its
// record starts at word `records[g]`. With KEEP, a record that already names an element is not
// changed.
// uses check_bad.wgsl: is_bad

override KEEP: u32 = 0u;

struct Params {
    counts: array<vec4<u32>, 2>,
    lens: array<vec4<u32>, 2>,
    kinds: array<vec4<u32>, 2>,
    records: array<vec4<u32>, 2>,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x0: array<u32>;
@group(0) @binding(2) var<storage, read> x1: array<u32>;
@group(0) @binding(3) var<storage, read> x2: array<u32>;
@group(0) @binding(4) var<storage, read> x3: array<u32>;
@group(0) @binding(5) var<storage, read_write> record: array<u32>;

var<workgroup> first: atomic<u32>;

fn element(value: u32, i: u32) -> u32 {
    switch value {
        case 0u: { return x0[i]; }
        case 1u: { return x1[i]; }
        case 2u: { return x2[i]; }
        default: { return x3[i]; }
    }
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let value = min(group.x, 3u);
    if local == 0u {
        atomicStore(&first, 0xffffffffu);
    }
    workgroupBarrier();
    let count = p.counts[0][value];
    let len = p.lens[0][value];
    let kind = p.kinds[0][value];
    for (var i = local; i < count; i += 256u) {
        if is_bad(kind, element(value, i), len) {
            atomicMin(&first, i);
            break;
        }
    }
    workgroupBarrier();
    if local == 0u {
        let at = atomicLoad(&first);
        let to = p.records[0][value];
        if KEEP == 0u || record[to] == 0u {
            if at < count {
                record[to] = at + 1u;
                record[to + 1u] = element(value, at);
            } else {
                record[to] = 0u;
                record[to + 1u] = 0u;
            }
        }
    }
}
