// Up to some dozens of rows times a format of weights, A laid out by lay_rows.wgsl. What includes this has included
// few_rows_common.glsl with STREAMED and LAID, and says of the format what few_rows_streamed.glsl lists, but for what is of
// chunks of A; with HAS_MINIMA
//
//     end_slice(place, slice)           adds what is not of a step; `slice` counts those of all rows before, too
//
// A workgroup has TILES of 16 rows of W and a subgroup for each of the PARTS of k of a tile, which goes through ROUNDS
// slices of 8 steps and decodes each weight once for all ROWS of A. What a lane needs of these in a step lies together, so
// that subgroups read it from the cache that those of a workgroup share: nobody waits for anybody before the end. Groups
// flat over x and y, in z one for each ROWS of A.

#ifndef HAS_MINIMA
void end_slice(Place place, uint slice) {}
#endif

#include "few_rows_weights.glsl"

// Vectors of the rows of A in a step.
const uint STEP_VECS = GROUPS * NUMBERS * 32;

// Sums of each tile and part, those of a lane of 8 rows in a vector.
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

// Rows of A that are under way, of ROWS_AHEAD steps.
const uint STEP_WORDS = GROUPS * NUMBERS;
uvec4 coming[ROWS_AHEAD * STEP_WORDS];

// Asks for the rows of A of a step, the last one where there is no such step.
void ask(const uint place, uint step, uint last) {
    uint from = min(step, last) * STEP_VECS + gl_SubgroupInvocationID;
    [[unroll]] for (uint i = 0u; i < STEP_WORDS; i++) {
        coming[place * STEP_WORDS + i] = rows_vec[from + i * 32u];
    }
}

// Takes those of a step, and asks for the ones that come ROWS_AHEAD after it.
void hold(const uint s, uint first_step, uint last) {
    const uint place = s % ROWS_AHEAD;
    [[unroll]] for (uint i = 0u; i < STEP_WORDS; i++) {
        held[i] = coming[place * STEP_WORDS + i];
    }
    ask(place, first_step + s + ROWS_AHEAD, last);
}

// What 1 is in the lane's columns of a slice.
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
