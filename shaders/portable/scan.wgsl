// What the invocations of a row find out together for its scan.

struct Before {
    // The result over the invocations of the row before this one, and over all.
    own: u32,
    all: u32,
}

// Every invocation of the workgroup must call this.
fn before_me(mine: u32) -> Before {
    var own = identity();
    if THREADS == 1u {
        return Before(own, mine);
    }
    workgroupBarrier();
    pool[local] = mine;
    workgroupBarrier();
    let first = thread & ~15u;
    for (var k = first; k < thread; k += 1u) {
        own = combine(own, pool[mate(k)]);
    }
    if THREADS <= 16u {
        var all = own;
        for (var k = thread; k < THREADS; k += 1u) {
            all = combine(all, pool[mate(k)]);
        }
        return Before(own, all);
    }
    let groups = THREADS / 16u;
    let tops = 256u + own_row * groups;
    if (thread & 15u) == 15u {
        pool[tops + thread / 16u] = combine(own, mine);
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
    return Before(combine(earlier, own), all);
}
