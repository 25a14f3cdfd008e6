// Small-M GEMM with prepacked activations (lay_rows.wgsl), for up to some hundred rows. The
// including shader includes few_rows_common.glsl with STREAMED and LAID. That shader also defines
// the functions that few_rows_streamed.glsl lists, except those for chunks of A. With HAS_MINIMA it
// also defines
//
//     end_slice(place, slice)           adds terms that belong to no step; `slice` also counts those of earlier
//                                       rows.
//
// A workgroup computes TILES of 16 rows of W times ROWS rows of A. It has a subgroup for each tile and
// part of k. A subgroup processes ROUNDS slices of 8 steps and dequantizes each weight once for all
// rows. If there are many rows, A is double-buffered in shared memory in fragment order: while the
// subgroups multiply CHUNK steps of each part of k, the workgroup loads the next ones. If there are few
// rows, a lane loads its words of A into registers, without a barrier before the end; the subgroups
// share these words through the L1 cache.
//
// Groups are flat over x and y: the block of rows changes first, so that blocks of the same weights run
// together, then the split of k, then the tiles.

#ifndef HAS_MINIMA
void end_slice(Place place, uint slice) {}
#endif

#include "few_rows_weights.glsl"

// Vectors of A per step, and per stage of a part of k.
const uint STEP_VECS = GROUPS * NUMBERS * 32;
const uint PART_VECS = (IS_STAGED ? CHUNK : 1) * STEP_VECS;
const uint STAGE_VECS = PARTS * PART_VECS;
// Steps between two barriers.
const uint CHUNK_STEPS = IS_STAGED ? CHUNK : STEPS;
// Vectors that a thread loads for a stage.
const uint COPIES = (STAGE_VECS + THREADS - 1) / THREADS;
const uint STAGE_UNITS = PARTS * ROWS / 2;
const uint CHUNKS = STEPS / CHUNK_STEPS;
// Distance of the slices of a part of k. Parts take turns, so that the bytes of a row of W that are read
// at a time are contiguous.
const uint STRIDE = PARTS * SPLITS;
// Rows that are stored at once.
const uint STORED_ROWS = PASS * 8;

// True if the weights of a whole slice are loaded ahead.
const bool IS_SLICE_AHEAD = !IS_STAGED && AHEAD == LOADS;
WORDS now_u[IS_SLICE_AHEAD ? LOADS : 1];
WORDS now_v[IS_SLICE_AHEAD ? LOADS : 1];

// Does nothing at run time. The compiler must assume that it uses the weights in flight; otherwise it
// would move their loads down to the end of the slice.
void ask_for_words() {
    for (uint i = 0u; i < p.zero; i++) {
        [[unroll]] for (uint j = 0u; j < LOADS; j++) {
            pool[i * LOADS + j] = uvec2(bits_of(words_u[j]), bits_of(words_v[j]));
        }
    }
}

uint row_block;
// First slice of the workgroup.
uint first_slice;
uint pass;
// Words and scales of A in flight: of a stage, or of ROWS_AHEAD steps.
const uint STEP_WORDS = GROUPS * NUMBERS;
uvec4 coming[IS_STAGED ? COPIES : ROWS_AHEAD * STEP_WORDS];
vec2 coming_units;

// Loads this thread's words of the next stage.
void fetch(uint round, const uint chunk) {
    [[unroll]] for (uint i = 0u; i < COPIES; i++) {
        uint at = i * THREADS + gl_LocalInvocationIndex;
        uint step = (first_slice + round * STRIDE + at / PART_VECS) * STEPS + chunk * CHUNK;
        if (STAGE_VECS % THREADS == 0u || at < STAGE_VECS) {
            coming[i] = rows_vec[step * STEP_VECS + at % PART_VECS];
        }
    }
    uint at = gl_LocalInvocationIndex;
    if (at < STAGE_UNITS) {
        uint slice = first_slice + round * STRIDE + at / (ROWS / 2u);
        uint from = p.units_at + slice * ROWS + 2u * (at % (ROWS / 2u));
        coming_units = vec2(rows_unit[from], rows_unit[from + 1u]);
    }
}

#ifdef HAS_MINIMA
// True if a slice of a row needs the float fallback.
shared bool has_floats;
uint first_tile;

