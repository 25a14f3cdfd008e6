// Inter-chunk state passing of chunked state-space scans, after chunk_rows.glsl: Mamba-2 (Dao and
// Gu, "Transformers are SSMs", 2024) and the gated delta rule (Yang et al., "Gated Delta Networks",
// 2024). Let S [STATES, COLUMNS] be the state before a chunk of CHUNK steps. E and L are the
// chunk's rows of `enter` (b or k) and `leave` (c or q), and X are its values:
//
//     Y = exp(l) o (L S) + mixes V;    S = exp(l_end) S + E^T (weights o V).
//
// V is X for Mamba-2, and inverses (X - exp(l) o (E S)) for the delta rule. Matmul operands are
// 16-bit; sums and the state are F32. As an operand, the state is 16-bit times a power of two that
// brings the largest element near 2^10.
//
// A workgroup processes COLUMNS channels of a head through all chunks, with 4 PARTS subgroups.
// Subgroup i owns the 16 rows i % 4 of a chunk, a quarter of the states, and the columns of part i
// / 4 in both. The data of the next chunk is loaded into registers during the computation. Shared
// memory has space for the rows of one operand and for one square, which are staged in turn. For
// Mamba-2, the rows are staged in the order leave, enter. For the delta rule, the order is enter,
// leave, enter, and the inverse is staged before the mixes.
//
// Initial and last states are rows of columns for the delta rule, with 16-bit initial states. For
// Mamba-2, both are rows of states, one per column, in F32.
//
// Constraints: STATES is a multiple of 16, COLUMNS of 16 PARTS. Rows of a tensor are multiples of
// 16 bytes.

#include "chunk_common.glsl"

layout(constant_id = 4) const uint COLUMNS = 32;
layout(constant_id = 5) const uint PARTS = 1;
layout(constant_id = 6) const uint INITIAL = 0; // 1: there is an initial state
layout(constant_id = 7) const uint CARRY = 0; // 1: writes the last state

layout(set = 0, binding = 0) uniform Params {
    uint steps;
    uint chunks;
    uint heads;
    uint groups;
    uint columns;
    uint tiles;
    uint count;
    float scale;
} p;

layout(set = 0, binding = 1) readonly buffer Enter { uvec4 enter[]; };
layout(set = 0, binding = 2) readonly buffer Leave { uvec4 leave[]; };
layout(set = 0, binding = 3) readonly buffer Values { uvec4 values[]; };
layout(set = 0, binding = 4) writeonly buffer Results { uvec4 results[]; };
layout(set = 0, binding = 5) readonly buffer Mixes { uvec4 mixes[]; };
layout(set = 0, binding = 6) readonly buffer Inverses { uvec4 inverses[]; };
layout(set = 0, binding = 7) readonly buffer Factors { float factors[]; };
layout(set = 0, binding = 8) readonly buffer Initial { uvec4 initial[]; };
layout(set = 0, binding = 9) writeonly buffer Last { vec4 last[]; };

// Fragments of a subgroup: columns, and blocks of states.
const uint OWN = COLUMNS / 16 / PARTS;
const uint DEEP = (STATE_BLOCKS + 3) / 4;

// Lengths in 16-byte words: rows of a chunk, a square, matrices with COLUMNS elements per step, and
// states. Rows have one word of padding against bank conflicts.
const uint VALUE_WORDS = COLUMNS / 8;
const uint ROW_STRIDE = ROW_WORDS + 1;
const uint SQUARE_STRIDE = CHUNK / 8 + 1;
const uint STRIDE = VALUE_WORDS + 1;
const uint LENGTH = CHUNK * STRIDE;
const uint SQUARE_AT = CHUNK * ROW_STRIDE;
// Delta rule: X, then X - exp(l) o (E S), then V times weights. Mamba-2: X, then results.
const uint VALUES_AT = SQUARE_AT + CHUNK * SQUARE_STRIDE;
// Delta rule: V, then results. Mamba-2: X times weights.
const uint OTHER_AT = VALUES_AT + LENGTH;
const uint STATES_AT = OTHER_AT + LENGTH;
const uint SLABS_AT = STATES_AT + STATES * STRIDE;
// One fragment of sums per subgroup, for devices that cannot convert accumulators to 16 bits.
const uint SLAB_STRIDE = 5;
const uint SLABS = (1 - NARROW_SUMS) * SUBGROUPS * 16 * SLAB_STRIDE;
shared uvec4 tiles[SLABS_AT + SLABS];
// Factor of the old state at each step, and factor of each step at the end of the chunk.
shared vec4 numbers[ABOUT / 4];
shared float greatest[SUBGROUPS];

