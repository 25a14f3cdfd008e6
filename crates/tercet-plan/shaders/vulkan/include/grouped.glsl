// Grouped GEMM of a mixture of experts, for gemm_coop.glsl: C[r, n] = sum_k A[r / repeats, k]
// W[expert of r, n, k], with quantized W.
//
// group_rows.wgsl sorts the rows by expert and divides the rows of each expert into tiles of at most
// BM. A workgroup computes a tile of the table for BN columns. It gathers rows of A while it stages
// them, and stores each row of C at its own place. The sums of a row do not depend on the other
// rows of the tile: fragments have separate sums per row, in the same order of k. Fragments without
// rows are multiplied, too: on an H200, skipping them takes 5 % more time at 512 tokens of 128
// experts.
//
// W is in structure-of-arrays layout with rows of 16-byte multiples. A step of BK weights of a
// column consists of pieces of 16 bytes of low bits: one or two groups of 16 weights. The raw bytes
// of the next step are loaded during the multiplication, and decoded when they are staged. Decoded
// values are those of dequant/unpack_half.wgsl: computed in F32 and rounded once.
//
// Offsets and strides of W (offset_b, ldb, inner_b) are in bytes. Constraints: B_TRANSPOSED,
// ALIGNED_A, STAGES = 1, PLANES = 0, no bias and no residual; BK is a multiple of 64, k of
// BLOCK_LEN.

layout(constant_id = 24) const uint SCHEME = 7;
layout(constant_id = 25) const uint BLOCK_LEN = 256;
// Fields of a block: the first byte, multiplied by the blocks of a row, and in the high half the
// distance of two blocks.
layout(constant_id = 26) const uint LOW = 0;
layout(constant_id = 27) const uint HIGH = 0;
layout(constant_id = 28) const uint SCALES = 0;
layout(constant_id = 29) const uint HALVES = 0;

// One buffer: tiles (expert, first rank, rows), then the rows by rank.
layout(set = 0, binding = 3) restrict readonly buffer Ranks { uint ranks[]; };
layout(set = 0, binding = 4) restrict readonly buffer Tiles { uvec4 tile_table[]; };

const uint Q4_0 = 0;
const uint Q4_1 = 1;
const uint Q5_0 = 2;
const uint Q5_1 = 3;
const uint Q8_0 = 4;
const uint Q4_K = 7;
const uint Q5_K = 8;
const uint Q6_K = 9;
const uint MXFP4 = 16;

// The low bits of a piece are nibbles of two groups of 16 weights, SECOND apart, or belong to one
// group.
const bool HAS_PAIRS = SCHEME != Q8_0 && SCHEME != Q6_K;
const uint PIECE_LEN = HAS_PAIRS ? 32 : 16;
const bool HAS_SIX_BITS = SCHEME == Q4_K || SCHEME == Q5_K;
const uint SECOND = HAS_SIX_BITS ? 32 : 16;
const uint PIECES = BK / PIECE_LEN;
const uint RAWS = (BN * PIECES + THREADS - 1) / THREADS;
const bool HAS_HIGH = SCHEME == Q5_0 || SCHEME == Q5_1 || SCHEME == Q5_K || SCHEME == Q6_K;

// First rank of the tile, and its number of rows.
uint tile_first;
uint tile_rows;
// Loaded pieces: low bits, high bits, packed scales, and the word with the F16 scale.
uvec4 raw_low[RAWS];
uvec4 raw_high[RAWS];
uvec4 raw_head[RAWS];
uint raw_unit[RAWS];
// Byte offsets of the pieces' rows of W.
uint raw_row[RAWS];
// Position of the loaded step in its block.
uint raw_k;

// Row of C of a line of the tile; lines beyond the last one have its row.
uint row_of_line(uint line) { return ranks[p.rows_at + tile_first + min(line, tile_rows - 1u)]; }

// Column and piece of this thread's load i. Eight adjacent threads have eight columns, whose words
// are in different banks.
uvec2 own_piece(uint i) {
    uint at = gl_LocalInvocationIndex + i * THREADS;
    return uvec2(at / (8u * PIECES) * 8u + at % 8u, at / 8u % PIECES);
}

bool loads_piece(uint i) {
    return RAWS * THREADS == BN * PIECES || gl_LocalInvocationIndex + i * THREADS < BN * PIECES;
}

// First weight of a piece in its step.
uint first_of(uint piece) {
    return HAS_SIX_BITS ? piece / 2u * 64u + piece % 2u * 16u : piece * PIECE_LEN;
}

uint field(const uint place, uint row, uint block) {
    return row + (place & 0xffffu) * (p.k / BLOCK_LEN) + (place >> 16) * block;
}

