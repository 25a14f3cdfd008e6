// y = x with elements added before and after each axis, by bits. MODE is 0 for the constant `value`,
// 1 for reflections, 2 for repeated edges, 3 for repetitions. The operand is strided, of RANK axes.
// One invocation writes one word: 4 / ELEM_BYTES elements.
// uses prelude.wgsl: bits_of
// uses word_of_bits.wgsl: ELEM_BYTES, LANES

struct Params {
    shape: array<vec4<u32>, 2>,
    sizes: array<vec4<u32>, 2>,
    before: array<vec4<u32>, 2>,
    strides: array<vec4<u32>, 2>,
    numel: u32,
    offset: u32,
    value: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read_write> y: array<u32>;

override RANK: u32 = 2u;
override MODE: u32 = 0u;

// The place in an axis of `n` elements for place `at` of the padded one, outside 0 to n - 1.
fn beyond(at: u32, before: u32, n: u32) -> u32 {
    if MODE == 1u {
        return select(2u * (n - 1u) - (at - before), before - at, at < before);
    }
    if MODE == 2u {
        return select(n - 1u, 0u, at < before);
    }
    return select(at - before - n, n - (before - at), at < before);
}

// The bits of element `i` of the result. Strides may be negative: the sum wraps.
fn bits_at(i: u32) -> u32 {
    var rest = i;
    var at = p.offset;
    for (var k = 0u; k < RANK; k += 1u) {
        let axis = RANK - (k + 1u);
        let size = p.shape[axis / 4u][axis % 4u];
        let n = p.sizes[axis / 4u][axis % 4u];
        let before = p.before[axis / 4u][axis % 4u];
        let place = rest % size;
        rest /= size;
        // Before the operand it wraps to a great number.
        var own = place - before;
        if own >= n {
            if MODE == 0u {
                return p.value;
            }
            own = min(beyond(place, before, n), n - 1u);
        }
        at += own * p.strides[axis / 4u][axis % 4u];
    }
    return bits_of(x[at / LANES], at % LANES, ELEM_BYTES);
}
