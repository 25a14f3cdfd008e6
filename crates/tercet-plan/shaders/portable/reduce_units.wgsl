// Reduces the units of a row with arbitrary axes and strides: see reduce.wgsl.
// uses numbers.wgsl: combine, identity, number_of
// uses prelude.wgsl: lane_of, word_of
// uses reduce.wgsl: IN, PER, p
// uses rows.wgsl: THREADS

@group(0) @binding(1) var<storage, read> x: array<u32>;

// Offset of element `i` of a row, relative to the row's first element.
fn step_to(i: u32) -> u32 {
    var rest = i;
    var at = 0u;
    for (var k = p.along; k > 1u; k -= 1u) {
        let axis = p.kept + k - 1u;
        let size = p.sizes[axis / 4u][axis % 4u];
        at += (rest % size) * p.strides[axis / 4u][axis % 4u];
        rest /= size;
    }
    return at + rest * p.strides[p.kept / 4u][p.kept % 4u];
}

// Result over unit `i` of the row at offset `start`.
fn unit_at(start: u32, i: u32) -> u32 {
    if PER == 1u {
        let at = start + step_to(i);
        return number_of(x[word_of(at, IN)], lane_of(at, IN), IN);
    }
    let word = x[word_of(start, IN) + i];
    var all = number_of(word, 0u, IN);
    for (var lane = 1u; lane < PER; lane += 1u) {
        all = combine(all, number_of(word, lane, IN));
    }
    return all;
}

// Result over `count` units, every THREADS-th from unit `first`. Sums are nested in blocks of 16,
// so that rounding errors grow slowly.
fn over_units(start: u32, first: u32, count: u32) -> u32 {
    var all = identity();
    for (var done = 0u; done < count; done += 256u) {
        var some = identity();
        let blocks = min((count - done + 15u) / 16u, 16u);
        for (var block = 0u; block < blocks; block += 1u) {
            var few = identity();
            for (var k = 0u; k < 16u; k += 1u) {
                let n = done + block * 16u + k;
                if n < count {
                    few = combine(few, unit_at(start, first + n * THREADS));
                }
            }
            some = combine(some, few);
        }
        all = combine(all, some);
    }
    return all;
}
