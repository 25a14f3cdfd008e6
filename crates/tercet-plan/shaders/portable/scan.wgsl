// Prefix scan across the threads of a row.
// uses cluster.wgsl: shuffle_xor
// uses numbers.wgsl: combine, identity
// uses row_numbers.wgsl: pool
// uses rows.wgsl: ALIKE, CLUSTERS, THREADS, local, mate, own_row, thread

struct Before {
    // Reduction results: over the threads of the row before this thread, and over all threads of
    // the row.
    own: u32,
    all: u32,
}

// All threads of the workgroup must call this function.
fn before_me(mine: u32) -> Before {
    var own = identity();
    if THREADS == 1u {
        return Before(own, mine);
    }
    // The reduction over all threads of the cluster.
    var some = mine;
    for (var mask = 1u; mask < ALIKE; mask *= 2u) {
        let other = shuffle_xor(some, mask);
        if (thread & mask) != 0u {
            own = combine(other, own);
        }
        some = combine(some, other);
    }
    if CLUSTERS == 1u {
        return Before(own, some);
    }
    workgroupBarrier();
    pool[local] = some;
    workgroupBarrier();
    let cluster = thread / ALIKE;
    let first = cluster & ~15u;
    var before = identity();
    for (var k = first; k < cluster; k += 1u) {
        before = combine(before, pool[mate(k * ALIKE)]);
    }
    if CLUSTERS <= 16u {
        var all = before;
        for (var k = cluster; k < CLUSTERS; k += 1u) {
            all = combine(all, pool[mate(k * ALIKE)]);
        }
        return Before(combine(before, own), all);
    }
    let groups = CLUSTERS / 16u;
    let tops = 256u + own_row * groups;
    if (thread + 1u) % (16u * ALIKE) == 0u {
        pool[tops + cluster / 16u] = combine(before, some);
    }
    workgroupBarrier();
    var all = identity();
    var earlier = identity();
    for (var k = 0u; k < groups; k += 1u) {
        if k * 16u == first {
            earlier = all;
        }
        all = combine(all, pool[tops + k]);
    }
    return Before(combine(combine(earlier, before), own), all);
}
