// DynamicUpdate: y = x, with the window at `starts` replaced by `update`, bit for bit. Both
// operands are strided and have RANK axes. A thread writes one word: 4 / ELEM_BYTES elements.
// uses prelude.wgsl: bits_of
// uses window.wgsl: size_of, start_of, window_of
// uses word_of_bits.wgsl: ELEM_BYTES, LANES

struct Params {
    sizes: array<vec4<u32>, 2>,
    window: array<vec4<u32>, 2>,
    strides: array<vec4<u32>, 2>,
    update_strides: array<vec4<u32>, 2>,
    numel: u32,
    offset: u32,
    update_offset: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read> update: array<u32>;
@group(0) @binding(3) var<storage, read> starts: array<u32>;
@group(0) @binding(4) var<storage, read_write> y: array<u32>;

override RANK: u32 = 2u;

// Bits of result element `i`. Strides may be negative: the sums wrap modulo 2^32.
fn bits_at(i: u32) -> u32 {
    var rest = i;
    var at = p.offset;
    var update_at = p.update_offset;
    var inside = true;
    for (var k = 0u; k < RANK; k += 1u) {
        let axis = RANK - (k + 1u);
        let place = rest % size_of(axis);
        rest /= size_of(axis);
        at += place * p.strides[axis / 4u][axis % 4u];
        // Indices before the window wrap to large numbers.
        let local = place - start_of(axis);
        inside = inside && local < window_of(axis);
        update_at += local * p.update_strides[axis / 4u][axis % 4u];
    }
    if inside {
        return bits_of(update[update_at / LANES], update_at % LANES, ELEM_BYTES);
    }
    return bits_of(x[at / LANES], at % LANES, ELEM_BYTES);
}
