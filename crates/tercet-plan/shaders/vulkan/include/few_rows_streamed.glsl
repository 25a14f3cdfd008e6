// Skinny GEMM with A staged through shared memory. The including shader includes
// few_rows_common.glsl with STREAMED, and defines the weight format:
//
//     WORDS, SPAN, STREAM_AHEAD         type of a lane's words of a row of W in SPAN steps; loads in flight;
//     HEAD                              type of its scales in a slice;
//     words_at(row, slice)              offset of its words, in units of them; `row` is a byte or element offset;
//     load_words(place, load, row)      loads the words of row 0 or 1 of the place;
//     arranged(words)                   the words in the order of the steps;
//     load_head(place, row)             loads the scales of that row;
//     x_at(step, t), X_NEXT             index in a slice of the first four elements of A of lane t in a step, and
//                                       the distance to the next four;
//     X_FIRST, X_SECOND                 the two pairs of a lane in four elements;
//     take_step(step, u, v, slice)      adds the products of a step.
//
// A workgroup computes TILES of 16 rows of W, with one subgroup for each of the PARTS of k. A
// subgroup processes ROUNDS slices of 8 steps, with AHEAD weight loads in flight. A is
// double-buffered in shared memory, in fragment order: while CHUNK steps of each part are used, the
// whole workgroup stages the next ones. Groups are flat over x and y.

// Pitch of a step of A: a vector per lane with the words of two matrices, padded against bank
// conflicts.
const uint STEP_ROW = 36;
const uint STEP_VECS = STEP_ROW * (HAS_LOW ? 2 : 1);
const uint STAGE_VECS = CHUNK * STEP_VECS;
// Two stages per part: one is read while the other is written.
shared uvec4 stages[2 * PARTS * STAGE_VECS];
shared float stage_units[2 * PARTS * 8];
// Chunks per slice.
const uint CHUNKS = STEPS / CHUNK;

#include "few_rows_weights.glsl"

// This lane's sums of a part.
vec4 total;

// Threads that stage A: each handles 8 elements of a row, and CHUNK_LANES threads a row of a chunk.
const uint CHUNK_LANES = 4 * CHUNK;
const uint WRITERS = ROWS * PARTS * CHUNK_LANES;
// Loaded elements of A, not yet staged.
uvec4 x_words[2];

// Loads four elements of a row of A; rows are clamped to the last one.
uvec4 x_four(uint row, uint k) {
    bool is_some = WHOLE == 1u || k < p.k;
    uint at = (p.a_offset + min(row, p.m - 1u) * p.a_row + (is_some ? k : 0u)) / 4u;
    uvec4 x = A_TYPE == F32 ? a_vec[at] : uvec4(a_pair[at], 0u, 0u);
    return is_some ? x : uvec4(0u);
}

vec4 floats_of(uvec4 x) {
    return A_TYPE == F32 ? uintBitsToFloat(x)
         : A_TYPE == F16 ? vec4(unpackHalf2x16(x.x), unpackHalf2x16(x.y))
                         : uintBitsToFloat(uvec4(x.x << 16, x.x & 0xffff0000u, x.y << 16, x.y & 0xffff0000u));
}

// Loads this thread's elements of A for a chunk of a round.
void fetch(uint round, uint chunk) {
    if (gl_LocalInvocationIndex < WRITERS) {
        uint k = (writer_part * ROUNDS + round) * SLICE + x_at(chunk * CHUNK + writer_step, t);
        x_words[0] = x_four(writer_row, k);
        x_words[1] = x_four(writer_row, k + X_NEXT);
    }
}

// First F16 numbers of two pairs of elements.
uvec2 firsts_of(vec2 x, vec2 next) {
    return A_TYPE == F32 ? uvec2(packFloat2x16(f16vec2(first_of(x))), packFloat2x16(f16vec2(first_of(next))))
                         : uvec2(packFloat2x16(f16vec2(x)), packFloat2x16(f16vec2(next)));
}

uvec2 seconds_of(vec2 x, vec2 next, bool is_finite) {
    return uvec2(packFloat2x16(second_of(x, is_finite)), packFloat2x16(second_of(next, is_finite)));
}

// Stages the loaded elements in the first or the second stage.
void put(uint which) {
    if (gl_LocalInvocationIndex >= WRITERS) {
        return;
    }
    vec4 x = floats_of(x_words[0]);
    vec4 next = floats_of(x_words[1]);
    float unit = 1.0;
    bool is_finite = true;
    if (A_TYPE != F16) {
        uvec4 most = max(floatBitsToUint(x) & 0x7fffffffu, floatBitsToUint(next) & 0x7fffffffu);
        uint size = max(max(most.x, most.y), max(most.z, most.w));
        [[unroll]] for (uint lanes = 1u; lanes < CHUNK_LANES; lanes *= 2u) {
            size = max(size, subgroupShuffleXor(size, lanes));
        }
        is_finite = size < 0x7f800000u;
        uint exponent = max(size >> 23, 15u);
        float scale = uintBitsToFloat((268u - exponent) << 23);
        x *= scale;
        next *= scale;
        unit = uintBitsToFloat((exponent - 14u) << 23);
    }
    uint stage = which * PARTS + writer_part;
    uint to = stage * STAGE_VECS + writer_step * STEP_VECS + 4u * writer_row + t;
    stages[to] = uvec4(firsts_of(x.X_FIRST, x.X_SECOND), firsts_of(next.X_FIRST, next.X_SECOND));
    if (A_TYPE == F32) {
        uvec2 seconds = seconds_of(x.X_FIRST, x.X_SECOND, is_finite);
        stages[to + (HAS_LOW ? STEP_ROW : 16u)] = uvec4(seconds, seconds_of(next.X_FIRST, next.X_SECOND, is_finite));
    }
    if (gl_LocalInvocationIndex % CHUNK_LANES == 0u) {
        stage_units[stage * 8u + writer_row] = unit;
    }
}

