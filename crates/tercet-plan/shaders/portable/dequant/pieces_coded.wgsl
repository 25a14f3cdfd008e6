// 16-byte dequantization units for codebook formats. 16 weights are decoded at load, because these
// formats have no separate quantized values and scales. Replaces `pieces.wgsl`; follows
// `coded.wgsl`.

const GROUPS: u32 = 1u;
const SECOND: u32 = 16u;

// Pieces per block.
const PARTS: u32 = BLOCK_LEN / 16u;

struct Raw {
    values: array<vec4<f32>, 4>,
}

// Empty: codebook formats apply no masks and exponents here.
fn hide_constants(zero: u32) {}

// Position of weight j of a block: vec2(piece, index of its vec4 in the piece).
fn spot_in(block: u32, j: u32) -> vec2<u32> {
    return vec2<u32>(block * PARTS + j / 16u, j % 16u / 4u);
}

// Index of a piece's first weight in its block.
fn first_of(part: u32) -> u32 {
    return part * 16u;
}

// The decoder is called in a loop, because compilers inline its long code at every call.
fn raw_of(block: Block, part: u32) -> Raw {
    var raw: Raw;
    for (var i = 0u; i < 4u; i += 1u) {
        raw.values[i] = weights(block, part * 16u + 4u * i);
    }
    return raw;
}

// Weights 4 i to 4 i + 3; there is one group.
fn codes(raw: Raw, group: u32, i: u32) -> vec4<f32> {
    var values = raw.values;
    return values[i];
}

fn scales(raw: Raw) -> vec4<f32> {
    return vec4<f32>(1.0, 0.0, 1.0, 0.0);
}
