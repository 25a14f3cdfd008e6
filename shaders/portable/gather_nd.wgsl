// For each row of COORDINATES numbers the slice of a strided operand that they lead to, by bits. `shape`
// is that of the result: rows, of which there is one for each `inner` elements, then the slice; `strides`
// are those of the operand along these axes, 0 where only the row decides. Coordinate c leads along an axis
// of lens[c] elements that lie steps[c] apart. Negative ones count from the end; others outside are clamped
// (a check of its own fails the run). One invocation writes one word: 4 / ELEM_BYTES elements.
// uses named.wgsl: named
// uses prelude.wgsl: bits_of
// uses word_of_bits.wgsl: ELEM_BYTES, LANES

struct Params {
    shape: array<vec4<u32>, 2>,
    strides: array<vec4<u32>, 2>,
    lens: array<vec4<u32>, 2>,
    steps: array<vec4<u32>, 2>,
    numel: u32,
    offset: u32,
    inner: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read> idx: array<u32>;
@group(0) @binding(3) var<storage, read_write> y: array<u32>;

override RANK: u32 = 2u;
override COORDINATES: u32 = 1u;

// The bits of element `i` of the result. Strides may be negative: the sum wraps.
fn bits_at(i: u32) -> u32 {
    var rest = i;
    var at = p.offset;
    for (var k = 0u; k < RANK; k += 1u) {
        let axis = RANK - (k + 1u);
        let size = p.shape[axis / 4u][axis % 4u];
        at += (rest % size) * p.strides[axis / 4u][axis % 4u];
        rest /= size;
    }
    let row = i / p.inner;
    for (var c = 0u; c < COORDINATES; c += 1u) {
        let len = p.lens[c / 4u][c % 4u];
        if len == 0u {
            return 0u;
        }
        at += named(idx[row * COORDINATES + c], len) * p.steps[c / 4u][c % 4u];
    }
    return bits_of(x[at / LANES], at % LANES, ELEM_BYTES);
}
