// C[m, n] = act(sum_k A[m, k] B[k, n] + bias[n]) + residual[m, n], for each batch.
//
// A and B hold ELEMENT (f16 or bf16), sums are f32, C is rounded once. See gemm_params.glsl for operands,
// batches, splits and the grid.
//
// A workgroup has (BM / WM) x (BN / WN) subgroups, each with its own WM x WN of C as FM x FN fragments.
// Per step, BK of k are staged in shared memory as rows of 16-byte words, each row one word longer than
// its data so that the rows of a fragment lie in different banks. While a step multiplies, the loads of
// the next are under way into registers. STAGES = 2 alternates between two buffers, with one barrier per
// step; 1 takes two barriers and half the memory. AHEAD = 1, for two stages, also loads the fragments of
// one FK while those of the one before multiply, across steps too.
//
// Tiles that lie inside A and B are loaded without tests and by addresses that only grow. At edges what is
// staged is zero. Sums go through shared memory, a strip of FM rows of a subgroup at a time, so that each
// invocation has 8 neighbours of a row: 16 bytes of C, and a row and columns to be guarded by.
//
// Constraints on constants: FK a multiple of 8; BM of WM, BN of WN and 8, BK of FK (AHEAD: of 2 FK), WM of
// FM, WN of FN and 8; THREADS at least BK / 8 and BN / 8, SUBGROUP at least WN / 8. ALIGNED_A: lda, offset_a, the batch
// strides of A and k are multiples of 8; ALIGNED_B: so are ldb, offset_b, the strides of B, and n
// (B_TRANSPOSED: k); ALIGNED_C: ldc, offset_c, the strides of C, and n; bindings at 16 bytes.

#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require // for the builtins: no operation is used

#include "half.glsl"
#include "activation.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 128; // SUBGROUP (BM / WM) (BN / WN)
layout(constant_id = 1) const uint SUBGROUP = 32;
layout(constant_id = 2) const uint FM = 16; // the device's fragment
layout(constant_id = 3) const uint FN = 16;
layout(constant_id = 4) const uint FK = 16;
layout(constant_id = 5) const uint BM = 128; // the workgroup's tile
layout(constant_id = 6) const uint BN = 128;
layout(constant_id = 7) const uint BK = 32;
layout(constant_id = 8) const uint WM = 64; // a subgroup's part of it
layout(constant_id = 9) const uint WN = 64;
layout(constant_id = 10) const uint STAGES = 1; // or 2
layout(constant_id = 11) const uint B_TRANSPOSED = 0;
layout(constant_id = 12) const uint ALIGNED_A = 0;
layout(constant_id = 13) const uint ALIGNED_B = 0;
layout(constant_id = 14) const uint ACTIVATION = 0; // see activation.glsl
layout(constant_id = 15) const uint HAS_BIAS = 0;
layout(constant_id = 16) const uint HAS_RESIDUAL = 0;
layout(constant_id = 17) const uint OUT_F32 = 0; // else ELEMENT; so the next two
layout(constant_id = 18) const uint BIAS_F32 = 0;
layout(constant_id = 19) const uint RESIDUAL_F32 = 0;
layout(constant_id = 20) const uint ALIGNED_C = 0;
layout(constant_id = 21) const uint AHEAD = 0;
layout(constant_id = 22) const uint BAND = 8; // rows of tiles that share columns of B

#include "gemm_params.glsl"

// One buffer under several views: words, 16 bytes, 2 bytes.
layout(set = 0, binding = 1) restrict readonly buffer A { uint a[]; };
layout(set = 0, binding = 1) restrict readonly buffer A16 { uvec4 a_vec[]; };
layout(set = 0, binding = 2) restrict readonly buffer B { uint b[]; };
layout(set = 0, binding = 2) restrict readonly buffer B16 { uvec4 b_vec[]; };
layout(set = 0, binding = 3) restrict readonly buffer Bias { uint bias[]; };
layout(set = 0, binding = 4) restrict readonly buffer Residual { uint residual[]; };
layout(set = 0, binding = 5) writeonly buffer C { uint c[]; };
layout(set = 0, binding = 5) writeonly buffer C2 { uint16_t c_half[]; };
layout(set = 0, binding = 5) writeonly buffer C16 { uvec4 c_vec[]; };