const uint MIXED_AT = DELTA == 1u ? OTHER_AT : VALUES_AT;
const uint WEIGHED_AT = DELTA == 1u ? VALUES_AT : OTHER_AT;
const uint ROW_LOADS = (CHUNK * ROW_WORDS + THREADS - 1) / THREADS;
const uint SQUARE_LOADS = (SQUARE_WORDS + THREADS - 1) / THREADS;
const uint VALUE_LOADS = (CHUNK * VALUE_WORDS + THREADS - 1) / THREADS;
const uint STATE_LOADS = (STATES * VALUE_WORDS + THREADS - 1) / THREADS;

// Position of the workgroup in 16-byte words; the subgroup's block of rows, and its first word of
// columns.
uint row_base;
uint row_stride;
uint value_base;
uint value_stride;
uint first_square;
uint block;
uint word;

// Prefetched data of the next chunk.
uvec4 next_enter[ROW_LOADS];
uvec4 next_leave[ROW_LOADS];
uvec4 next_mixes[SQUARE_LOADS];
uvec4 next_inverse[SQUARE_LOADS];
uvec4 next_values[VALUE_LOADS];
float next_weights[VALUE_LOADS];
float next_number;
vec3 next_about;
// Data of the current chunk that is staged later.
uvec4 own_enter[ROW_LOADS];
uvec4 own_leave[ROW_LOADS];
uvec4 own_mixes[SQUARE_LOADS];

SUMS states[DEEP * OWN];
// Scale of the states as matmul operands.
float state_by;

// Subgroup barrier: makes the subgroup's writes to shared memory visible to all its threads.
void subgroup_meets() {
    controlBarrier(gl_ScopeSubgroup, gl_ScopeSubgroup, gl_StorageSemanticsShared,
        gl_SemanticsAcquireRelease);
}

// Stores a fragment of sums as 16-bit numbers, in rows of STRIDE words from word `at` on.
void store_narrow(SUMS x, uint at) {
#if NARROW_SUMS
    coopMatStore(NARROW(x), tiles, at, STRIDE, ROWS);
#else
    uint slab = SLABS_AT + gl_SubgroupID * 16u * SLAB_STRIDE;
    coopMatStore(x, tiles, slab, SLAB_STRIDE, ROWS);
    subgroup_meets();
    for (uint i = gl_SubgroupInvocationID; i < 32u; i += SUBGROUP) {
        vec4 a = uintBitsToFloat(tiles[slab + i / 2u * SLAB_STRIDE + i % 2u * 2u]);
        vec4 b = uintBitsToFloat(tiles[slab + i / 2u * SLAB_STRIDE + i % 2u * 2u + 1u]);
        tiles[at + i / 2u * STRIDE + i % 2u] =
            uvec4(two_bits(a.xy), two_bits(a.zw), two_bits(b.xy), two_bits(b.zw));
    }
    subgroup_meets();
#endif
}

// Loads a fragment of sums from 16-bit numbers; the inverse of `store_narrow`.
SUMS load_wide(uint at) {
#if NARROW_SUMS
    NARROW x;
    coopMatLoad(x, tiles, at, STRIDE, ROWS);
    return SUMS(x);
#else
    uint slab = SLABS_AT + gl_SubgroupID * 16u * SLAB_STRIDE;
    for (uint i = gl_SubgroupInvocationID; i < 32u; i += SUBGROUP) {
        uvec4 x = tiles[at + i / 2u * STRIDE + i % 2u];
        uint to = slab + i / 2u * SLAB_STRIDE + i % 2u * 2u;
        tiles[to] = floatBitsToUint(vec4(two_of(x.x), two_of(x.y)));
        tiles[to + 1u] = floatBitsToUint(vec4(two_of(x.z), two_of(x.w)));
    }
    subgroup_meets();
    SUMS x;
    coopMatLoad(x, tiles, slab, SLAB_STRIDE, ROWS);
    subgroup_meets();
    return x;
#endif
}

