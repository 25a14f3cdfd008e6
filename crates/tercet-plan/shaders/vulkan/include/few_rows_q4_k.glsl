// Q4_K weights for skinny GEMM (few_rows_held.glsl and few_rows_streamed.glsl).
//
// A slice is one block. A quantized value times the 6-bit scale of its 32 weights is an integer
// that F16 represents exactly. The sums of A that the minima multiply form a separate matrix.

#define HAS_MINIMA
#ifdef STREAMED
#define WORDS uvec4
#define SPAN 4
#define STREAM_AHEAD 1
#else
#define WORDS uint
#endif
#define HEAD uvec4

HEAD head_u;
HEAD head_v;
#ifndef LAID
// Sums of A over the 32 weights of each scale: 8 sums per column, each as two F16 numbers.
RIGHT x_sums;
#endif
// Divisor of these sums, against F16 overflow.
const float SUM_UNIT = 64.0;

uint block_of(uint slice) { return WHOLE == 1u ? slice : min(slice, p.blocks - 1u); }

HEAD load_head(Place place, const uint row) { return b_vec[place.rows[row] / 16u + p.blocks * 8u + block_of(place.slice)]; }

uint words_at(uint row, uint slice) { return row / 16u + block_of(slice) * 8u + t; }

// A lane loads 16 of 64 bytes; their words belong to four steps.
#ifdef STREAMED
uvec4 load_words(Place place, const uint load, const uint row) { return b_vec[place.words[row] + 4u * load]; }

uvec4 arranged(uvec4 words) { return words; }
#else
uint load_words(Place place, const uint step, const uint row) {
    return b_vec[place.words[row] + step / 4u * 4u][step % 4u];
}
#endif

// 32 bytes contain 64 weights: low nibbles the first 32, high nibbles the other 32.
uint x_at(uint step, uint t) { return 128u * (step / 4u) + 64u * (t / 2u) + 16u * (t % 2u) + 4u * (step % 4u); }
const uint X_NEXT = 32;
#define X_FIRST xz
#define X_SECOND yw

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

// Factors of a row's pairs for low and high nibbles, and the offsets that cancel the added 1024.
struct Factors {
    f16vec2 low;
    f16vec2 high;
    f16vec2 less_low;
    f16vec2 less_high;
};
Factors factors_u;
Factors factors_v;

Factors factors_of(HEAD head, const uint half_block) {
    vec2 scales = bytes_of(six_bits(head, 2u * half_block + t / 2u));
    f16vec2 low = f16vec2(scales.xx);
    f16vec2 high = f16vec2(scales.yy * 0.0625);
    return Factors(low, high, f16vec2(scales.xx * -1024.0), f16vec2(scales.yy * -64.0));
}

f16vec2 low_pair(uint w, Factors f) { return fma(about_1024(w, 0x000f000fu), f.low, f.less_low); }

f16vec2 high_pair(uint w, Factors f) { return fma(about_1024(w, 0x00f000f0u), f.high, f.less_high); }

void take_word(const uint step, uint u, uint v, uint slice) {
    if (step % 4u == 0u) {
        factors_u = factors_of(head_u, step / 4u);
        factors_v = factors_of(head_v, step / 4u);
        begin_products();
    }
    fill_left(low_pair(u, factors_u), low_pair(u >> 8, factors_u), low_pair(v, factors_v), low_pair(v >> 8, factors_v));
    multiply(2u * step);
    fill_left(high_pair(u, factors_u), high_pair(u >> 8, factors_u), high_pair(v, factors_v), high_pair(v >> 8, factors_v));
    multiply(2u * step + 1u);
    if (step % 4u == 3u) {
        bool is_some = WHOLE == 1u || slice < p.blocks;
        add_products(is_some ? unpackHalf2x16(head_u.x).x : 0.0, is_some ? unpackHalf2x16(head_v.x).x : 0.0);
    }
}

#ifdef STREAMED
void take_step(const uint step, uvec4 u, uvec4 v, uint slice) { take_word(step, u[step % 4u], v[step % 4u], slice); }
#else
void take_step(const uint step, uint u, uint v, uint slice) { take_word(step, u, v, slice); }
#endif

float sum_of_four(vec4 x) { return (x.x + x.y) + (x.z + x.w); }

#ifdef LAID
// The activation prepack computes the sums of A.
#elif defined(STREAMED)
// Sums of A as matrix operands: the first and the second F16 numbers of two scale groups, stored by
// the lane of that pair.
shared uvec2 stage_sums[2 * PARTS * 32];

