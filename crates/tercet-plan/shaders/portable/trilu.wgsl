// Trilu, bit for bit: y = x in the upper or lower triangle of the matrices of the last two axes,
// else 0. UPPER = 1 keeps column - row >= k; UPPER = 0 keeps column - row <= k. The operand is
// strided and has RANK axes. A thread writes one word: 4 / ELEM_BYTES elements.
// uses prelude.wgsl: bits_of
// uses word_of_bits.wgsl: ELEM_BYTES, LANES

struct Params {
    shape: array<vec4<u32>, 2>,
    strides: array<vec4<u32>, 2>,
    numel: u32,
    offset: u32,
    rows: u32,
    columns: u32,
    k: i32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read_write> y: array<u32>;

override RANK: u32 = 2u;
override UPPER: u32 = 1u;

// Source element of result element `i`. Strides may be negative: the sum wraps modulo 2^32.
fn source_of(i: u32) -> u32 {
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

fn is_kept(i: u32) -> bool {
    let column = bitcast<i32>(i % p.columns);
    let row = bitcast<i32>(i / p.columns % p.rows);
    return select(column - row <= p.k, column - row >= p.k, UPPER == 1u);
}

// Bits of result element `i`.
fn bits_at(i: u32) -> u32 {
    if !is_kept(i) {
        return 0u;
    }
    let at = source_of(i);
    return bits_of(x[at / LANES], at % LANES, ELEM_BYTES);
}