// In words of 16 bytes: 8 elements, or 4 sums.
const uint A_COLS = BK / 8;
const uint B_LINES = B_TRANSPOSED * BN + (1 - B_TRANSPOSED) * BK;
const uint B_COLS = (B_TRANSPOSED * BK + (1 - B_TRANSPOSED) * BN) / 8;
const uint A_STRIDE = A_COLS + 1;
const uint B_STRIDE = B_COLS + 1;
const uint A_LEN = BM * A_STRIDE;
const uint STAGE_LEN = A_LEN + B_LINES * B_STRIDE;
const uint SUM_STRIDE = WN / 4 + 1;
const uint SUMS_LEN = (THREADS / SUBGROUP) * FM * SUM_STRIDE;
const uint SHARED_LEN = STAGES * STAGE_LEN > SUMS_LEN ? STAGES * STAGE_LEN : SUMS_LEN;
shared uvec4 tiles[SHARED_LEN];

const uint CM = WM / FM;
const uint CN = WN / FN;
// Lines of a tile that the workgroup loads at once, and how often.
const uint A_PASS = THREADS / A_COLS;
const uint B_PASS = THREADS / B_COLS;
const uint A_LOADS = (BM + A_PASS - 1) / A_PASS;
const uint B_LOADS = (B_LINES + B_PASS - 1) / B_PASS;
// Invocations of a subgroup that share a row of a strip.
const uint ROW_LANES = WN / 8;

// Eight elements from the two-byte element `at` on, of which `valid` (at least 1) exist; 0 beyond.
#define GATHER(name, words)                                                             \
    uint name##_half(uint at) { return (words[at >> 1] >> ((at & 1u) * 16u)) & 0xffffu; } \
    uvec4 name(uint at, uint valid) {                                                   \
        uint w = at >> 1;                                                               \
        if (valid >= 8u) {                                                              \
            uvec4 low = uvec4(words[w], words[w + 1u], words[w + 2u], words[w + 3u]);   \
            if ((at & 1u) == 0u) {                                                      \
                return low;                                                             \
            }                                                                           \
            return (low >> 16) | (uvec4(low.yzw, words[w + 4u]) << 16);                 \
        }                                                                               \
        uvec4 found = uvec4(0u);                                                        \
        for (uint i = 0u; i < valid; i++) {                                             \
            found[i >> 1] |= name##_half(at + i) << ((i & 1u) * 16u);                   \
        }                                                                               \
        return found;                                                                   \
    }

GATHER(gather_a, a)
GATHER(gather_b, b)

// Eight elements of line `row` of A, from `col` on; 0 from k_end on.
uvec4 fetch_a(uint base, uint row, uint col, uint k_end) {
    if (row >= p.m || col >= k_end) {
        return uvec4(0u);
    }
    uint at = base + row * p.lda + col;
    if (ALIGNED_A != 0u) {
        return a_vec[at >> 3];
    }
    return gather_a(at, k_end - col);
}

uvec4 fetch_b(uint base, uint line, uint col, uint k_end) {
    uint lines = B_TRANSPOSED != 0u ? p.n : k_end;
    uint cols = B_TRANSPOSED != 0u ? k_end : p.n;
    if (line >= lines || col >= cols) {
        return uvec4(0u);
    }
    uint at = base + line * p.ldb + col;
    if (ALIGNED_B != 0u) {
        return b_vec[at >> 3];
    }
    return gather_b(at, cols - col);
}

uvec4 next_a[A_LOADS];
uvec4 next_b[B_LOADS];

// The place of an invocation in staged tiles: a line and a word of it.
uvec2 own_a() { return uvec2(gl_LocalInvocationIndex / A_COLS, gl_LocalInvocationIndex % A_COLS); }

uvec2 own_b() { return uvec2(gl_LocalInvocationIndex / B_COLS, gl_LocalInvocationIndex % B_COLS); }

// Whether load i of an invocation is of the tile; where lines do not divide, some invocations have none.
bool loads_a(uint i) {
    uint line = own_a().x;
    bool in_pass = THREADS % A_COLS == 0 || line < A_PASS;
    return in_pass && (A_LOADS * A_PASS == BM || line + i * A_PASS < BM);
}

bool loads_b(uint i) {
    uint line = own_b().x;
    bool in_pass = THREADS % B_COLS == 0 || line < B_PASS;
    return in_pass && (B_LOADS * B_PASS == B_LINES || line + i * B_PASS < B_LINES);
}

// What the loads of a tile begin from. `whole` tiles lie inside aligned operands.
struct Source {
    Place place;
    uvec2 tile; // row and column
    bool whole;
    uint first_a; // the invocation's first word at k = 0
    uint first_b;
    uint pass_a; // words from pass to pass
    uint pass_b;
    uint per_k_b; // words by which B grows with 8 of k
};