// Loads the data of a chunk into registers.
void load(uint chunk) {
    uint first = first_of(chunk, p.steps);
    uint about = (first_square + chunk) * FACTORS;
    uint square = (first_square + chunk) * SQUARE_WORDS;
    [[unroll]] for (uint i = 0u; i < ROW_LOADS; i++) {
        uint at = min(gl_LocalInvocationIndex + i * THREADS, CHUNK * ROW_WORDS - 1u);
        uint from = row_base + (first + at / ROW_WORDS) * row_stride + at % ROW_WORDS;
        next_enter[i] = enter[from];
        next_leave[i] = leave[from];
    }
    [[unroll]] for (uint i = 0u; i < SQUARE_LOADS; i++) {
        uint at = min(gl_LocalInvocationIndex + i * THREADS, SQUARE_WORDS - 1u);
        next_mixes[i] = mixes[square + at];
        next_inverse[i] = DELTA == 1u ? inverses[square + at] : uvec4(0u);
    }
    [[unroll]] for (uint i = 0u; i < VALUE_LOADS; i++) {
        uint at = min(gl_LocalInvocationIndex + i * THREADS, CHUNK * VALUE_WORDS - 1u);
        next_values[i] = values[value_base + (first + at / VALUE_WORDS) * value_stride + at % VALUE_WORDS];
        next_weights[i] = DELTA == 1u ? 0.0 : factors[about + CHUNK + at / VALUE_WORDS];
    }
    next_number = factors[about + min(gl_LocalInvocationIndex, ABOUT - 1u)];
    next_about = vec3(factors[about + ABOUT], factors[about + ABOUT + 1u], factors[about + ABOUT + 2u]);
}

// Stores loaded data in shared memory: rows of an operand, or a square.
void place_rows(uvec4 rows[ROW_LOADS]) {
    [[unroll]] for (uint i = 0u; i < ROW_LOADS; i++) {
        uint at = gl_LocalInvocationIndex + i * THREADS;
        if (CHUNK * ROW_WORDS % THREADS == 0u || at < CHUNK * ROW_WORDS) {
            tiles[at / ROW_WORDS * ROW_STRIDE + at % ROW_WORDS] = rows[i];
        }
    }
}

void place_square(uvec4 words[SQUARE_LOADS]) {
    [[unroll]] for (uint i = 0u; i < SQUARE_LOADS; i++) {
        uint at = gl_LocalInvocationIndex + i * THREADS;
        if (SQUARE_WORDS % THREADS == 0u || at < SQUARE_WORDS) {
            tiles[SQUARE_AT + at / 8u * SQUARE_STRIDE + at % 8u] = words[i];
        }
    }
}

// Stages the first data of a chunk.
void place() {
    if (DELTA == 1u) {
        place_rows(next_enter);
        place_square(next_inverse);
    } else {
        place_rows(next_leave);
        place_square(next_mixes);
    }
    [[unroll]] for (uint i = 0u; i < VALUE_LOADS; i++) {
        uint at = gl_LocalInvocationIndex + i * THREADS;
        if (CHUNK * VALUE_WORDS % THREADS == 0u || at < CHUNK * VALUE_WORDS) {
            uint to = at / VALUE_WORDS * STRIDE + at % VALUE_WORDS;
            tiles[VALUES_AT + to] = next_values[i];
            if (DELTA == 0u) {
                uvec4 x = next_values[i];
                [[unroll]] for (uint e = 0u; e < 4u; e++) {
                    x[e] = two_bits(two_of(x[e]) * next_weights[i]);
                }
                tiles[WEIGHED_AT + to] = x;
            }
        }
    }
    if (gl_LocalInvocationIndex < ABOUT) {
        numbers[gl_LocalInvocationIndex / 4u][gl_LocalInvocationIndex % 4u] = next_number;
    }
}

