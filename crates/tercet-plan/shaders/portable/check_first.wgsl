// Data check, reduction: record = [position + 1, element] of the first of `parts` positions in
// `found`, or [0, 0] if none is below `count`. One workgroup processes all positions. With KEEP, a
// record that already names an element is not changed.

override KEEP: u32 = 0u;

struct Params {
    count: u32,
    parts: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read> found: array<u32>;
@group(0) @binding(3) var<storage, read_write> record: array<u32>;

var<workgroup> first: atomic<u32>;

@compute @workgroup_size(256)
fn main(@builtin(local_invocation_index) local: u32) {
    if local == 0u {
        atomicStore(&first, 0xffffffffu);
    }
    workgroupBarrier();
    for (var part = local; part < p.parts; part += 256u) {
        atomicMin(&first, found[part]);
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