Source source_of(Place place, uvec2 tile) {
    Source s;
    s.place = place;
    s.tile = tile;
    bool inside = tile.x + BM <= p.m && tile.y + BN <= p.n;
    s.whole = ALIGNED_A != 0u && ALIGNED_B != 0u && inside;
    s.first_a = (place.a >> 3) + (tile.x + own_a().x) * (p.lda >> 3) + own_a().y;
    s.pass_a = A_PASS * (p.lda >> 3);
    uint line_b = own_b().x + (B_TRANSPOSED != 0u ? tile.y : 0u);
    uint word_b = own_b().y + (B_TRANSPOSED != 0u ? 0u : tile.y / 8u);
    s.first_b = (place.b >> 3) + line_b * (p.ldb >> 3) + word_b;
    s.pass_b = B_PASS * (p.ldb >> 3);
    s.per_k_b = B_TRANSPOSED != 0u ? 1u : p.ldb;
    return s;
}

// Global memory to registers: the tiles of A and B from k on.
void load_step(Source s, uint k) {
    if (s.whole && k + BK <= s.place.k_end) {
        uint at_a = s.first_a + k / 8u;
        uint at_b = s.first_b + k / 8u * s.per_k_b;
        [[unroll]] for (uint i = 0u; i < A_LOADS; i++) {
            if (loads_a(i)) {
                next_a[i] = a_vec[at_a + i * s.pass_a];
            }
        }
        [[unroll]] for (uint i = 0u; i < B_LOADS; i++) {
            if (loads_b(i)) {
                next_b[i] = b_vec[at_b + i * s.pass_b];
            }
        }
        return;
    }
    [[unroll]] for (uint i = 0u; i < A_LOADS; i++) {
        uint line = s.tile.x + own_a().x + i * A_PASS;
        next_a[i] = fetch_a(s.place.a, line, k + own_a().y * 8u, s.place.k_end);
    }
    uint first_line = B_TRANSPOSED != 0u ? s.tile.y : k;
    uint first_col = B_TRANSPOSED != 0u ? k : s.tile.y;
    [[unroll]] for (uint i = 0u; i < B_LOADS; i++) {
        uint line = first_line + own_b().x + i * B_PASS;
        next_b[i] = fetch_b(s.place.b, line, first_col + own_b().y * 8u, s.place.k_end);
    }
}

// Registers to shared memory.
void store_step(uint stage) {
    uint at_a = stage + own_a().x * A_STRIDE + own_a().y;
    uint at_b = stage + A_LEN + own_b().x * B_STRIDE + own_b().y;
    [[unroll]] for (uint i = 0u; i < A_LOADS; i++) {
        if (loads_a(i)) {
            tiles[at_a + i * A_PASS * A_STRIDE] = next_a[i];
        }
    }
    [[unroll]] for (uint i = 0u; i < B_LOADS; i++) {
        if (loads_b(i)) {
            tiles[at_b + i * B_PASS * B_STRIDE] = next_b[i];
        }
    }
}

coopmat<float, gl_ScopeSubgroup, FM, FN, gl_MatrixUseAccumulator> sums[CM * CN];
// Two sets of fragments where they are loaded ahead, else one.
coopmat<ELEMENT, gl_ScopeSubgroup, FM, FK, gl_MatrixUseA> left[(1 + AHEAD) * CM];
coopmat<ELEMENT, gl_ScopeSubgroup, FK, FN, gl_MatrixUseB> right[1 + AHEAD * (2 * CN - 1)];

void load_left(uint set, uint stage, uint row, uint k) {
    [[unroll]] for (uint i = 0u; i < CM; i++) {
        uint at = stage + (row + i * FM) * A_STRIDE + k / 8u;
        coopMatLoad(left[set * CM + i], tiles, at, A_STRIDE, gl_CooperativeMatrixLayoutRowMajor);
    }
}

void load_right(uint to, uint stage, uint col, uint k) {
    if (B_TRANSPOSED != 0u) {
        uint at = stage + A_LEN + col * B_STRIDE + k / 8u;
        coopMatLoad(right[to], tiles, at, B_STRIDE, gl_CooperativeMatrixLayoutColumnMajor);
    } else {
        uint at = stage + A_LEN + k * B_STRIDE + col / 8u;
        coopMatLoad(right[to], tiles, at, B_STRIDE, gl_CooperativeMatrixLayoutRowMajor);
    }
}