// A fragment with each step's number in all elements of its row, for the subgroup's block.
SUMS numbers_from(uint first) {
    SUMS x;
    coopMatLoad(x, numbers, first / 4u + block * 4u, 0, COLUMNS_FIRST);
    return x;
}

#include "chunk_states.glsl"

// Updates the state with the values in WEIGHED_AT, and computes the largest state of the subgroup.
void update(float whole, float back) {
    [[unroll]] for (uint i = 0u; i < DEEP * OWN; i++) {
        states[i] = states[i] * whole;
    }
    LEFT x;
    RIGHT v[OWN];
    [[unroll]] for (uint k = 0u; k < BLOCKS; k++) {
        [[unroll]] for (uint j = 0u; j < OWN; j++) {
            coopMatLoad(v[j], tiles, WEIGHED_AT + k * 16u * STRIDE + word + j * 2u, STRIDE, ROWS);
        }
        [[unroll]] for (uint i = 0u; i < DEEP; i++) {
            if (has_states(i)) {
                coopMatLoad(x, tiles, k * 16u * ROW_STRIDE + (block * DEEP + i) * 2u, ROW_STRIDE, COLUMNS_FIRST);
                [[unroll]] for (uint j = 0u; j < OWN; j++) {
                    states[i * OWN + j] = coopMatMulAdd(x, v[j], states[i * OWN + j]);
                }
            }
        }
    }
    [[unroll]] for (uint i = 0u; i < DEEP * OWN; i++) {
        states[i] = states[i] * back;
    }
    keep_greatest();
}

// Stores the subgroup's results through the shared memory of the mixed values. Stores the steps
// from `from` on of the chunk at `first`.
void store_results(SUMS y[OWN], float by, uint first, uint from) {
    [[unroll]] for (uint j = 0u; j < OWN; j++) {
        store_narrow(y[j] * by, MIXED_AT + block * 16u * STRIDE + word + j * 2u);
    }
    subgroup_meets();
    [[unroll]] for (uint i = 0u; i < (OWN * 32u + SUBGROUP - 1u) / SUBGROUP; i++) {
        uint at = gl_SubgroupInvocationID + i * SUBGROUP;
        uint t = block * 16u + at / (OWN * 2u);
        if (at < OWN * 32u && t >= from) {
            uint column = word + at % (OWN * 2u);
            results[value_base + (first + t) * value_stride + column] = tiles[MIXED_AT + t * STRIDE + column];
        }
    }
}

// Adds to `to` the products of the subgroup's staged rows with the states.
void ask_states(inout SUMS to[OWN]) {
    LEFT rows;
    RIGHT x;
    [[unroll]] for (uint h = 0u; h < STATE_BLOCKS; h++) {
        coopMatLoad(rows, tiles, block * 16u * ROW_STRIDE + h * 2u, ROW_STRIDE, ROWS);
        [[unroll]] for (uint j = 0u; j < OWN; j++) {
            coopMatLoad(x, tiles, STATES_AT + h * 16u * STRIDE + word + j * 2u, STRIDE, ROWS);
            to[j] = coopMatMulAdd(rows, x, to[j]);
        }
    }
}

// Adds to `to` the products of the subgroup's rows of the square with the matrix at `from`.
void mix_steps(uint from, inout SUMS to[OWN]) {
    LEFT rows;
    RIGHT x;
    [[unroll]] for (uint k = 0u; k < BLOCKS; k++) {
        if (k <= block) {
            coopMatLoad(rows, tiles, SQUARE_AT + block * 16u * SQUARE_STRIDE + k * 2u, SQUARE_STRIDE, ROWS);
            [[unroll]] for (uint j = 0u; j < OWN; j++) {
                coopMatLoad(x, tiles, from + k * 16u * STRIDE + word + j * 2u, STRIDE, ROWS);
                to[j] = coopMatMulAdd(rows, x, to[j]);
            }
        }
    }
}

void clear(out SUMS x[OWN]) {
    [[unroll]] for (uint j = 0u; j < OWN; j++) {
        x[j] = SUMS(0.0);
    }
}

