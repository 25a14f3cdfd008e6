// What kernels share whose workgroups walk the words of a row of tiles, a word an invocation: which bits of the 256
// words reach the tile, and where one of them is by its number.

// Splats that reach the tile, of the word of each invocation, and how many are in the words up to its own.
var<workgroup> hits: array<u32, 256>;
var<workgroup> ends: array<u32, 256>;
var<workgroup> all_hits: u32;

// Counts the hits of all invocations; every invocation must call this.
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

// The word, of the 256, and the bit in it of hit number k.
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