void find_rows(uint from, uint col) {
    [[unroll]] for (uint i = 0u; i < RAWS; i++) {
        raw_row[i] = from + min(col + own_piece(i).x, p.n - 1u) * p.ldb;
    }
}

// The word with the scale of a block in its low bits.
uint load_unit(uint row, uint block) {
    if (SCHEME == MXFP4) {
        uint at = field(SCALES, row, block);
        return b[at >> 2] >> (8u * (at & 3u));
    }
    uint at = field(HALVES, row, block);
    return b[at >> 2] >> (8u * (at & 2u));
}

void load_piece(const uint i, uint first) {
    uint row = raw_row[i];
    uint block = first / BLOCK_LEN;
    uint in_block = first % BLOCK_LEN;
    uint low = HAS_SIX_BITS ? in_block / 64u * 32u + in_block % 64u
             : SCHEME == Q6_K ? in_block / 128u * 64u + in_block % 64u
             : SCHEME == Q8_0 ? in_block : 0u;
    raw_low[i] = b_vec[(field(LOW, row, block) + low) >> 4];
    if (SCHEME == Q5_0 || SCHEME == Q5_1) {
        raw_high[i].x = b[field(HIGH, row, block) >> 2];
    } else if (HAS_HIGH) {
        uint high = SCHEME == Q5_K ? in_block % 64u : in_block / 128u * 32u + in_block % 32u;
        raw_high[i] = b_vec[(field(HIGH, row, block) + high) >> 4];
    }
    // The scales of a long block stay in registers for its steps.
    if (BLOCK_LEN < 256u || raw_k == 0u) {
        if (HAS_SIX_BITS || SCHEME == Q6_K) {
            raw_head[i] = b_vec[field(SCALES, row, block) >> 4];
        }
        if (!HAS_SIX_BITS) {
            raw_unit[i] = load_unit(row, block);
        }
    }
}

// Loads the raw bytes of a step. Pieces from k_end on get the scale 0.
void load_pieces(uint k, uint k_end, const bool whole) {
    raw_k = k % BLOCK_LEN;
    [[unroll]] for (uint i = 0u; i < RAWS; i++) {
        if (loads_piece(i)) {
            uint first = k + first_of(own_piece(i).y);
            bool inside = whole || first < k_end;
            load_piece(i, inside ? first : k);
            if (!inside) {
                raw_unit[i] = 0u;
            }
        }
    }
}

void keep_no_pieces() {
    [[unroll]] for (uint i = 0u; i < RAWS; i++) {
        raw_low[i] = uvec4(0u);
        raw_high[i] = uvec4(0u);
    }
}

// Converts 4 bytes to floats without conversion instructions. The masked bits of each byte (`mask
// << low`) become mantissa bits of a power of two. Subtracting this power and `offset` gives the
// exact number.
vec4 four(uint bytes, const uint low, const uint mask, const float offset) {
    const uint even = (150u - low) << 23;
    const uint odd = (142u - low) << 23;
    uint late = bytes >> 16;
    vec2 x = uintBitsToFloat(uvec2(bytes, late) & (mask << low) | even) - (uintBitsToFloat(even) + offset);
    vec2 y = uintBitsToFloat(uvec2(bytes, late) & (mask << (low + 8u)) | odd) - (uintBitsToFloat(odd) + offset);
    return vec4(x.x, y.x, x.y, y.y);
}

// Values of four FP4 (e2m1) nibbles, doubled. Their bits are those of an F16 number that is 2^14
// times smaller.
vec4 small_floats(uint nibbles) {
    uvec2 words = uvec2(nibbles, nibbles >> 8);
    words = (words & 0x00070007u) << 9 | (words & 0x00080008u) << 12;
    vec2 x = NATIVE != 0u ? unpackHalf2x16(words.x) : vec2(f16_to_f32(words.x & 0xffffu), f16_to_f32(words.x >> 16));
    vec2 y = NATIVE != 0u ? unpackHalf2x16(words.y) : vec2(f16_to_f32(words.y & 0xffffu), f16_to_f32(words.y >> 16));
    return vec4(x.x, y.x, x.y, y.y) * 32768.0;
}

// Fifth bits j to j + 3 of Q5_0 and Q5_1, each as bit 4 of a byte.
uint fifths(uint bits, uint j) { return ((((bits >> j) & 15u) * 0x00204081u) & 0x01010101u) << 4; }

