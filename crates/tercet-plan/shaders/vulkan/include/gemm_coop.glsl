// GEMM on cooperative matrices: C[m, n] = act(sum_k A[m, k] B[k, n] + bias[n]) + residual[m, n],
// per batch.
//
// A and B are ELEMENT (F16 or BF16), sums are F32, and C is rounded once. gemm_params.glsl
// describes operands, batches, splits and the grid.
//
// A workgroup has (BM / WM) x (BN / WN) subgroups. Each subgroup computes WM x WN of C as FM x FN
// fragments. A step stages BK of k in shared memory, as rows of 16-byte words with one word of
// padding against bank conflicts.
//
// STAGES = 1: the next step is loaded into registers during the multiplication, with two barriers
// per step. STAGES = 2 alternates between two buffers of aligned operands, with one barrier per
// step. Fragments are loaded one step, and staged data two steps, before the multiplication. STAGES
// = 2 hides all latency, and pays off for tiles so large that only one workgroup is resident per
// SM.
//
// The first step handles the remainder of k, so that the others need no bounds test. Rows and
// columns of aligned operands are clamped at the edges; their sums are not stored. The code is
// short, because a workgroup must fetch it before its first instruction. The code of the epilogue
// exists once. A strip of FM rows per subgroup passes through shared memory, so that each thread
// has 8 adjacent elements of a row: 16 bytes of C. Unmodified sums are stored from fragments
// directly. If the device converts F16 correctly and there is no residual, sums start with the
// bias, fragments are converted to ELEMENT, and half-size strips pass through shared memory.
//
// Constraints on constants: FK is a multiple of 8; BM of WM, BN of WN and 8, BK of FK, WM of FM, WN
// of FN and 8. THREADS is at least BK / 8 and BN / 8, SUBGROUP at least WN / 8. ALIGNED_A requires
// that lda, offset_a, the batch strides of A and k are multiples of 8. ALIGNED_B requires the same
// of ldb, offset_b, the strides of B, and n (k if B_TRANSPOSED); ALIGNED_C of ldc, offset_c, the
// strides of C, and n. Bindings are 16-byte aligned.

#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require // only for the built-in variables; uses no subgroup operation

#include "half.glsl"
#include "activation.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 128; // SUBGROUP (BM / WM) (BN / WN)
layout(constant_id = 1) const uint SUBGROUP = 32;
layout(constant_id = 2) const uint FM = 16; // fragment size of the device
layout(constant_id = 3) const uint FN = 16;
layout(constant_id = 4) const uint FK = 16;
layout(constant_id = 5) const uint BM = 128; // tile of a workgroup
layout(constant_id = 6) const uint BN = 128;
layout(constant_id = 7) const uint BK = 32;
layout(constant_id = 8) const uint WM = 64; // part of the tile per subgroup
layout(constant_id = 9) const uint WN = 64;
layout(constant_id = 10) const uint STAGES = 1; // 1 or 2; 2 requires BK = FK, ALIGNED_A and ALIGNED_B
layout(constant_id = 11) const uint B_TRANSPOSED = 0;
layout(constant_id = 12) const uint ALIGNED_A = 0;
layout(constant_id = 13) const uint ALIGNED_B = 0;
layout(constant_id = 14) const uint ACTIVATION = 0; // see activation.glsl
layout(constant_id = 15) const uint HAS_BIAS = 0;
layout(constant_id = 16) const uint HAS_RESIDUAL = 0;
layout(constant_id = 17) const uint OUT_F32 = 0; // type of C: 1: F32, 0: ELEMENT; likewise of the bias and the residual
layout(constant_id = 18) const uint BIAS_F32 = 0;
layout(constant_id = 19) const uint RESIDUAL_F32 = 0;
layout(constant_id = 20) const uint ALIGNED_C = 0;
layout(constant_id = 21) const uint BAND = 8; // rows of tiles per band; a band shares cached columns of B
layout(constant_id = 22) const uint PLANES = 1; // 0: one batch and one part of k
layout(constant_id = 23) const uint NATIVE = 1; // 1: native F16 conversions are correct

#include "gemm_params.glsl"