// Offset in bytes of a row of W, by tile of the workgroup and column of the tile.
uint column_of(uint tile, uint column) {
    uint half_n = p.n / 2u;
    uint at = (first_tile + tile) * 16u + column;
    if (GATED == 1u) {
        at = min((first_tile + tile) * 8u + column % 8u, half_n - 1u) + column / 8u * half_n;
    }
    return p.b_offset + min(at, p.n - 1u) * p.b_col;
}
#endif

// Stores these words in the first or the second stage.
void put(uint which) {
    [[unroll]] for (uint i = 0u; i < COPIES; i++) {
        uint at = i * THREADS + gl_LocalInvocationIndex;
        uint to = 2u * which * STAGE_VECS + at + at / STEP_VECS * STEP_VECS;
        if (STAGE_VECS % THREADS == 0u || at < STAGE_VECS) {
            pool[to] = coming[i].xy;
            pool[to + STEP_VECS] = coming[i].zw;
        }
    }
    if (gl_LocalInvocationIndex < STAGE_UNITS) {
        stage_units[which * STAGE_UNITS + gl_LocalInvocationIndex] = coming_units;
#ifdef HAS_MINIMA
        if (min(coming_units.x, coming_units.y) < 0.0) {
            has_floats = true;
        }
#endif
    }
}

// Loads this lane's words of A of a step; place is its place among the steps in flight.
void ask(const uint place, uint slice, const uint step) {
    uint from = (slice * STEPS + step) * STEP_VECS + gl_SubgroupInvocationID;
    [[unroll]] for (uint i = 0u; i < STEP_WORDS; i++) {
        coming[place * STEP_WORDS + i] = rows_vec[from + i * 32u];
    }
}

// Takes the words of a step of a slice, and loads those of the step ROWS_AHEAD later.
void hold(const uint s, uint slice, uint next_slice) {
    const uint place = s % ROWS_AHEAD;
    [[unroll]] for (uint i = 0u; i < STEP_WORDS; i++) {
        held[i] = coming[place * STEP_WORDS + i];
    }
    ask(place, s + ROWS_AHEAD < STEPS ? slice : next_slice, (s + ROWS_AHEAD) % STEPS);
}

void hold_units(uint slice) {
    [[unroll]] for (uint i = 0u; i < GROUPS; i++) {
        uint at = p.units_at + slice * ROWS + 8u * i + 2u * t;
        units[i] = vec2(rows_unit[at], rows_unit[at + 1u]);
#ifdef HAS_MINIMA
        if (min(units[i].x, units[i].y) < 0.0) {
            has_floats = true;
        }
#endif
    }
}

// Offset of the sums of a subgroup's group of 8 rows: this lane's sums of row g of a tile, then those
// of row g + 8.
uint share_at(uint tile, uint part, uint group) {
    return ((tile * PARTS + part) * PASS + group) * 64u;
}

uint row_of(uint i) { return row_block * ROWS + pass * STORED_ROWS + i; }

float sum_of(uint tile, uint i, uint column) {
    float sum = 0.0;
    uint from = column / 8u * 32u + column % 8u * 4u + i % 8u / 2u;
    [[unroll]] for (uint part = 0u; part < PARTS; part++) {
        uint at = share_at(tile, part, i / 8u) + from;
        sum += uintBitsToFloat(pool[at][i % 2u]);
    }
#ifdef HAS_MINIMA
    if (has_floats) {
        uint row = row_of(i);
        for (uint i = 0u; i < PARTS * ROUNDS; i++) {
            uint slice = first_slice + i / PARTS * STRIDE + i % PARTS;
            if (rows_unit[p.units_at + slice * ROWS + row % ROWS] < 0.0) {
                sum += sum_floats(row, slice - row_block * p.slices, column_of(tile, column));
            }
        }
    }
#endif
    return sum;
}

#include "few_rows_store.glsl"

