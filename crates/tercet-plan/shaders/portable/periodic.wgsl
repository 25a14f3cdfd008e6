// Roll and tile: y[i] = x[(i + start) mod n] along every axis of a strided operand of RANK axes,
// bit for bit. `shape` is the shape of the result, `sizes` that of the operand. Each start is below
// its size. A thread writes one word: 4 / ELEM_BYTES elements.
// uses prelude.wgsl: bits_of
// uses word_of_bits.wgsl: ELEM_BYTES, LANES

struct Params {
    shape: array<vec4<u32>, 2>,
    sizes: array<vec4<u32>, 2>,
    starts: array<vec4<u32>, 2>,
    strides: array<vec4<u32>, 2>,
    numel: u32,
    offset: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read_write> y: array<u32>;

override RANK: u32 = 2u;

// Source element of result element `i`. Strides may be negative: the sum wraps modulo 2^32.
fn source_of(i: u32) -> u32 {
    var rest = i;
    var at = p.offset;
    for (var k = 0u; k < RANK; k += 1u) {
        let axis = RANK - (k + 1u);
        let size = p.shape[axis / 4u][axis % 4u];
        let place = rest % size + p.starts[axis / 4u][axis % 4u];
        rest /= size;
        at += (place % p.sizes[axis / 4u][axis % 4u]) * p.strides[axis / 4u][axis % 4u];
    }
    return at;
}

// Bits of result element `i`.
fn bits_at(i: u32) -> u32 {
    let at = source_of(i);
    return bits_of(x[at / LANES], at % LANES, ELEM_BYTES);
}
