// ArgMax (LEAST = 0) or ArgMin of each row in one dispatch: y = index of the extreme element. Rows
// may have any stride. arg_extreme_key.wgsl defines the order of the elements.
//
// A workgroup processes part `group % parts` of a row, `chunk` elements long, and stores its (key,
// index) in `pairs`. The last workgroup of a row, found with the counter in `counts`, reduces the
// pairs and resets the counter to 0. The pairs are atomics, and each workgroup passes a storage
// barrier before it increments the counter. The kernel therefore requires a device on which this
// barrier orders memory across workgroups.
// uses arg_extreme_key.wgsl: better, element, over_row, p
// uses prelude.wgsl: flat_group
// uses rows.wgsl: THREADS, own_row, take_place, thread
// uses strided.wgsl: row_start

@group(0) @binding(2) var<storage, read_write> y: array<u32>;
@group(0) @binding(3) var<storage, read_write> pairs: array<atomic<u32>>;
// Number of finished workgroups per row.
@group(0) @binding(4) var<storage, read_write> counts: array<atomic<u32>>;

var<workgroup> is_last: u32;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) index: u32,
) {
    take_place(index);
    let flat = flat_group(group, groups);
    let row = flat / p.parts + own_row;
    let part = flat % p.parts;
    if row >= p.rows {
        return;
    }
    let none = vec2<u32>(0u, 0xffffffffu);
    var best = none;
    let start = row_start(row);
    let begin = min(part * p.chunk, p.len) + thread;
    let to = min(part * p.chunk + p.chunk, p.len);
    for (var i = begin; i < to; i += THREADS) {
        best = better(best, element(start, i));
    }
    best = over_row(best);
    let first = row * p.parts;
    if thread == 0u {
        atomicStore(&pairs[(first + part) * 2u], best.x);
        atomicStore(&pairs[(first + part) * 2u + 1u], best.y);
    }
    storageBarrier();
    if thread == 0u {
        let before = atomicAdd(&counts[row], 1u);
        is_last = u32(before + 1u == p.parts);
        if before + 1u == p.parts {
            atomicStore(&counts[row], 0u);
        }
    }
    storageBarrier();
    if workgroupUniformLoad(&is_last) == 0u {
        return;
    }
    best = none;
    for (var i = thread; i < p.parts; i += THREADS) {
        let at = (first + i) * 2u;
        best = better(best, vec2<u32>(atomicLoad(&pairs[at]), atomicLoad(&pairs[at + 1u])));
    }
    best = over_row(best);
    if thread == 0u {
        y[row] = best.y;
    }
}
