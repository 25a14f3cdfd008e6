// Pad: y = x with elements added before and after each axis, bit for bit. MODE 0: constant `value`;
// 1: reflect; 2: edge; 3: wrap. The operand is strided and has RANK axes. A thread writes one word:
// 4 / ELEM_BYTES elements.
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

// Source index in an axis of `n` elements, for padded index `at` outside the operand.
fn beyond(at: u32, before: u32, n: u32) -> u32 {
    if MODE == 1u {
        return select(2u * (n - 1u) - (at - before), before - at, at < before);
    }
    if MODE == 2u {
        return select(n - 1u, 0u, at < before);
    }
    return select(at - before - n, n - (before - at), at < before);
}

// Bits of result element `i`. Strides may be negative: the sum wraps modulo 2^32.
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
        // Indices before the operand wrap to large numbers.
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
