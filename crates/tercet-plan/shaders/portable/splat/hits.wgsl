// Hit lists of a tile: selects the bits of 256 words that cover the tile, and finds a hit by its
// number. A bit stands for a splat. Kernels with one thread per word of a row of tiles include this
// fragment.

// Splats that cover the tile, for the word of each thread, and the inclusive prefix sums of their
// counts.
var<workgroup> hits: array<u32, 256>;
var<workgroup> ends: array<u32, 256>;
var<workgroup> all_hits: u32;

// Counts the hits of all threads. All threads of the workgroup must call this function.
fn count_hits(own: u32, local: u32) -> u32 {
    hits[local] = own;
    ends[local] = countOneBits(own);
    for (var step = 1u; step < 256u; step *= 2u) {
        workgroupBarrier();
        var before = 0u;
        if local >= step {
            before = ends[local - step];
        }
        workgroupBarrier();
        ends[local] += before;
    }
    if local == 255u {
        all_hits = ends[255];
    }
    return workgroupUniformLoad(&all_hits);
}

// The word (of 256) and the bit of hit number k.
fn hit(k: u32) -> vec2<u32> {
    var owner = 0u;
    for (var step = 128u; step > 0u; step /= 2u) {
        if ends[owner + step - 1u] <= k {
            owner += step;
        }
    }
    let own = hits[owner];
    var rest = own;
    for (var n = k - (ends[owner] - countOneBits(own)); n > 0u; n -= 1u) {
        rest &= rest - 1u;
    }
    return vec2(owner, firstTrailingBit(rest));
}