// Adds the product of a staged step; the subgroup's part begins at (row, col) of the tile.
void multiply_step(uint stage, uint row, uint col) {
    [[unroll]] for (uint k = 0u; k < BK; k += FK) {
        load_left(0u, stage, row, k);
        [[unroll]] for (uint j = 0u; j < CN; j++) {
            load_right(0u, stage, col + j * FN, k);
            [[unroll]] for (uint i = 0u; i < CM; i++) {
                sums[i * CN + j] = coopMatMulAdd(left[i], right[0], sums[i * CN + j]);
            }
        }
    }
}

void sum_steps(Source s, uint row, uint col) {
    Place place = s.place;
    load_step(s, place.k);
    // Two steps at a time, so that the place of a buffer is a constant.
    for (uint k = place.k; k < place.k_end; k += 2u * BK) {
        [[unroll]] for (uint half_step = 0u; half_step < 2u; half_step++) {
            uint at = k + half_step * BK;
            uint stage = (STAGES - 1u) * half_step * STAGE_LEN;
            if (at < place.k_end) {
                if (STAGES == 1u) {
                    barrier();
                }
                store_step(stage);
                barrier();
                if (at + BK < place.k_end) {
                    load_step(s, at + BK);
                }
                multiply_step(stage, row, col);
            }
        }
    }
}

void load_set(uint set, uint stage, uint row, uint col, uint k) {
    load_left(set, stage, row, k);
    [[unroll]] for (uint j = 0u; j < CN; j++) {
        load_right(set * CN + j, stage, col + j * FN, k);
    }
}

// As sum_steps with two stages, where fragments are loaded one FK ahead. The barrier of a step stands
// before its last FK, whose fragments are loaded by then: what follows may be written over them.
void sum_ahead(Source s, uint row, uint col) {
    const uint LAST = BK / FK - 1;
    Place place = s.place;
    if (place.k >= place.k_end) {
        return;
    }
    load_step(s, place.k);
    store_step(0u);
    if (place.k + BK < place.k_end) {
        load_step(s, place.k + BK);
    }
    barrier();
    load_set(0u, 0u, row, col, 0u);
    for (uint k = place.k; k < place.k_end; k += 2u * BK) {
        [[unroll]] for (uint half_step = 0u; half_step < 2u; half_step++) {
            uint at = k + half_step * BK;
            uint stage = half_step * STAGE_LEN;
            uint other = STAGE_LEN - stage;
            if (at >= place.k_end) {
                continue;
            }
            [[unroll]] for (uint f = 0u; f <= LAST; f++) {
                if (f + 1u == LAST && at + BK < place.k_end) {
                    store_step(other);
                    if (at + 2u * BK < place.k_end) {
                        load_step(s, at + 2u * BK);
                    }
                }
                if (f < LAST) {
                    load_set((f + 1u) % 2u, stage, row, col, (f + 1u) * FK);
                } else if (at + BK < place.k_end) {
                    load_set(0u, other, row, col, 0u);
                }
                uint set = f % 2u;
                [[unroll]] for (uint j = 0u; j < CN; j++) {
                    [[unroll]] for (uint i = 0u; i < CM; i++) {
                        sums[i * CN + j] = coopMatMulAdd(left[set * CM + i], right[set * CN + j], sums[i * CN + j]);
                    }
                }
                if (f + 1u == LAST) {
                    barrier();
                }
            }
        }
    }
}

#include "gemm_store.glsl"

// One tile of one part of one batch.
void run_tile(Place place, uvec2 tile) {
    uint row = gl_SubgroupID / (BN / WN) * WM;
    uint col = gl_SubgroupID % (BN / WN) * WN;
    [[unroll]] for (uint i = 0u; i < CM * CN; i++) {
        sums[i] = coopmat<float, gl_ScopeSubgroup, FM, FN, gl_MatrixUseAccumulator>(0.0);
    }
    Source s = source_of(place, tile);
    if (AHEAD != 0u) {
        sum_ahead(s, row, col);
    } else {
        sum_steps(s, row, col);
    }
    barrier();
    store_sums(place, tile.x + row, tile.y + col);
    barrier();
}

void main() {
    uvec2 tile = tile_of(gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x);
    if (tile.x >= p.m) {
        return;
    }
    for (uint z = gl_WorkGroupID.z; z < p.batches * p.splits; z += gl_NumWorkGroups.z) {
        run_tile(place_of(z), tile);
    }
}
