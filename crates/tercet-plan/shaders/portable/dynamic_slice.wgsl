// DynamicSlice: y[i..] = x[start + i..], a window of a strided operand of RANK axes at offsets read
// from `starts`, bit for bit. A thread writes one word: 4 / ELEM_BYTES elements.
// uses prelude.wgsl: bits_of
// uses window.wgsl: start_of, window_of
// uses word_of_bits.wgsl: ELEM_BYTES, LANES

struct Params {
    sizes: array<vec4<u32>, 2>,
    window: array<vec4<u32>, 2>,
    strides: array<vec4<u32>, 2>,
    numel: u32,
    offset: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read> starts: array<u32>;
@group(0) @binding(3) var<storage, read_write> y: array<u32>;

override RANK: u32 = 2u;

// Source element of window element `i`. Strides may be negative: the sum wraps modulo 2^32.
fn source_of(i: u32) -> u32 {
    var rest = i;
    var at = p.offset;
    for (var k = 0u; k < RANK; k += 1u) {
        let axis = RANK - (k + 1u);
        let size = window_of(axis);
        at += (start_of(axis) + rest % size) * p.strides[axis / 4u][axis % 4u];
        rest /= size;
    }
    return at;
}

// Bits of result element `i`.
fn bits_at(i: u32) -> u32 {
    let at = source_of(i);
    return bits_of(x[at / LANES], at % LANES, ELEM_BYTES);
}
