// Offset of an element, or of a row, of a strided operand of RANK axes. Strides may be negative:
// the sum wraps modulo 2^32.
// uses top_k_keys.wgsl or top_k_ranks.wgsl or top_k_take.wgsl: p

override RANK: u32 = 2u;

fn place_of(i: u32) -> u32 {
    var rest = i;
    var at = p.offset;
    for (var k = 0u; k < RANK; k += 1u) {
        let axis = RANK - (k + 1u);
        let size = p.shape[axis / 4u][axis % 4u];
        at += (rest % size) * p.strides[axis / 4u][axis % 4u];
        rest /= size;
    }
    return at;
}