void fill_right(const uint at, uvec2 words) {
    f16vec2 u = halves(words.x);
    f16vec2 v = halves(words.y);
    high[at][0] = u.x;
    high[at][1] = u.y;
    high[at][2] = v.x;
    high[at][3] = v.y;
}

void fill_low(const uint at, uvec2 words) {
    f16vec2 u = halves(words.x);
    f16vec2 v = halves(words.y);
    low[at][0] = u.x;
    low[at][1] = u.y;
    low[at][2] = v.x;
    low[at][3] = v.y;
}

// Fills the matrices with A of a step from a stage.
void hold(const uint step, uint stage) {
    uint at = stage * STAGE_VECS + step % CHUNK * STEP_VECS + gl_SubgroupInvocationID;
    uvec4 words = stages[at];
    fill_right(0u, words.xy);
    fill_right(1u, words.zw);
    if (HAS_LOW) {
        words = stages[at + STEP_ROW];
        fill_low(0u, words.xy);
        fill_low(1u, words.zw);
    }
}

// Offset of a subgroup's final sums; a vector contains the sums of a lane.
uint share_at(uint tile, uint part) { return (tile * PARTS + part) * 32u; }

// Sum of row `row` of A and column `column` of a tile, over all parts.
float sum_of(uint tile, uint row, uint column) {
    float sum = 0.0;
    uint from = column % 8u * 4u + row / 2u;
    uint place = column / 8u * 2u + row % 2u;
    [[unroll]] for (uint part = 0u; part < PARTS; part++) {
        sum += uintBitsToFloat(stages[share_at(tile, part) + from][place]);
        if (HAS_LOW_ROWS) {
            sum += uintBitsToFloat(stages[share_at(tile, part) + from + 2u][place]);
        }
    }
    return sum;
}

#define STORED_ROWS ROWS

uint row_of(uint i) { return i; }

#include "few_rows_store.glsl"

// Adds the sums of a chunk to the total.
void take_chunk(const uint chunk, Place place, Place next, uint stage) {
    sums = vec4(0.0);
    [[unroll]] for (uint s = chunk * CHUNK; s < (chunk + 1u) * CHUNK; s++) {
        if (s % SPAN == 0u) {
            next_words(s / SPAN, place, next);
        }
        hold(s, stage);
        take_step(s, u, v, place.slice);
    }
    uint first = stage * 8u + 2u * t % ROWS;
    units = vec2(stage_units[first], stage_units[first + 1u]);
    total += sums * units.xyxy;
}

void main() {
    g = gl_SubgroupInvocationID / 4u;
    t = gl_SubgroupInvocationID % 4u;
    uint writer = gl_LocalInvocationIndex / CHUNK_LANES;
    writer_row = writer / PARTS;
    writer_part = writer % PARTS;
    writer_step = gl_LocalInvocationIndex % CHUNK_LANES / 4u;
    uint first_tile = (gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x) * TILES;
    if (first_tile * 16u >= p.n) {
        return;
    }
    // Subgroups beyond the tiles only stage A.
    uint tile = gl_SubgroupID / PARTS;
    uint part = gl_SubgroupID % PARTS;
    bool takes = tile < TILES;
    Place place = place_of(first_tile + tile, part * ROUNDS);
    HEAD next_u;
    HEAD next_v;
    fetch(0u, 0u);
    if (takes) {
        next_u = load_head(place, 0u);
        next_v = load_head(place, 1u);
        [[unroll]] for (uint i = 0u; i < AHEAD; i++) {
            words_u[i] = load_words(place, i, 0u);
            words_v[i] = load_words(place, i, 1u);
        }
    }
    put(0u);
    fetch(CHUNKS > 1u ? 0u : min(1u, ROUNDS - 1u), CHUNKS > 1u ? 1u : 0u);
    barrier();
    total = vec4(0.0);
    for (uint round = 0u; round < ROUNDS; round++) {
        uint next_round = min(round + 1u, ROUNDS - 1u);
        Place next = place_of(first_tile + tile, part * ROUNDS + next_round);
        head_u = next_u;
        head_v = next_v;
        if (takes) {
            next_u = load_head(next, 0u);
            next_v = load_head(next, 1u);
        }
        [[unroll]] for (uint chunk = 0u; chunk < CHUNKS; chunk++) {
            uint which = (round * CHUNKS + chunk) % 2u;
            if (round + 1u < ROUNDS || chunk + 1u < CHUNKS) {
                put(which ^ 1u);
                // True if the chunk after the next is in this round.
                bool is_here = chunk + 2u < CHUNKS;
                uint later = chunk + 2u < 2u * CHUNKS ? next_round : min(round + 2u, ROUNDS - 1u);
                fetch(is_here ? round : later, (chunk + 2u) % CHUNKS);
            }
            if (takes) {
                take_chunk(chunk, place, next, which * PARTS + part);
            }
            barrier();
        }
        place = next;
    }
    if (takes) {
        stages[share_at(tile, part) + gl_SubgroupInvocationID] = floatBitsToUint(total);
    }
    barrier();
    store(first_tile, 0u);
}