// One buffer, declared with element types of 4, 16 and 2 bytes.
layout(set = 0, binding = 1) restrict readonly buffer A { uint a[]; };
layout(set = 0, binding = 1) restrict readonly buffer A16 { uvec4 a_vec[]; };
layout(set = 0, binding = 2) restrict readonly buffer B { uint b[]; };
layout(set = 0, binding = 2) restrict readonly buffer B16 { uvec4 b_vec[]; };
layout(set = 0, binding = 3) restrict readonly buffer Bias { uint bias[]; };
layout(set = 0, binding = 4) restrict readonly buffer Residual { uint residual[]; };
layout(set = 0, binding = 5) writeonly buffer C { uint c[]; };
layout(set = 0, binding = 5) writeonly buffer C2 { uint16_t c_half[]; };
layout(set = 0, binding = 5) writeonly buffer C16 { uvec4 c_vec[]; };
layout(set = 0, binding = 5) writeonly buffer CF { float c_float[]; };

// Lengths in 16-byte words: 8 elements or 4 sums.
const uint A_COLS = BK / 8;
const uint B_LINES = B_TRANSPOSED * BN + (1 - B_TRANSPOSED) * BK;
const uint B_COLS = (B_TRANSPOSED * BK + (1 - B_TRANSPOSED) * BN) / 8;
const uint A_STRIDE = A_COLS + 1;
const uint B_STRIDE = B_COLS + 1;
const uint A_LEN = BM * A_STRIDE;
const uint STAGE_LEN = A_LEN + B_LINES * B_STRIDE;
const uint SUM_STRIDE = WN / 4 + 2;
const uint SUMS_LEN = (THREADS / SUBGROUP) * FM * SUM_STRIDE;
const uint SHARED_LEN = STAGES * STAGE_LEN > SUMS_LEN ? STAGES * STAGE_LEN : SUMS_LEN;
shared uvec4 tiles[SHARED_LEN];

const uint CM = WM / FM;
const uint CN = WN / FN;
// Lines of a tile that the workgroup loads per pass, and number of passes.
const uint A_PASS = THREADS / A_COLS;
const uint B_PASS = THREADS / B_COLS;
const uint A_LOADS = (BM + A_PASS - 1) / A_PASS;
const uint B_LOADS = (B_LINES + B_PASS - 1) / B_PASS;
// Threads of a subgroup that share a row of a strip.
const uint ROW_LANES = WN / 8;

// Loads eight 16-bit elements from `at` on, of which `valid` (at least 1) exist; the others are 0.
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

// Loads eight elements of line `row` of A from `col` on; elements from k_end on are 0.
uvec4 fetch_a(uint base, uint row, uint col, uint k_end) {
    if (row >= p.m || col >= k_end) {
        return uvec4(0u);
    }
    return gather_a(base + row * p.lda + col, k_end - col);
}

uvec4 fetch_b(uint base, uint line, uint col, uint k_end) {
    uint lines = B_TRANSPOSED != 0u ? p.n : k_end;
    uint cols = B_TRANSPOSED != 0u ? k_end : p.n;
    if (line >= lines || col >= cols) {
        return uvec4(0u);
    }
    return gather_b(base + line * p.ldb + col, cols - col);
}

uvec4 next_a[A_LOADS];
uvec4 next_b[B_LOADS];

// Line and word of this thread in staged tiles with rows of `cols` words. Eight adjacent threads
// store 16-byte words together. If rows have fewer than eight words, these threads use lines `cols`
// apart. Row pitches are odd, so the words are then in different banks.
uvec2 own_of(uint cols) {
    uint at = gl_LocalInvocationIndex;
    if (cols < 8u && 8u % cols == 0u && THREADS % (8u * cols) == 0u) {
        uint group = at / (8u * cols) * 8u;
        return uvec2(group + at / 8u % cols + at % 8u / cols * cols, at % cols);
    }
    return uvec2(at / cols, at % cols);
}

uvec2 own_a() { return own_of(A_COLS); }

uvec2 own_b() { return own_of(B_COLS); }

// True if load i of this thread belongs to the tile. If the lines do not divide evenly, some
// threads have fewer loads.
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

#ifdef WINDOWS
#include "windows.glsl"
#endif

// Tile of one part of one batch.
struct Source {
    Place place;
    uvec2 tile; // row and column
};

// Offsets of this thread's words of aligned operands, at k = 0.
uint first_a[A_LOADS];
uint first_b[B_LOADS];

