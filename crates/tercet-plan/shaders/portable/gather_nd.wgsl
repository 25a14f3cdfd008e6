// GatherND: copies the slice of a strided operand that each tuple of COORDINATES indices selects,
// bit for bit. `shape` is the shape of the result: first the tuples, one per `inner` elements, then
// the slice. `strides` are the operand's strides along these axes, 0 for tuple axes. Coordinate c
// indexes an axis of lens[c] elements with stride steps[c]. Negative coordinates count from the
// end. Out-of-range coordinates are clamped, and a separate data check fails the run. A thread
// writes one word: 4 / ELEM_BYTES elements.
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

// Bits of result element `i`. Strides may be negative: the sum wraps modulo 2^32.
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
