// Pieces of formats that have no codes to be scaled apart: 16 weights, decoded as they are loaded. After
// `coded.wgsl`, in the place of `pieces.wgsl`.

const GROUPS: u32 = 1u;
const SECOND: u32 = 16u;

// Pieces of a block.
const PARTS: u32 = BLOCK_LEN / 16u;

struct Raw {
    values: array<vec4<f32>, 4>,
}

// Masks and exponents are not put on here.
fn hide_constants(zero: u32) {}

// Where weight j of a block is: vec2(piece, quad of its 4 neighbours).
fn spot_in(block: u32, j: u32) -> vec2<u32> {
    return vec2<u32>(block * PARTS + j / 16u, j % 16u / 4u);
}

// The first weight of a piece within its block.
fn first_of(part: u32) -> u32 {
    return part * 16u;
}

// In a loop: the code that decodes is long, and compilers copy it to each place.
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