#ifdef WEIGHTS
#include "weights.glsl"
#endif

#ifdef GROUPED
#include "grouped.glsl"
#define ROW_OF_A(line) (row_of_line(line) / p.repeats)
#else
#define ROW_OF_A(line) min(line, p.m - 1u)
#endif

// Lines and columns beyond the edges are clamped to the last one.
void find_words(Source s) {
    [[unroll]] for (uint i = 0u; i < A_LOADS; i++) {
        uint line = ROW_OF_A(s.tile.x + own_a().x + i * A_PASS);
        first_a[i] = (s.place.a >> 3) + line * (p.lda >> 3) + own_a().y;
    }
#ifdef GROUPED
    find_rows(s.place.b, s.tile.y);
    return;
#endif
#ifdef WINDOWS
    if (GATHERS != 0u) {
        find_windows(s.place.b, s.tile.y);
        return;
    }
#endif
#ifdef WEIGHTS
    if (GATHERS != 0u) {
        weights_at = s.place.b;
        return;
    }
#endif
    uint col = min((s.tile.y >> 3) + own_b().y, (p.n >> 3) - 1u);
    [[unroll]] for (uint i = 0u; i < B_LOADS; i++) {
        uint line = own_b().x + i * B_PASS;
        uint at = line * (p.ldb >> 3) + col;
        if (B_TRANSPOSED != 0u) {
            at = min(s.tile.y + line, p.n - 1u) * (p.ldb >> 3) + own_b().y;
        }
        first_b[i] = (s.place.b >> 3) + at;
    }
}

// Loads the tiles of A and B at k from global memory into registers. If not `whole`, the tiles end
// at k_end.
void load_step(Source s, uint k, uint k_end, const bool whole) {
#ifdef WEIGHTS
    load_lines(s.place, s.tile, k);
    return;
#endif
    [[unroll]] for (uint i = 0u; i < A_LOADS; i++) {
        if (ALIGNED_A == 0u) {
            uint line = s.tile.x + own_a().x + i * A_PASS;
            next_a[i] = fetch_a(s.place.a, line, k + own_a().y * 8u, k_end);
        } else if (loads_a(i)) {
            bool inside = whole || k + own_a().y * 8u < k_end;
            next_a[i] = inside ? a_vec[first_a[i] + (k >> 3)] : uvec4(0u);
        }
    }
#ifdef WINDOWS
    if (GATHERS != 0u) {
        load_windows(k, k_end, whole);
        return;
    }
#endif
#ifdef GROUPED
    load_pieces(k, k_end, whole);
    return;
#endif
    uint first_line = B_TRANSPOSED != 0u ? s.tile.y : k;
    uint first_col = B_TRANSPOSED != 0u ? k : s.tile.y;
    uint k_b = B_TRANSPOSED != 0u ? k >> 3 : k * (p.ldb >> 3);
    [[unroll]] for (uint i = 0u; i < B_LOADS; i++) {
        uint line = own_b().x + i * B_PASS;
        if (ALIGNED_B == 0u) {
            next_b[i] = fetch_b(s.place.b, first_line + line, first_col + own_b().y * 8u, k_end);
        } else if (loads_b(i)) {
            uint at = B_TRANSPOSED != 0u ? own_b().y * 8u : line;
            bool inside = whole || k + at < k_end;
            next_b[i] = inside ? b_vec[first_b[i] + k_b] : uvec4(0u);
        }
    }
}

// Stores the loaded tiles in shared memory.
void store_step(uint stage) {
    uint at_a = stage + own_a().x * A_STRIDE + own_a().y;
    uint at_b = stage + A_LEN + own_b().x * B_STRIDE + own_b().y;
    [[unroll]] for (uint i = 0u; i < A_LOADS; i++) {
        if (loads_a(i)) {
            tiles[at_a + i * A_PASS * A_STRIDE] = next_a[i];
        }
    }
#ifdef WINDOWS
    if (GATHERS != 0u) {
        store_windows(stage + A_LEN, B_STRIDE);
        return;
    }
#endif
#ifdef WEIGHTS
    if (GATHERS != 0u) {
        store_columns(stage + A_LEN, B_STRIDE);
        return;
    }
#endif
#ifdef GROUPED
    store_pieces(stage + A_LEN);
    return;
#endif
    [[unroll]] for (uint i = 0u; i < B_LOADS; i++) {
        if (loads_b(i)) {
            tiles[at_b + i * B_PASS * B_STRIDE] = next_b[i];
        }
    }
}