// If a chunk is half a block, its two pairs use the first two slots.
void note(uint stage, vec4 x, vec4 next, bool is_finite) {
    vec2 found = vec2(sum_of_four(x), sum_of_four(next)) / SUM_UNIT;
    found += subgroupShuffleXor(found, 1u);
    found += subgroupShuffleXor(found, 4u);
    found += subgroupShuffleXor(found, 8u);
    if (writer_step % 4u == 0u && t % 2u == 0u) {
        uint first = packFloat2x16(f16vec2(first_of(found)));
        uint second = packFloat2x16(second_of(found, is_finite));
        stage_sums[stage * 32u + 4u * writer_row + 2u * (writer_step / 4u) + t / 2u] = uvec2(first, second);
    }
}
#else
// Sums of A for low and for high nibbles, in each half of the block.
vec2 found[2];

void note(const uint step, vec4 x, vec4 next) {
    vec2 more = vec2(sum_of_four(x), sum_of_four(next));
    found[step / 4u] = step % 4u == 0u ? more : found[step / 4u] + more;
}

// A lane has half of the 64 weights of a pair, in each half of the block, and needs the sums of
// pair t.
void end_hold(bool is_finite) {
    [[unroll]] for (uint h = 0u; h < 2u; h++) {
        found[h] += subgroupShuffleXor(found[h], 1u);
        found[h] = subgroupShuffle(found[h], 4u * g + 2u * (t % 2u));
    }
    vec2 own = (t < 2u ? found[0] : found[1]) / SUM_UNIT;
    // With HAS_LOW_ROWS, lanes of the upper rows have second numbers, and contribute no sums here.
    bool is_own = !(HAS_LOW_ROWS && g >= 4u);
    f16vec2 u = f16vec2(is_own ? first_of(own) : vec2(0.0));
    f16vec2 v = second_of(own, is_finite && is_own);
    x_sums[0] = u.x;
    x_sums[1] = u.y;
    x_sums[2] = v.x;
    x_sums[3] = v.y;
}
#endif

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

#ifdef LAID
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
#else
// Float fallback for infinity and NaN: separate sums for scales and minima would yield inf - inf.
void sum_floats(Place place, uint from, uint to) {
    uint block = block_of(place.slice);
    for (uint column = 0u; column < 2u; column++) {
        uint row = 2u * t + column;
        if (units[column] > 0.0) {
            continue;
        }
        vec2 own = vec2(0.0);
        for (uint i = from; i < to && row < p.m && place.slice < p.blocks; i++) {
            float x = x_one(row, place.slice * SLICE + i);
            own += x * vec2(weight_of(place.rows.x, head_u, block, i), weight_of(place.rows.y, head_v, block, i));
        }
        sums[column] = own.x;
        sums[2u + column] = own.y;
    }
}

// Adds the terms of the minima, and the float fallback for elements `from` to `to` of the block.
void add_minima(Place place, uint from, uint to) {
    bool is_some = WHOLE == 1u || place.slice < p.blocks;
    f16vec2 u = minima_of(head_u);
    f16vec2 v = minima_of(head_v);
    fill_left(u, u, v, v);
    products = coopMatMulAdd(left, x_sums, SUMS(0.0));
    add_products(is_some ? unpackHalf2x16(head_u.x).y : 0.0, is_some ? unpackHalf2x16(head_v.x).y : 0.0);
    if (min(units.x, units.y) < 0.0) {
        sum_floats(place, from, to);
    }
}

#ifdef STREAMED
void end_chunk(const uint chunk, Place place, uint stage) {
    // Rows that contain second numbers have no sums.
    bool is_half = CHUNK < STEPS;
    bool has_sums = g < ROWS && (!is_half || t / 2u == chunk);
    uvec2 words = has_sums ? stage_sums[stage * 32u + 4u * g + (is_half ? t % 2u : t)] : uvec2(0u);
    f16vec2 u = halves(words.x);
    f16vec2 v = halves(words.y);
    x_sums[0] = u.x;
    x_sums[1] = u.y;
    x_sums[2] = v.x;
    x_sums[3] = v.y;
    uint from = chunk * CHUNK * STEP_LEN;
    add_minima(place, from, from + CHUNK * STEP_LEN);
}
#else
void end_slice(Place place) { add_minima(place, 0u, SLICE); }
#endif
#endif