// Quantized values of word i of a group of a piece.
vec4 codes_of(const uint at, const uint group, const uint i, uint piece) {
    uint low = raw_low[at][i];
    uint nibbles = (low >> (4u * group)) & 0x0f0f0f0fu;
    if (SCHEME == Q4_0) {
        return four(low, 4u * group, 15u, 8.0);
    }
    if (SCHEME == Q4_1 || SCHEME == Q4_K) {
        return four(low, 4u * group, 15u, 0.0);
    }
    if (SCHEME == Q8_0) {
        return four(low ^ 0x80808080u, 0u, 255u, 128.0);
    }
    if (SCHEME == Q5_0) {
        return four(nibbles | fifths(raw_high[at].x, 16u * group + 4u * i), 0u, 31u, 16.0);
    }
    if (SCHEME == Q5_1) {
        return four(nibbles | fifths(raw_high[at].x, 16u * group + 4u * i), 0u, 31u, 0.0);
    }
    if (SCHEME == Q5_K) {
        uint pair = raw_k / 64u + piece / 2u;
        uint fifth = (raw_high[at][i] >> (2u * pair + group)) & 0x01010101u;
        return four(nibbles | fifth << 4, 0u, 31u, 0.0);
    }
    if (SCHEME == MXFP4) {
        return small_floats(nibbles);
    }
    // Q6_K: nibbles of 64 bytes are 64 weights, and 32 bytes have the top bits of 128.
    uint j = raw_k + first_of(piece);
    uint bits = (low >> (j / 64u % 2u * 4u)) & 0x0f0f0f0fu;
    uint top = (raw_high[at][i] >> (j / 32u % 4u * 2u)) & 0x03030303u;
    return four(bits | top << 4, 0u, 63u, 32.0);
}

// Scales of two groups of 32 weights, then their minima, one per byte. The first two pairs of
// groups use 6 bits of the second and third word. The other pairs use the nibbles of the last word,
// with top bits in the second and third word.
uint six_bits(uvec4 head, uint pair) {
    uint shift = 16u * (pair % 2u);
    bool is_late = pair >= 2u;
    uint own = is_late ? 0x0f0fu : 0x3f3fu;
    uint top = is_late ? 0x3030u : 0u;
    uint scales = ((is_late ? head.w : head.y) >> shift) & own;
    uint minima = ((is_late ? head.w : head.z) >> (shift + (is_late ? 4u : 0u))) & own;
    scales |= (head.y >> (shift + 2u)) & top;
    minima |= (head.z >> (shift + 2u)) & top;
    return scales | minima << 16;
}

vec2 halves_of(uint word) {
    return NATIVE != 0u ? unpackHalf2x16(word) : vec2(f16_to_f32(word & 0xffffu), f16_to_f32(word >> 16));
}

// Scale and minimum of the first group of a piece, then of the second.
vec4 scales_of(const uint at, uint piece) {
    if (HAS_SIX_BITS) {
        vec4 both = four(six_bits(raw_head[at], raw_k / 64u + piece / 2u), 0u, 63u, 0.0);
        vec2 unit = halves_of(raw_head[at].x) * vec2(1.0, -1.0);
        return unit.xyxy * both.xzyw;
    }
    if (SCHEME == MXFP4) {
        // 2^(e - 128), because the values are doubled; subnormal for the two smallest exponents.
        uint e = raw_unit[at] & 255u;
        float unit = uintBitsToFloat(e >= 2u ? (e - 1u) << 23 : 0x00200000u << e);
        return vec4(unit, 0.0, unit, 0.0);
    }
    vec2 unit = halves_of(raw_unit[at]);
    if (SCHEME == Q4_1 || SCHEME == Q5_1) {
        return unit.xyxy;
    }
    if (SCHEME == Q6_K) {
        uint i = (raw_k + first_of(piece)) / 16u;
        uint word = i < 8u ? (i < 4u ? raw_head[at].x : raw_head[at].y) : (i < 12u ? raw_head[at].z : raw_head[at].w);
        unit.x *= float(bitfieldExtract(int(word), int(i % 4u * 8u), 8));
    }
    return vec4(unit.x, 0.0, unit.x, 0.0);
}

uvec2 halves(vec4 x);

void store_group(uint to, const uint at, const uint group, uint piece, vec2 scale) {
    [[unroll]] for (uint i = 0u; i < 2u; i++) {
        vec4 low = scale.x * codes_of(at, group, 2u * i, piece) + scale.y;
        vec4 high = scale.x * codes_of(at, group, 2u * i + 1u, piece) + scale.y;
        tiles[to + i] = uvec4(halves(low), halves(high));
    }
}

// Decodes the loaded pieces, and stores them in shared memory from `to` on.
void store_pieces(uint to) {
    [[unroll]] for (uint i = 0u; i < RAWS; i++) {
        if (loads_piece(i)) {
            uvec2 own = own_piece(i);
            vec4 scale = scales_of(i, own.y);
            uint at = to + own.x * B_STRIDE + first_of(own.y) / 8u;
            store_group(at, i, 0u, own.y, scale.xy);
            if (HAS_PAIRS) {
                store_group(at + SECOND / 8u, i, 1u, own.y, scale.zw);
            }
        }
    }
}