void main() {
    g = gl_SubgroupInvocationID / 4u;
    t = gl_SubgroupInvocationID % 4u;
    uint id = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    uint row_blocks = (p.m + ROWS - 1u) / ROWS;
    row_block = id % row_blocks;
    uint split = id / row_blocks % SPLITS;
#ifndef HAS_MINIMA
    uint first_tile;
#endif
    first_tile = id / row_blocks / SPLITS * TILES;
    if (first_tile * RESULTS >= p.n / (1u + GATED)) {
        return;
    }
    uint tile = gl_SubgroupID / PARTS;
    uint part = gl_SubgroupID % PARTS;
    uint own_slice = split * PARTS + part;
    first_slice = row_block * p.slices + split * PARTS;
    Place place = place_of(first_tile + tile, own_slice);
    Place next = place_of(first_tile + tile, own_slice + min(1u, ROUNDS - 1u) * STRIDE);
    head_u = load_head(place, 0u);
    head_v = load_head(place, 1u);
    [[unroll]] for (uint i = 0u; i < AHEAD; i++) {
        words_u[i] = load_words(place, i, 0u);
        words_v[i] = load_words(place, i, 1u);
    }
    HEAD next_u = load_head(next, 0u);
    HEAD next_v = load_head(next, 1u);
    [[unroll]] for (uint i = 0u; i < GROUPS; i++) {
        sums[i] = vec4(0.0);
        slice_sums[i] = vec4(0.0);
    }
#ifdef HAS_MINIMA
    if (gl_LocalInvocationIndex == 0u) {
        has_floats = false;
    }
    barrier();
#endif
    uint own_block = row_block * p.slices;
    if (IS_STAGED) {
        fetch(0u, 0u);
    } else {
        [[unroll]] for (uint i = 0u; i < ROWS_AHEAD; i++) {
            ask(i, own_block + own_slice, i);
        }
    }
    if (!IS_SLICE_AHEAD) {
        next_words(0u, place, next);
    }
    if (IS_STAGED) {
        put(0u);
        barrier();
    }
    for (uint round = 0u; round < ROUNDS; round++) {
        Place after = place_of(first_tile + tile, own_slice + min(round + 2u, ROUNDS - 1u) * STRIDE);
        if (IS_SLICE_AHEAD) {
            [[unroll]] for (uint i = 0u; i < LOADS; i++) {
                now_u[i] = words_u[i];
                now_v[i] = words_v[i];
                words_u[i] = load_words(next, i, 0u);
                words_v[i] = load_words(next, i, 1u);
            }
            ask_for_words();
        }
        uint slice = own_block + place.slice;
        if (!IS_STAGED) {
            hold_units(slice);
        }
        [[unroll]] for (uint chunk = 0u; chunk < CHUNKS; chunk++) {
            uint which = (round * CHUNKS + chunk) % 2u;
            bool is_last = round + 1u == ROUNDS && chunk + 1u == CHUNKS;
            if (IS_STAGED && !is_last) {
                fetch(chunk + 1u < CHUNKS ? round : round + 1u, (chunk + 1u) % CHUNKS);
            }
            stage_at = 2u * (which * STAGE_VECS + part * PART_VECS) + gl_SubgroupInvocationID;
            units_from = which * STAGE_UNITS + part * ROWS / 2u + t;
            const uint following = (chunk + 1u) * CHUNK_STEPS;
            [[unroll]] for (uint s = chunk * CHUNK_STEPS; s < following; s++) {
                if (!IS_STAGED) {
                    hold(s, slice, own_block + next.slice);
                }
                if (IS_SLICE_AHEAD && s % SPAN == 0u) {
                    u = arranged(now_u[s / SPAN]);
                    v = arranged(now_v[s / SPAN]);
                } else if (s % SPAN == 0u && s % CHUNK_STEPS != 0u) {
                    next_words(s / SPAN, place, next);
                }
                take_step(s, u, v, place.slice);
            }
            // Compilers move loads down to their first use, but not across a barrier.
            if (chunk + 1u == CHUNKS) {
                end_slice(place, slice);
                add_slice();
                head_u = next_u;
                head_v = next_v;
                next_u = load_head(after, 0u);
                next_v = load_head(after, 1u);
                if (!IS_SLICE_AHEAD) {
                    next_words(0u, next, after);
                }
            } else if (following % SPAN == 0u) {
                next_words(following / SPAN, place, next);
            }
            if (IS_STAGED) {
                if (!is_last) {
                    put(which ^ 1u);
                }
                barrier();
            }
        }
        place = next;
        next = after;
    }
    for (pass = 0u; pass < GROUPS / PASS; pass++) {
        // The stores of the pass before have read the sums.
        if (pass > 0u) {
            barrier();
        }
        [[unroll]] for (uint i = 0u; i < GROUPS; i++) {
            if (i / PASS == pass) {
                uint to = share_at(tile, part, i % PASS) + gl_SubgroupInvocationID;
                pool[to] = floatBitsToUint(sums[i].xy);
                pool[to + 32u] = floatBitsToUint(sums[i].zw);
            }
        }
        barrier();
        store(first_tile, split * p.m * p.n);
    }
}
