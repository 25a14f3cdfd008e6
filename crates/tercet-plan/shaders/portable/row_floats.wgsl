// Row reductions across the threads of a row: the sum of two floats, or the maximum of one. The
// order is fixed: trees within clusters, then 16 sums over every 16th cluster, then their sum.
// uses cluster.wgsl: shuffle_xor2
// uses prelude.wgsl: fmax
// uses rows.wgsl: ALIKE, CLUSTERS, local, mate, own_row, thread

const SUM: u32 = 0u;
const GREATEST: u32 = 1u;

var<workgroup> pool: array<vec2<f32>, 272>;

fn join(a: vec2<f32>, b: vec2<f32>, how: u32) -> vec2<f32> {
    if how == GREATEST {
        return vec2<f32>(fmax(a.x, b.x), 0.0);
    }
    return a + b;
}

// All threads of the workgroup must call this function.
fn over_row(x: vec2<f32>, how: u32) -> vec2<f32> {
    var mine = x;
    for (var mask = 1u; mask < ALIKE; mask *= 2u) {
        mine = join(mine, bitcast<vec2<f32>>(shuffle_xor2(bitcast<vec2<u32>>(mine), mask)), how);
    }
    if CLUSTERS == 1u {
        return mine;
    }
    workgroupBarrier();
    pool[local] = mine;
    workgroupBarrier();
    if CLUSTERS <= 16u {
        var all = pool[mate(0u)];
        for (var k = 1u; k < CLUSTERS; k += 1u) {
            all = join(all, pool[mate(k * ALIKE)], how);
        }
        return all;
    }
    let groups = CLUSTERS / 16u;
    let tops = 256u + own_row * groups;
    if thread < groups {
        var some = pool[mate(thread * ALIKE)];
        for (var k = 1u; k < 16u; k += 1u) {
            some = join(some, pool[mate((thread + k * groups) * ALIKE)], how);
        }
        pool[tops + thread] = some;
    }
    workgroupBarrier();
    var all = pool[tops];
    for (var k = 1u; k < groups; k += 1u) {
        all = join(all, pool[tops + k], how);
    }
    return all;
}

// Accumulator for long sums: adds in blocks of 64, so that rounding errors grow slowly.
struct Total {
    low: vec2<f32>,
    high: vec2<f32>,
    count: u32,
}

fn add(total: Total, x: vec2<f32>) -> Total {
    let low = total.low + x;
    let count = total.count + 1u;
    if (count & 63u) == 0u {
        return Total(vec2<f32>(), total.high + low, count);
    }
    return Total(low, total.high, count);
}
