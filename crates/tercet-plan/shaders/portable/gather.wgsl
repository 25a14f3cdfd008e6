// Gather: y[.., j, ..] = x[.., idx[j], ..], slices of a strided operand along one axis, bit for
// bit. `shape` is the shape of the result with the index axes flattened to one; `strides` are those
// of the operand. Negative indices count from the end. Out-of-range indices are clamped, and a
// separate data check fails the run. A thread writes one word: 4 / ELEM_BYTES elements.
// uses named.wgsl: named
// uses prelude.wgsl: bits_of
// uses word_of_bits.wgsl: ELEM_BYTES, LANES

struct Params {
    shape: array<vec4<u32>, 2>,
    strides: array<vec4<u32>, 2>,
    numel: u32,
    offset: u32,
    axis: u32,
    len: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read> idx: array<u32>;
@group(0) @binding(3) var<storage, read_write> y: array<u32>;

override RANK: u32 = 2u;

// Source element of result element `i`. Strides may be negative: the sum wraps modulo 2^32.
fn source_of(i: u32) -> u32 {
    var rest = i;
    var at = p.offset;
    for (var k = 0u; k < RANK; k += 1u) {
        let axis = RANK - (k + 1u);
        let size = p.shape[axis / 4u][axis % 4u];
        var place = rest % size;
        rest /= size;
        if axis == p.axis {
            place = named(idx[place], p.len);
        }
        at += place * p.strides[axis / 4u][axis % 4u];
    }
    return at;
}

// Bits of result element `i`.
fn bits_at(i: u32) -> u32 {
    // An empty axis has no valid index.
    if p.len == 0u {
        return 0u;
    }
    let at = source_of(i);
    return bits_of(x[at / LANES], at % LANES, ELEM_BYTES);
}