coopmat<float, gl_ScopeSubgroup, FM, FN, gl_MatrixUseAccumulator> sums[CM * CN];
// Fragments of FK of k. With two stages, one step is loaded while the other is multiplied.
coopmat<ELEMENT, gl_ScopeSubgroup, FM, FK, gl_MatrixUseA> left[STAGES][CM];
coopmat<ELEMENT, gl_ScopeSubgroup, FK, FN, gl_MatrixUseB> right[STAGES][CN];

// Loads the fragments of a staged step at k. The subgroup's part begins at (row, col) of the tile.
void load_fragments(const uint to, uint stage, uint row, uint col, uint k) {
    [[unroll]] for (uint i = 0u; i < CM; i++) {
        uint at = stage + (row + i * FM) * A_STRIDE + k / 8u;
        coopMatLoad(left[to][i], tiles, at, A_STRIDE, gl_CooperativeMatrixLayoutRowMajor);
    }
    [[unroll]] for (uint j = 0u; j < CN; j++) {
        if (B_TRANSPOSED != 0u) {
            uint at = stage + A_LEN + (col + j * FN) * B_STRIDE + k / 8u;
            coopMatLoad(right[to][j], tiles, at, B_STRIDE, gl_CooperativeMatrixLayoutColumnMajor);
        } else {
            uint at = stage + A_LEN + k * B_STRIDE + (col + j * FN) / 8u;
            coopMatLoad(right[to][j], tiles, at, B_STRIDE, gl_CooperativeMatrixLayoutRowMajor);
        }
    }
}

void multiply(const uint of) {
    [[unroll]] for (uint j = 0u; j < CN; j++) {
        [[unroll]] for (uint i = 0u; i < CM; i++) {
            sums[i * CN + j] = coopMatMulAdd(left[of][i], right[of][j], sums[i * CN + j]);
        }
    }
}

// Processes all steps. The first step ends at `k` and is already in registers.
void sum_loaded(Source s, uint k, uint row, uint col) {
    for (;;) {
        store_step(0u);
        barrier();
        load_fragments(0u, 0u, row, col, 0u);
        bool more = k < s.place.k_end;
        if (more) {
            load_step(s, k, k + BK, true);
        } else {
            // If there is no next step, the registers for its operands are cleared: otherwise
            // compilers would copy them.
            [[unroll]] for (uint i = 0u; i < A_LOADS; i++) {
                next_a[i] = uvec4(0u);
            }
            [[unroll]] for (uint i = 0u; i < B_LOADS; i++) {
                next_b[i] = uvec4(0u);
            }
#ifdef WINDOWS
            keep_no_windows();
#endif
#ifdef WEIGHTS
            keep_no_columns();
#endif
#ifdef GROUPED
            keep_no_pieces();
#endif
        }
        multiply(0u);
        [[unroll]] for (uint f = FK; f < BK; f += FK) {
            load_fragments(0u, 0u, row, col, f);
            multiply(0u);
        }
        if (!more) {
            break;
        }
        k += BK;
        barrier();
    }
}

#if !defined(WINDOWS) && !defined(GROUPED)
const bool IS_STAGGERED = STAGES == 2u && BK == FK && ALIGNED_A != 0u && ALIGNED_B != 0u;

// Loaded data of two steps.
uvec4 ahead_a[2][A_LOADS];
uvec4 ahead_b[2][B_LOADS];

// Loads the next step; beyond the end, the last step again.
void load_ahead(const uint to, Source s, inout uint k) {
    uint last = s.place.k_end - BK;
    k = min(k, last);
    load_step(s, k, k + BK, true);
    k += BK;
    [[unroll]] for (uint i = 0u; i < A_LOADS; i++) {
        ahead_a[to][i] = next_a[i];
    }
    [[unroll]] for (uint i = 0u; i < B_LOADS; i++) {
        ahead_b[to][i] = next_b[i];
    }
}

void store_ahead(const uint from) {
    [[unroll]] for (uint i = 0u; i < A_LOADS; i++) {
        next_a[i] = ahead_a[from][i];
    }
    [[unroll]] for (uint i = 0u; i < B_LOADS; i++) {
        next_b[i] = ahead_b[from][i];
    }
    store_step(from * STAGE_LEN);
}

