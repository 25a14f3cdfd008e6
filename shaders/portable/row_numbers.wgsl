// What the invocations of a row make of their numbers together (see numbers.wgsl). The order is fixed: 16
// results of every 16th invocation of a row, then theirs.

var<workgroup> pool: array<u32, 272>;

// Every invocation of the workgroup must call this.
fn over_row(mine: u32) -> u32 {
    workgroupBarrier();
    pool[local] = mine;
    workgroupBarrier();
    if THREADS <= 16u {
        var all = pool[mate(0u)];
        for (var k = 1u; k < THREADS; k += 1u) {
            all = combine(all, pool[mate(k)]);
        }
        return all;
    }
    let groups = THREADS / 16u;
    let tops = 256u + own_row * groups;
    if thread < groups {
        var some = pool[mate(thread)];
        for (var k = 1u; k < 16u; k += 1u) {
            some = combine(some, pool[mate(thread + k * groups)]);
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
