// record = [position + 1, element] of the first element outside its range (see check_bad.wgsl), or [0, 0].
// One workgroup walks all elements. With KEEP a record that names an element stays.
// uses check_bad.wgsl: is_bad

override KEEP: u32 = 0u;

struct Params {
    count: u32,
    len: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read_write> record: array<u32>;

var<workgroup> first: atomic<u32>;

@compute @workgroup_size(256)
fn main(@builtin(local_invocation_index) local: u32) {
    if local == 0u {
        atomicStore(&first, 0xffffffffu);
    }
    workgroupBarrier();
    for (var i = local; i < p.count; i += 256u) {
        if is_bad(x[i], p.len) {
            atomicMin(&first, i);
            break;
        }
    }
    workgroupBarrier();
    if local == 0u {
        let at = atomicLoad(&first);
        if KEEP == 0u || record[0] == 0u {
            if at < p.count {
                record[0] = at + 1u;
                record[1] = x[at];
            } else {
                record[0] = 0u;
                record[1] = 0u;
            }
        }
    }
}