// Computes V of the delta rule into OTHER_AT, and V times its weights. The function uses the staged
// enter rows and inverse, then stages the leave rows and the mixes.
void correct() {
    uint at = block * 16u * STRIDE + word;
    SUMS x[OWN];
    clear(x);
    ask_states(x);
    SUMS decays = numbers_from(0u) * inverse_power(state_by);
    [[unroll]] for (uint j = 0u; j < OWN; j++) {
        x[j] = load_wide(VALUES_AT + at + j * 2u) - x[j] * decays;
    }
    subgroup_meets();
    [[unroll]] for (uint j = 0u; j < OWN; j++) {
        store_narrow(x[j], VALUES_AT + at + j * 2u);
    }
    // After this barrier, X - exp(l) o (E S) is complete, and all threads have read the rows.
    barrier();
    place_rows(own_leave);
    clear(x);
    mix_steps(VALUES_AT, x);
    [[unroll]] for (uint j = 0u; j < OWN; j++) {
        store_narrow(x[j], OTHER_AT + at + j * 2u);
    }
    // After this barrier, all threads have read the inverse and X - exp(l) o (E S).
    barrier();
    place_square(own_mixes);
    SUMS weights = numbers_from(CHUNK);
    [[unroll]] for (uint j = 0u; j < OWN; j++) {
        store_narrow(x[j] * weights, WEIGHED_AT + at + j * 2u);
    }
}

void step(uint chunk, vec3 about) {
    if (DELTA == 1u) {
        correct();
    }
    SUMS y[OWN];
    clear(y);
    ask_states(y);
    SUMS decays = numbers_from(0u) * (inverse_power(state_by) * inverse_power(about.z));
    [[unroll]] for (uint j = 0u; j < OWN; j++) {
        y[j] = y[j] * decays;
    }
    if (DELTA == 1u) {
        // After this barrier, the mixes are staged, and all threads have read the leave rows.
        barrier();
        place_rows(own_enter);
    }
    mix_steps(MIXED_AT, y);
    barrier();
    if (DELTA == 0u) {
        place_rows(own_enter);
    }
    uint first = first_of(chunk, p.steps);
    store_results(y, about.z * p.scale, first, chunk * CHUNK - first);
    if (DELTA == 0u) {
        barrier();
    }
    update(about.x, about.y);
}

void main() {
    uint flat_group = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    if (flat_group >= p.count) {
        return;
    }
    uint head = flat_group / p.tiles % p.heads;
    uint row = flat_group / p.tiles / p.heads;
    uint first_column = flat_group % p.tiles * COLUMNS;
    uint token = row * p.steps;
    row_base = (token * p.groups + head / (p.heads / p.groups)) * ROW_WORDS;
    row_stride = p.groups * ROW_WORDS;
    value_base = ((token * p.heads + head) * p.columns + first_column) / 8u;
    value_stride = p.heads * p.columns / 8u;
    first_square = (row * p.heads + head) * p.chunks;
    block = gl_SubgroupID % 4u;
    word = gl_SubgroupID / 4u * OWN * 2u;
    load(0u);
    if (DELTA == 0u && INITIAL == 1u) {
        begin_wide_states(row * p.heads + head, first_column);
    } else {
        begin_narrow_states(row * p.heads + head, first_column);
    }
    place();
    for (uint chunk = 0u; chunk < p.chunks; chunk++) {
        vec3 about = next_about;
        uint next = min(chunk + 1u, p.chunks - 1u);
        [[unroll]] for (uint i = 0u; i < ROW_LOADS; i++) {
            own_enter[i] = next_enter[i];
            own_leave[i] = next_leave[i];
        }
        [[unroll]] for (uint i = 0u; i < SQUARE_LOADS; i++) {
            own_mixes[i] = next_mixes[i];
        }
        // After this barrier, the chunk and the states are staged.
        barrier();
        load(next);
        step(chunk, about);
        // After this barrier, all threads have read the chunk and the states, and the largest state
        // is known.
        barrier();
        place_states();
        place();
    }
    if (CARRY == 1u) {
        end_states(row * p.heads + head, first_column);
    }
}
