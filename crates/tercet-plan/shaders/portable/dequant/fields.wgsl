// Addressing of quantized weights, and bit extraction, shared by all block formats. The including
// shader defines packed_word(i), which loads word i, and row_blocks(), the number of blocks per
// row.
//
// A block has up to four fields: low bits, high bits, packed scales, F16 scales. In file order
// (PLANES = 0), blocks are contiguous. With PLANES, each field of all blocks of a row is
// contiguous. LOW, HIGH, SCALES and HALVES encode the layout: the low 16 bits are the first byte
// (with PLANES multiplied by the blocks per row), the high bits are the stride from block to block.

override SCHEME: u32 = 0u;
override BLOCK_LEN: u32 = 32u;
override HAS_MIN: u32 = 0u;
override PLANES: u32 = 0u;
override LOW: u32 = 0u;
override HIGH: u32 = 0u;
override SCALES: u32 = 0u;
override HALVES: u32 = 0u;

struct Block {
    // Byte offset of the block's row; even.
    row: u32,
    // Index of the block in the row.
    index: u32,
}

// Byte offset of a field of a block.
fn field(place: u32, block: Block) -> u32 {
    let first = place & 0xffffu;
    let step = place >> 16u;
    if PLANES == 1u {
        return block.row + (first * row_blocks() + step * block.index);
    }
    return block.row + (first + step * block.index);
}

// Loads 4 bytes from byte i; i is even.
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

// Loads the F16 number at byte i, which is even.
fn half_at(i: u32) -> f32 {
    return from_half((packed_word(i / 4u) >> (8u * (i & 2u))) & 0xffffu);
}

fn bytes_of(quad: u32) -> vec4<u32> {
    return (vec4<u32>(quad) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(255u);
}

// The low or the high nibbles of 4 bytes.
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
