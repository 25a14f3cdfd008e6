// Row reductions of 32-bit numbers across the threads of a row (see numbers.wgsl). The order is
// fixed: trees within clusters, then 16 results over every 16th cluster of a row, then their
// result.
// uses cluster.wgsl: shuffle_xor
// uses numbers.wgsl: combine
// uses rows.wgsl: ALIKE, CLUSTERS, local, mate, own_row, thread

var<workgroup> pool: array<u32, 272>;

// All threads of the workgroup must call this function.
fn over_row(mine: u32) -> u32 {
    var own = mine;
    for (var mask = 1u; mask < ALIKE; mask *= 2u) {
        own = combine(own, shuffle_xor(own, mask));
    }
    if CLUSTERS == 1u {
        return own;
    }
    workgroupBarrier();
    pool[local] = own;
    workgroupBarrier();
    if CLUSTERS <= 16u {
        var all = pool[mate(0u)];
        for (var k = 1u; k < CLUSTERS; k += 1u) {
            all = combine(all, pool[mate(k * ALIKE)]);
        }
        return all;
    }
    let groups = CLUSTERS / 16u;
    let tops = 256u + own_row * groups;
    if thread < groups {
        var some = pool[mate(thread * ALIKE)];
        for (var k = 1u; k < 16u; k += 1u) {
            some = combine(some, pool[mate((thread + k * groups) * ALIKE)]);
        }
        pool[tops + thread] = some;
    }
    workgroupBarrier();
    var all = pool[tops];
    for (var k = 1u; k < groups; k += 1u) {
        all = combine(all, pool[tops + k]);
    }
    return all;
}
