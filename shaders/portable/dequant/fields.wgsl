// Where packed weights are, and the parts of a word: what decoding of all block formats shares. The code that
// includes this has packed_word(i), word i of the weights, and row_blocks(), the blocks of a row.
//
// A block has up to four fields: low bits, high bits, packed scales, f16 scales. In file order (PLANES = 0)
// blocks lie behind each other; in planes, one field of all blocks of a row does. LOW, HIGH, SCALES and
// HALVES say where: the first byte (in planes, times the blocks of the row) in 16 bits, above them the
// distance from block to block.

override SCHEME: u32 = 0u;
override BLOCK_LEN: u32 = 32u;
override HAS_MIN: u32 = 0u;
override PLANES: u32 = 0u;
override LOW: u32 = 0u;
override HIGH: u32 = 0u;
override SCALES: u32 = 0u;
override HALVES: u32 = 0u;

struct Block {
    // The byte where its row begins, which is even.
    row: u32,
    // Its place in the row.
    index: u32,
}

// The byte where a field of a block begins.
fn field(place: u32, block: Block) -> u32 {
    let first = place & 0xffffu;
    let step = place >> 16u;
    if PLANES == 1u {
        return block.row + (first * row_blocks() + step * block.index);
    }
    return block.row + (first + step * block.index);
}

// The 4 bytes from byte i on; i is even.
fn quad_at(i: u32) -> u32 {
    let word = packed_word(i / 4u);
    if (i & 2u) == 0u {
        return word;
    }
    return (word >> 16u) | (packed_word(i / 4u + 1u) << 16u);
}

fn byte_at(i: u32) -> u32 {
    return (packed_word(i / 4u) >> (8u * (i % 4u))) & 255u;
}

// The f16 at byte i, which is even.
fn half_at(i: u32) -> f32 {
    return from_half((packed_word(i / 4u) >> (8u * (i & 2u))) & 0xffffu);
}

fn bytes_of(quad: u32) -> vec4<u32> {
    return (vec4<u32>(quad) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(255u);
}

// Nibbles of 4 bytes, the low ones or the high ones.
fn nibbles_of(quad: u32, high: bool) -> vec4<u32> {
    return bytes_of(select(quad, quad >> 4u, high) & 0x0f0f0f0fu);
}

// Bits 2 s and 2 s + 1 of 4 bytes.
fn two_bits_of(quad: u32, s: u32) -> vec4<u32> {
    return bytes_of((quad >> (2u * s)) & 0x03030303u);
}

// Bit s of 4 bytes.
fn one_bit_of(quad: u32, s: u32) -> vec4<u32> {
    return bytes_of((quad >> s) & 0x01010101u);
}
