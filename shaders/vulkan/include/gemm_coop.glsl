// C[m, n] = act(sum_k A[m, k] B[k, n] + bias[n]) + residual[m, n], for each batch.
//
// A and B hold ELEMENT (f16 or bf16), sums are f32, C is rounded once. Leading dimensions, strides and
// offsets are in elements; B is [k, n], or [n, k] where B_TRANSPOSED. Batch b has the place
// (b / batch_inner, b % batch_inner) in the two batch axes; a stride of 0 broadcasts.
//
// Grid: tiles of BM x BN of C, flat over x and y (what is beyond the last tile returns), batches over z
// (a workgroup takes every gridDim.z-th). Tiles go down 8 rows of tiles before the next column, so that
// what runs at one time shares operands in the cache.
//
// A workgroup has (BM / WM) x (BN / WN) subgroups, each with its own WM x WN of C as FM x FN fragments.
// Per step, BK of k are staged in shared memory as rows of 16-byte words, each row one word longer than
// its data so that the rows of a fragment lie in different banks. While a step multiplies, the loads of
// the next are under way into registers. STAGES = 2 alternates between two buffers, with one barrier per
// step; 1 takes two barriers and half the memory, and was faster on an H200 (216 against 134 TFLOP/s at
// 4096^3 with 128 x 128 x 32 of 64 x 64; operands that are not ALIGNED cost two thirds of that).
//
// Edges are zero in the staged tiles, and stores go through shared memory, where each element has a row
// and a column to be guarded by. Shared memory: 16 SHARED_LEN bytes.
//
// Constraints on constants: FK a multiple of 8, FN of 4; BM of WM, BN of WN and 8, BK of FK, WM of FM, WN
// of FN. ALIGNED_A: lda, offset_a, the batch strides of A and k are multiples of 8; ALIGNED_B: so are
// ldb, offset_b, the strides of B, and n (B_TRANSPOSED: k); bindings at 16 bytes.

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

layout(set = 0, binding = 0) uniform Params {
    uint m;
    uint n;
    uint k;
    uint batches;
    uint batch_inner;
    uint lda;
    uint ldb;
    uint ldc;
    uint ld_residual;
    uint offset_a;
    uint offset_b;
    uint offset_c;
    uint offset_bias;
    uint offset_residual;
    uint outer_a;
    uint outer_b;
    uint outer_c;
    uint outer_residual;
    uint inner_a;
    uint inner_b;
    uint inner_c;
    uint inner_residual;
    uint len_c; // elements of the whole tensor that C is, or is part of
} p;

// One buffer under several views: words, 16 bytes, 2 bytes.
layout(set = 0, binding = 1) readonly buffer A { uint a[]; };
layout(set = 0, binding = 1) readonly buffer A16 { uvec4 a_vec[]; };
layout(set = 0, binding = 2) readonly buffer B { uint b[]; };
layout(set = 0, binding = 2) readonly buffer B16 { uvec4 b_vec[]; };
layout(set = 0, binding = 3) readonly buffer Bias { uint bias[]; };
layout(set = 0, binding = 4) readonly buffer Residual { uint residual[]; };
layout(set = 0, binding = 5) writeonly buffer C { uint c[]; };
layout(set = 0, binding = 5) writeonly buffer C2 { uint16_t c_half[]; };

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
const uint A_LOADS = (BM * A_COLS + THREADS - 1) / THREADS;
const uint B_LOADS = (B_LINES * B_COLS + THREADS - 1) / THREADS;
const uint BAND = 8;

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

// Eight elements of line `row` of A, from `col` on.
uvec4 fetch_a(uint base, uint row, uint col) {
    if (row >= p.m || col >= p.k) {
        return uvec4(0u);
    }
    uint at = base + row * p.lda + col;
    if (ALIGNED_A != 0u) {
        return a_vec[at >> 3];
    }
    return gather_a(at, p.k - col);
}

