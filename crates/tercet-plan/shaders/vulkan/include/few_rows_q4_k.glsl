// Q4_K weights for small-M GEMM with prepacked activations (few_rows_laid.glsl).
//
// A slice is one block. Quantized values are multiplied as subnormal F16 numbers, which take no arithmetic to
// make, and the scale of 32 weights multiplies the sum of their products. The sums of A that the minima
// multiply form a separate matrix, which the activation prepack computes.

#define HAS_MINIMA
#define WORDS uvec2
#define SPAN 2
#define HEAD uvec4

HEAD head_u;
HEAD head_v;
// Divisor of the sums of A, against F16 overflow.
const float SUM_UNIT = 64.0;

uint block_of(uint slice) { return WHOLE == 1u ? slice : min(slice, p.blocks - 1u); }

HEAD load_head(Place place, const uint row) { return b_vec[place.rows[row] / 16u + p.blocks * 8u + block_of(place.slice)]; }

// 32 bytes contain two groups of 32 weights: the low and the high nibbles. A lane loads 8 bytes; a step
// is a group.
uint words_at(uint row, uint slice) { return row / 8u + block_of(slice) * 16u + t; }

uvec2 load_words(Place place, const uint load, const uint row) { return b_pair[place.words[row] + 4u * load]; }

uvec2 arranged(uvec2 words) { return words; }

// Scales of two groups of 32 weights, then their minima, one per byte. The first two pairs of
// groups use 6 bits of the second and third word. The other pairs use the nibbles of the last word,
// with top bits in the second and third word.
uint six_bits(HEAD head, uint pair) {
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

vec2 bytes_of(uint word) { return vec2(float(word & 0xffu), float(word >> 8 & 0xffu)); }

// Scales of all groups of a row, one per byte.
uvec2 scales_of(HEAD head) {
    return uvec2(head.y & 0x3f3f3f3fu, (head.w & 0x0f0f0f0fu) | (head.y >> 2 & 0x30303030u));
}

// Factor of the products of a group. Quantized values are subnormal F16 numbers: multiples of 2^-24, or
// of 2^-20 in high nibbles. The integer in the fraction bits of 2^23 needs no conversion.
float factor_of(HEAD head, uvec2 scales, const uint group) {
    float unit = unpackHalf2x16(head.x).x * (group % 2u == 0u ? 16777216.0 : 1048576.0);
    uint code = bitfieldExtract(scales[group / 4u], int(group % 4u * 8u), 8);
    return fma(uintBitsToFloat(0x4b000000u | code), unit, -8388608.0 * unit);
}

void fill_codes(uint u, uint v, const uint mask) {
    fill_left(halves(u & mask), halves(u >> 8 & mask), halves(v & mask), halves(v >> 8 & mask));
}

void take_step(const uint step, uvec2 u, uvec2 v, uint slice) {
    const uint mask = step % 2u == 0u ? 0x000f000fu : 0x00f000f0u;
    begin_products();
    fill_codes(u.x, v.x, mask);
    multiply(2u * step);
    fill_codes(u.y, v.y, mask);
    multiply(2u * step + 1u);
    bool is_some = WHOLE == 1u || slice < p.blocks;
    float scale_u = factor_of(head_u, scales_of(head_u), step);
    float scale_v = factor_of(head_v, scales_of(head_v), step);
    add_products(is_some ? scale_u : 0.0, is_some ? scale_v : 0.0);
}

// Minima, multiplied by -SUM_UNIT.
f16vec2 minima_of(HEAD head) { return f16vec2(bytes_of(six_bits(head, t) >> 16) * -SUM_UNIT); }

// Dequantizes a weight as a float.
float weight_of(uint row, HEAD head, uint block, uint i) {
    uint word = b[row / 4u + block * 32u + i / 64u * 8u + i % 32u / 4u];
    uint code = (word >> (8u * (i % 4u) + i / 32u % 2u * 4u)) & 15u;
    uint both = six_bits(head, i / 64u) >> (i / 32u % 2u * 8u);
    vec2 d = unpackHalf2x16(head.x);
    return d.x * float((both & 63u) * code) - d.y * float(both >> 16 & 63u);
}

float x_one(uint row, uint k) {
    uint at = p.a_offset + row * p.a_row + k;
    uint word = A_TYPE == F32 ? a_vec[at / 4u][at % 4u] : a_pair[at / 4u][at % 4u / 2u];
    uint bits = (at & 1u) == 0u ? word & 0xffffu : word >> 16;
    return A_TYPE == F32 ? uintBitsToFloat(word) : A_TYPE == F16 ? f16_to_f32(bits) : bf16_to_f32(bits);
}

// Float fallback for infinity and NaN: separate sums for scales and minima would yield inf - inf.
// The prepack stores such slices of rows as zeros. Returns the products of a slice of a row of A with
// the row of W at byte `column`.
float sum_floats(uint row, uint slice, uint column) {
    float sum = 0.0;
    if (row < p.m && slice < p.blocks) {
        HEAD head = b_vec[column / 16u + p.blocks * 8u + slice];
        for (uint k = 0u; k < SLICE; k++) {
            sum += x_one(row, slice * SLICE + k) * weight_of(column, head, slice, k);
        }
    }
    return sum;
}

void end_slice(Place place, uint slice) {
    bool is_some = WHOLE == 1u || place.slice < p.blocks;
    float least_u = is_some ? unpackHalf2x16(head_u.x).y : 0.0;
    float least_v = is_some ? unpackHalf2x16(head_v.x).y : 0.0;
    f16vec2 u = minima_of(head_u);
    f16vec2 v = minima_of(head_v);
    fill_left(u, u, v, v);
    [[unroll]] for (uint i = 0u; i < GROUPS; i++) {
        fill_right(rows_pair[p.sums_at / 2u + (slice * ROWS + 8u * i + g) * 4u + t]);
        products[i] = coopMatMulAdd(left, right, SUMS(0.0));
    }
    add_products(least_u, least_v);
}

uint bits_of(WORDS words) { return words.x ^ words.y; }
