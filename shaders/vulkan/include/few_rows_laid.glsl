// Small-M GEMM with prepacked activations (lay_rows.wgsl), for up to some dozens of rows. The
// including shader includes few_rows_common.glsl with STREAMED and LAID. That shader also defines
// the functions that few_rows_streamed.glsl lists, except those for chunks of A. With HAS_MINIMA it
// also defines
//
//     end_slice(place, slice)           adds terms that belong to no step; `slice` also counts those of earlier
//                                       rows.
//
// A workgroup computes TILES of 16 rows of W, with one subgroup for each of the PARTS of k. A
// subgroup processes ROUNDS slices of 8 steps and dequantizes each weight once for all ROWS of A.
// The words of A that a lane needs in a step are contiguous, and subgroups share them through the
// L1 cache. There is no barrier before the end. Groups are flat over x and y; z counts blocks of
// ROWS rows of A.

#ifndef HAS_MINIMA
void end_slice(Place place, uint slice) {}
#endif

#include "few_rows_weights.glsl"

// Vectors of A per step.
const uint STEP_VECS = GROUPS * NUMBERS * 32;

// Sums of each tile and part; a vector contains a lane's sums of 8 rows.
shared vec4 shares[TILES * PARTS * GROUPS * 32];
uint first_row;
#define FIRST_ROW first_row

uint share_at(uint tile, uint part, uint group) { return ((tile * PARTS + part) * GROUPS + group) * 32u; }

float sum_of(uint tile, uint row, uint column) {
    float sum = 0.0;
    uint from = column % 8u * 4u + row % 8u / 2u;
    uint place = column / 8u * 2u + row % 2u;
    [[unroll]] for (uint part = 0u; part < PARTS; part++) {
        sum += shares[share_at(tile, part, row / 8u) + from][place];
    }
    return sum;
}

#include "few_rows_store.glsl"

// Prefetched words of A, for ROWS_AHEAD steps.
const uint STEP_WORDS = GROUPS * NUMBERS;
uvec4 coming[ROWS_AHEAD * STEP_WORDS];

// Loads the words of A of a step; steps are clamped to the last one.
void ask(const uint place, uint step, uint last) {
    uint from = min(step, last) * STEP_VECS + gl_SubgroupInvocationID;
    [[unroll]] for (uint i = 0u; i < STEP_WORDS; i++) {
        coming[place * STEP_WORDS + i] = rows_vec[from + i * 32u];
    }
}

// Takes the words of a step, and prefetches those of the step ROWS_AHEAD later.
void hold(const uint s, uint first_step, uint last) {
    const uint place = s % ROWS_AHEAD;
    [[unroll]] for (uint i = 0u; i < STEP_WORDS; i++) {
        held[i] = coming[place * STEP_WORDS + i];
    }
    ask(place, first_step + s + ROWS_AHEAD, last);
}

// Scale of A in this lane's columns of a slice.
void hold_units(uint slice) {
    [[unroll]] for (uint i = 0u; i < GROUPS; i++) {
        uint at = p.units_at + slice * ROWS + 8u * i + 2u * t;
        units[i] = vec2(rows_unit[at], rows_unit[at + 1u]);
    }
}

void main() {
    g = gl_SubgroupInvocationID / 4u;
    t = gl_SubgroupInvocationID % 4u;
    first_row = gl_WorkGroupID.z * ROWS;
    uint first_tile = (gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x) * TILES;
    if (first_tile * RESULTS >= p.n / (1u + GATED)) {
        return;
    }
    uint tile = gl_SubgroupID / PARTS;
    uint part = gl_SubgroupID % PARTS;
    Place place = place_of(first_tile + tile, part * ROUNDS);
    HEAD next_u = load_head(place, 0u);
    HEAD next_v = load_head(place, 1u);
    [[unroll]] for (uint i = 0u; i < AHEAD; i++) {
        words_u[i] = load_words(place, i, 0u);
        words_v[i] = load_words(place, i, 1u);
    }
    [[unroll]] for (uint i = 0u; i < GROUPS; i++) {
        sums[i] = vec4(0.0);
    }
    uint first_step = (gl_WorkGroupID.z * p.slices + part * ROUNDS) * STEPS;
    uint last = first_step + ROUNDS * STEPS - 1u;
    [[unroll]] for (uint i = 0u; i < ROWS_AHEAD; i++) {
        ask(i, first_step + i, last);
    }
    for (uint round = 0u; round < ROUNDS; round++) {
        Place next = place_of(first_tile + tile, part * ROUNDS + min(round + 1u, ROUNDS - 1u));
        head_u = next_u;
        head_v = next_v;
        next_u = load_head(next, 0u);
        next_v = load_head(next, 1u);
        uint slice = gl_WorkGroupID.z * p.slices + part * ROUNDS + round;
        hold_units(slice);
        [[unroll]] for (uint s = 0u; s < STEPS; s++) {
            hold(s, slice * STEPS, last);
            if (s % SPAN == 0u) {
                next_words(s / SPAN, place, next);
            }
            take_step(s, u, v, place.slice);
        }
        end_slice(place, slice);
        place = next;
    }
    [[unroll]] for (uint i = 0u; i < GROUPS; i++) {
        shares[share_at(tile, part, i) + gl_SubgroupInvocationID] = sums[i];
    }
    barrier();
    store(first_tile);
}