uvec4 fetch_b(uint base, uint line, uint col) {
    uint lines = B_TRANSPOSED != 0u ? p.n : p.k;
    uint cols = B_TRANSPOSED != 0u ? p.k : p.n;
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

// Global memory to registers: the tile at (row, k) of A and at (k, col) of B.
void load_step(uint base_a, uint base_b, uint row, uint col, uint k) {
    [[unroll]] for (uint i = 0u; i < A_LOADS; i++) {
        uint at = gl_LocalInvocationIndex + i * THREADS;
        if (at < BM * A_COLS) {
            next_a[i] = fetch_a(base_a, row + at / A_COLS, k + at % A_COLS * 8u);
        }
    }
    uint first_line = B_TRANSPOSED != 0u ? col : k;
    uint first_col = B_TRANSPOSED != 0u ? k : col;
    [[unroll]] for (uint i = 0u; i < B_LOADS; i++) {
        uint at = gl_LocalInvocationIndex + i * THREADS;
        if (at < B_LINES * B_COLS) {
            next_b[i] = fetch_b(base_b, first_line + at / B_COLS, first_col + at % B_COLS * 8u);
        }
    }
}

// Registers to shared memory.
void store_step(uint stage) {
    [[unroll]] for (uint i = 0u; i < A_LOADS; i++) {
        uint at = gl_LocalInvocationIndex + i * THREADS;
        if (at < BM * A_COLS) {
            tiles[stage + at / A_COLS * A_STRIDE + at % A_COLS] = next_a[i];
        }
    }
    [[unroll]] for (uint i = 0u; i < B_LOADS; i++) {
        uint at = gl_LocalInvocationIndex + i * THREADS;
        if (at < B_LINES * B_COLS) {
            tiles[stage + A_LEN + at / B_COLS * B_STRIDE + at % B_COLS] = next_b[i];
        }
    }
}

coopmat<float, gl_ScopeSubgroup, FM, FN, gl_MatrixUseAccumulator> sums[CM * CN];

// Adds the product of a staged step; the subgroup's part begins at (row, col) of the tile.
void multiply_step(uint stage, uint row, uint col) {
    coopmat<ELEMENT, gl_ScopeSubgroup, FM, FK, gl_MatrixUseA> left[CM];
    coopmat<ELEMENT, gl_ScopeSubgroup, FK, FN, gl_MatrixUseB> right;
    [[unroll]] for (uint k = 0u; k < BK; k += FK) {
        [[unroll]] for (uint i = 0u; i < CM; i++) {
            uint at = stage + (row + i * FM) * A_STRIDE + k / 8u;
            coopMatLoad(left[i], tiles, at, A_STRIDE, gl_CooperativeMatrixLayoutRowMajor);
        }
        [[unroll]] for (uint j = 0u; j < CN; j++) {
            uint first = col + j * FN;
            if (B_TRANSPOSED != 0u) {
                uint at = stage + A_LEN + first * B_STRIDE + k / 8u;
                coopMatLoad(right, tiles, at, B_STRIDE, gl_CooperativeMatrixLayoutColumnMajor);
            } else {
                uint at = stage + A_LEN + k * B_STRIDE + first / 8u;
                coopMatLoad(right, tiles, at, B_STRIDE, gl_CooperativeMatrixLayoutRowMajor);
            }
            [[unroll]] for (uint i = 0u; i < CM; i++) {
                sums[i * CN + j] = coopMatMulAdd(left[i], right, sums[i * CN + j]);
            }
        }
    }
}

float half_of(uint word, uint at) { return ELEMENT_TO_F32((word >> ((at & 1u) * 16u)) & 0xffffu); }

float finish(float sum, uint col, uint residual_at) {
    float x = sum;
    if (HAS_BIAS != 0u) {
        uint at = p.offset_bias + col;
        x += BIAS_F32 != 0u ? uintBitsToFloat(bias[at]) : half_of(bias[at >> 1], at);
    }
    x = activate(ACTIVATION, x);
    if (HAS_RESIDUAL != 0u) {
        uint at = residual_at + col;
        x += RESIDUAL_F32 != 0u ? uintBitsToFloat(residual[at]) : half_of(residual[at >> 1], at);
    }
    return x;
}

// One two-byte result without the other half of its word, which belongs to another row; the last element
// of the tensor takes the padding with it.
void store_half(uint h, uint at) {
    if ((at & 1u) == 0u && at + 1u == p.len_c) {
        c[at >> 1] = h;
    } else {
        c_half[at] = uint16_t(h);
    }
}

// Four results, of which `valid` (at least 1) exist; `at` is the first one's place in C.
void store_four(vec4 x, uint at, uint valid) {
    if (OUT_F32 != 0u) {
        [[unroll]] for (uint i = 0u; i < 4u; i++) {
            if (i < valid) {
                c[at + i] = floatBitsToUint(x[i]);
            }
        }
        return;
    }
    uvec4 h = uvec4(F32_TO_ELEMENT(x.x), F32_TO_ELEMENT(x.y), F32_TO_ELEMENT(x.z), F32_TO_ELEMENT(x.w));
    [[unroll]] for (uint i = 0u; i < 4u; i += 2u) {
        bool both = i + 1u < valid;
        if (both && (at & 1u) == 0u) {
            c[(at + i) >> 1] = h[i] | h[i + 1u] << 16;
            continue;
        }
        if (i < valid) {
            store_half(h[i], at + i);
        }
        if (both) {
            store_half(h[i + 1u], at + i + 1u);
        }
    }
}

// The subgroup's part of C, which begins at (row, col), one strip of FM rows after the other.
void store_sums(uint row, uint col, uint base_c, uint base_residual) {
    uint mine = gl_SubgroupID * FM * SUM_STRIDE;
    [[unroll]] for (uint i = 0u; i < CM; i++) {
        [[unroll]] for (uint j = 0u; j < CN; j++) {
            uint at = mine + j * FN / 4u;
            coopMatStore(sums[i * CN + j], tiles, at, SUM_STRIDE, gl_CooperativeMatrixLayoutRowMajor);
        }
        barrier();
        for (uint at = gl_SubgroupInvocationID; at < FM * WN / 4u; at += SUBGROUP) {
            uint r = row + i * FM + at / (WN / 4u);
            uint q = at % (WN / 4u);
            uint first = col + q * 4u;
            if (r < p.m && first < p.n) {
                vec4 x = uintBitsToFloat(tiles[mine + at / (WN / 4u) * SUM_STRIDE + q]);
                uint valid = min(p.n - first, 4u);
                uint residual_at = base_residual + r * p.ld_residual;
                for (uint e = 0u; e < valid; e++) {
                    x[e] = finish(x[e], first + e, residual_at);
                }
                store_four(x, base_c + r * p.ldc + first, valid);
            }
        }
        barrier();
    }
}

// One tile of one batch.
void run_tile(uint batch, uint tile_row, uint tile_col) {
    uvec2 place = uvec2(batch / p.batch_inner, batch % p.batch_inner);
    uint base_a = p.offset_a + place.x * p.outer_a + place.y * p.inner_a;
    uint base_b = p.offset_b + place.x * p.outer_b + place.y * p.inner_b;
    uint base_c = p.offset_c + place.x * p.outer_c + place.y * p.inner_c;
    uint base_residual = p.offset_residual + place.x * p.outer_residual + place.y * p.inner_residual;
    uint row = gl_SubgroupID / (BN / WN) * WM;
    uint col = gl_SubgroupID % (BN / WN) * WN;

    [[unroll]] for (uint i = 0u; i < CM * CN; i++) {
        sums[i] = coopmat<float, gl_ScopeSubgroup, FM, FN, gl_MatrixUseAccumulator>(0.0);
    }
    load_step(base_a, base_b, tile_row, tile_col, 0u);
    // Two steps at a time, so that the place of a buffer is a constant.
    for (uint k = 0u; k < p.k; k += 2u * BK) {
        [[unroll]] for (uint half_step = 0u; half_step < 2u; half_step++) {
            uint at = k + half_step * BK;
            uint stage = (STAGES - 1u) * half_step * STAGE_LEN;
            if (at < p.k) {
                if (STAGES == 1u) {
                    barrier();
                }
                store_step(stage);
                barrier();
                if (at + BK < p.k) {
                    load_step(base_a, base_b, tile_row, tile_col, at + BK);
                }
                multiply_step(stage, row, col);
            }
        }
    }
    barrier();
    store_sums(tile_row + row, tile_col + col, base_c, base_residual);
}

void main() {
    uint flat_tile = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    uvec2 tiles_of = uvec2((p.m + BM - 1u) / BM, (p.n + BN - 1u) / BN);
    if (flat_tile >= tiles_of.x * tiles_of.y) {
        return;
    }
    uint band = flat_tile / (BAND * tiles_of.y);
    uint height = min(tiles_of.x - band * BAND, BAND);
    uint in_band = flat_tile - band * BAND * tiles_of.y;
    uint tile_row = (band * BAND + in_band % height) * BM;
    uint tile_col = in_band / height * BN;
    for (uint batch = gl_WorkGroupID.z; batch < p.batches; batch += gl_NumWorkGroups.z) {
        run_tile(batch, tile_row, tile_col);
    }
}