// Two-stage variant of sum_loaded, for at least two steps. A step is staged while the fragments of
// the previous step are loaded and those before it are multiplied. The buffer that receives this
// step was read during the previous step.
void sum_staggered(Source s, uint k, uint row, uint col) {
    uint steps = 1u + (s.place.k_end - k) / BK;
    if ((steps & 1u) != 0u) {
        // Handles an odd step, so that the loop has no exit in its body and loads can move ahead.
        store_step(0u);
        barrier();
        load_step(s, k, k + BK, true);
        k += BK;
        load_fragments(0u, 0u, row, col, 0u);
        multiply(0u);
        barrier();
    }
    store_step(0u);
    load_ahead(1u, s, k);
    store_ahead(1u);
    load_ahead(0u, s, k);
    load_ahead(1u, s, k);
    barrier();
    load_fragments(0u, 0u, row, col, 0u);
    barrier();
    for (uint turns = steps / 2u; turns > 0u; turns--) {
        [[unroll]] for (uint t = 0u; t < 2u; t++) {
            load_fragments(1u - t, (1u - t) * STAGE_LEN, row, col, 0u);
            store_ahead(t);
            load_ahead(t, s, k);
            multiply(t);
            barrier();
        }
    }
}
#endif

// End of the first step of a nonempty part of k.
uint first_end(Place place) { return place.k + (place.k_end - place.k - 1u) % BK + 1u; }

// Loads the first step into registers.
void load_first(Source s) {
    find_words(s);
    load_step(s, s.place.k, first_end(s.place), false);
}

#ifdef NATIVE_PAIR
const bool IS_NARROW = NATIVE != 0u && OUT_F32 == 0u && ALIGNED_C != 0u && HAS_RESIDUAL == 0u;
#endif

#include "gemm_store.glsl"

// Initializes the sums with 0 or the bias.
void begin_sums(uvec2 tile, uint col) {
    [[unroll]] for (uint i = 0u; i < CM * CN; i++) {
        sums[i] = coopmat<float, gl_ScopeSubgroup, FM, FN, gl_MatrixUseAccumulator>(0.0);
    }
#ifdef NATIVE_PAIR
    if (IS_NARROW && HAS_BIAS != 0u) {
        begin_with_bias(tile.y, col);
    }
#endif
}

void main() {
    uint flat_tile = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    Source s;
#ifdef GROUPED
    uint across = (p.n + BN - 1u) / BN;
    if (flat_tile >= p.tile_count * across) {
        return;
    }
    uvec4 own = tile_table[flat_tile / across];
    if (own.z == 0u) {
        return;
    }
    tile_first = own.y;
    tile_rows = own.z;
    s.tile = uvec2(0u, flat_tile % across * BN);
#else
    s.tile = tile_of(flat_tile);
    if (s.tile.x >= p.m) {
        return;
    }
#endif
#ifdef WINDOWS
    find_taps();
#endif
#ifdef WEIGHTS
    find_columns(s.tile.y);
#endif
    uint row = gl_SubgroupID / (BN / WN) * WM;
    uint col = gl_SubgroupID % (BN / WN) * WN;
    for (uint z = gl_WorkGroupID.z; z < p.batches * p.splits; z += gl_NumWorkGroups.z) {
        s.place = PLANES == 0u ? Place(p.offset_a, p.offset_b, p.offset_c, p.offset_residual, 0u, p.k) : place_of(z);
#ifdef GROUPED
        s.place.b += own.x * p.inner_b;
#endif
        bool is_empty = s.place.k >= s.place.k_end;
        if (!is_empty) {
            load_first(s);
        }
        begin_sums(s.tile, col);
        if (!is_empty) {
            uint k = first_end(s.place);
#if !defined(WINDOWS) && !defined(GROUPED)
            if (IS_STAGGERED && k < s.place.k_end) {
                sum_staggered(s, k, row, col);
            } else
#endif
            {
                sum_loaded(s, k, row, col);
            }
        }
        barrier();
        store_sums(s.place, s.tile.x + row, s.tile.y + col);
        if (PLANES == 0u) {
            return;
        }
        barrier();
    }
}
