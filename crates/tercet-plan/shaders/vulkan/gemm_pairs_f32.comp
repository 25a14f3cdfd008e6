#version 460
// Split-F16 GEMM: C[m, n] = act(sum_k A[m, k] B[k, n] + bias[n]) + residual[m, n] of F32 operands,
// on F16 cooperative matrices (compare 3xTF32). gemm_params.glsl describes splits and the grid,
// matmul/split_blocks.wgsl the number format.
//
// A number is (high + low / 2^11) / scale. A multiplication takes three F16 products; the fourth,
// low times low, is below the rounding error of the others. Each step of BK of k is summed from
// zero, small products separate from large ones. The sum of a step is then multiplied by the block
// scales and added in F32. Steps have separate sums because matrix units truncate sums instead of
// rounding them, and because scales differ between blocks.
//
// A and B are stored as blocks of BLOCK x BLOCK elements, row by row of blocks. A_ALONG and B_ALONG
// are 1 if rows of an operand run along k. The numbers of blocks are lda and ldb in total, and
// inner_a and inner_b per batch entry. One scale word per block follows the last block. If the
// scale of a block marks it as not representable, the kernel skips the tiles that need it and flags
// them in `rest`. A fallback kernel computes these tiles. `rest` has a word per tile: row by row of
// tiles, batch by batch.
//
// Staged rows have an odd number of words, so that the rows of a fragment are in different banks.
// The next step is loaded into registers during the multiplication.
//
// Constraints on constants: FM, FN and FK are 8 or 16. BM and BN are multiples of BLOCK; WM and WN
// divide BLOCK. BK is a multiple of 16 and divides BLOCK; split_k is a multiple of BLOCK. SUBGROUP
// is at least WN / 8. ALIGNED_C requires that n is a multiple of 8.
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require // only for the built-in variables; uses no subgroup operation

#define ELEMENT float16_t
#define ELEMENT_TO_F32 f16_to_f32
#define F32_TO_ELEMENT f32_to_f16

#include "half.glsl"
#include "activation.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 128; // SUBGROUP (BM / WM) (BN / WN)
layout(constant_id = 1) const uint SUBGROUP = 32;
layout(constant_id = 2) const uint FM = 16; // fragment size of the device
layout(constant_id = 3) const uint FN = 16;
layout(constant_id = 4) const uint FK = 16;
layout(constant_id = 5) const uint BM = 128; // tile of a workgroup
layout(constant_id = 6) const uint BN = 64;
layout(constant_id = 7) const uint BK = 16; // k per step; each step is summed from zero
layout(constant_id = 8) const uint WM = 64; // part of the tile per subgroup
layout(constant_id = 9) const uint WN = 32;
layout(constant_id = 10) const uint A_ALONG = 1;
layout(constant_id = 11) const uint B_ALONG = 0;
layout(constant_id = 12) const uint ACTIVATION = 0; // see activation.glsl
layout(constant_id = 13) const uint HAS_BIAS = 0;
layout(constant_id = 14) const uint HAS_RESIDUAL = 0;
layout(constant_id = 15) const uint ALIGNED_C = 0;
layout(constant_id = 16) const uint BAND = 8; // rows of tiles per band; a band shares cached columns of B

const uint OUT_F32 = 1;
const uint BIAS_F32 = 1;
const uint RESIDUAL_F32 = 1;

#include "gemm_params.glsl"

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
layout(set = 0, binding = 6) writeonly buffer Rest { uint rest[]; };

const uint BLOCK = 64;
// 32-bit words of a block; 16-byte words of a block and of its rows.
const uint BLOCK_LEN = 4096;
const uint BLOCK_WORDS = 1024;
const uint ROW_WORDS = 16;
const uint UNFIT = 0xffffffffu;
const float LOW = 4.8828125e-4; // 2^-11

// Lengths in 16-byte words. 16 elements take two words of high halves and two of low halves.
const uint A_COLS = (A_ALONG * BK + (1 - A_ALONG) * BM) / 4;
const uint B_COLS = (B_ALONG * BK + (1 - B_ALONG) * BN) / 4;
const uint A_STRIDE = A_COLS + 1;
const uint B_STRIDE = B_COLS + 1;
const uint A_WORDS = BM * BK / 4;
const uint B_WORDS = BN * BK / 4;
const uint A_LEN = A_WORDS / A_COLS * A_STRIDE;
const uint STAGE_LEN = A_LEN + B_WORDS / B_COLS * B_STRIDE;
const uint SUM_STRIDE = WN / 4 + 2;
const uint SUMS_LEN = (THREADS / SUBGROUP) * FM * SUM_STRIDE;
const uint SHARED_LEN = STAGE_LEN > SUMS_LEN ? STAGE_LEN : SUMS_LEN;
shared uvec4 tiles[SHARED_LEN];
shared uint is_unfit;

const uint CM = WM / FM;
const uint CN = WN / FN;
const uint CK = BK / FK;
const uint A_LOADS = (A_WORDS + THREADS - 1) / THREADS;
const uint B_LOADS = (B_WORDS + THREADS - 1) / THREADS;
// Threads of a subgroup that share a row of a strip.
const uint ROW_LANES = WN / 8;

#define SUMS coopmat<float, gl_ScopeSubgroup, FM, FN, gl_MatrixUseAccumulator>
#define LEFT coopmat<float16_t, gl_ScopeSubgroup, FM, FK, gl_MatrixUseA>
#define RIGHT coopmat<float16_t, gl_ScopeSubgroup, FK, FN, gl_MatrixUseB>

SUMS sums[CM * CN];
uvec4 next_a[A_LOADS];
uvec4 next_b[B_LOADS];
// Offsets of this thread's words at k = 0.
uint first_a[A_LOADS];
uint first_b[B_LOADS];

#include "gemm_store.glsl"

uint blocks_of(uint len) { return (len + BLOCK - 1u) / BLOCK; }

// 16-byte word for a position of a staged tile whose lines run along k or across it. Lines and
// columns beyond the last block are clamped to it.
uint word_of(uint at, uint cols, uint along, uint first, uint len, uint first_block) {
    uint line = at / cols;
    uint col = at % cols;
    uint last = blocks_of(len) - 1u;
    if (along != 0u) {
        uint block = min((first + line) / BLOCK, last) * blocks_of(p.k);
        return (first_block + block) * BLOCK_WORDS + line % BLOCK * ROW_WORDS + col;
    }
    uint block = min(first / BLOCK + col / ROW_WORDS, last);
    return (first_block + block) * BLOCK_WORDS + line * ROW_WORDS + col % ROW_WORDS;
}

// Number of words from k = 0 to k, for an operand with `len` rows or columns.
uint step_of(uint k, uint along, uint len) {
    uint block = k / BLOCK * BLOCK_WORDS;
    return along != 0u ? block + k % BLOCK / 4u : block * blocks_of(len) + k % BLOCK * ROW_WORDS;
}

// Index of the block at a block of rows or columns and a block of k.
uint block_of(uint first, uint k_block, uint along, uint len) {
    uint block = min(first / BLOCK, blocks_of(len) - 1u);
    return along != 0u ? block * blocks_of(p.k) + k_block : k_block * blocks_of(len) + block;
}

uint scale_a(uint place, uint first, uint k_block) {
    return a[p.lda * BLOCK_LEN + place + block_of(first, k_block, A_ALONG, p.m)];
}

uint scale_b(uint place, uint first, uint k_block) {
    return b[p.ldb * BLOCK_LEN + place + block_of(first, k_block, B_ALONG, p.n)];
}

void find_words(Place place, uvec2 tile) {
    [[unroll]] for (uint i = 0u; i < A_LOADS; i++) {
        uint at = gl_LocalInvocationIndex + i * THREADS;
        first_a[i] = word_of(at, A_COLS, A_ALONG, tile.x, p.m, place.a);
    }
    [[unroll]] for (uint i = 0u; i < B_LOADS; i++) {
        uint at = gl_LocalInvocationIndex + i * THREADS;
        first_b[i] = word_of(at, B_COLS, B_ALONG, tile.y, p.n, place.b);
    }
}

// True if split F16 represents all blocks of a tile, over all of k.
bool are_fit(Place place, uvec2 tile) {
    if (gl_LocalInvocationIndex == 0u) {
        is_unfit = 0u;
    }
    barrier();
    uint steps = blocks_of(p.k);
    for (uint at = gl_LocalInvocationIndex; at < steps; at += THREADS) {
        uint most = 0u;
        [[unroll]] for (uint i = 0u; i < BM; i += BLOCK) {
            most = max(most, scale_a(place.a, tile.x + i, at));
        }
        [[unroll]] for (uint i = 0u; i < BN; i += BLOCK) {
            most = max(most, scale_b(place.b, tile.y + i, at));
        }
        if (most == UNFIT) {
            is_unfit = 1u;
        }
    }
    barrier();
    return is_unfit == 0u;
}

// Loads the tiles of A and B at k from global memory into registers.
void load_step(uint k) {
    uint step_a = step_of(k, A_ALONG, p.m);
    uint step_b = step_of(k, B_ALONG, p.n);
    [[unroll]] for (uint i = 0u; i < A_LOADS; i++) {
        if (A_WORDS % THREADS == 0u || gl_LocalInvocationIndex + i * THREADS < A_WORDS) {
            next_a[i] = a_vec[first_a[i] + step_a];
        }
    }
    [[unroll]] for (uint i = 0u; i < B_LOADS; i++) {
        if (B_WORDS % THREADS == 0u || gl_LocalInvocationIndex + i * THREADS < B_WORDS) {
            next_b[i] = b_vec[first_b[i] + step_b];
        }
    }
}

// Stores the loaded tiles in shared memory.
void store_step() {
    [[unroll]] for (uint i = 0u; i < A_LOADS; i++) {
        uint at = gl_LocalInvocationIndex + i * THREADS;
        if (A_WORDS % THREADS == 0u || at < A_WORDS) {
            tiles[at / A_COLS * A_STRIDE + at % A_COLS] = next_a[i];
        }
    }
    [[unroll]] for (uint i = 0u; i < B_LOADS; i++) {
        uint at = gl_LocalInvocationIndex + i * THREADS;
        if (B_WORDS % THREADS == 0u || at < B_WORDS) {
            tiles[A_LEN + at / B_COLS * B_STRIDE + at % B_COLS] = next_b[i];
        }
    }
}

// Index of the word in a staged line that starts the high BF16 halves from `element` on. The low
// halves are two words later.
uint halves_at(uint element) { return element / 16u * 4u + element % 16u / 8u; }

void load_left(out LEFT of, uint row, uint k, uint half_of_pair) {
    if (A_ALONG != 0u) {
        uint at = row * A_STRIDE + halves_at(k) + half_of_pair;
        coopMatLoad(of, tiles, at, A_STRIDE, gl_CooperativeMatrixLayoutRowMajor);
    } else {
        uint at = k * A_STRIDE + halves_at(row) + half_of_pair;
        coopMatLoad(of, tiles, at, A_STRIDE, gl_CooperativeMatrixLayoutColumnMajor);
    }
}

void load_right(out RIGHT of, uint col, uint k, uint half_of_pair) {
    if (B_ALONG != 0u) {
        uint at = A_LEN + col * B_STRIDE + halves_at(k) + half_of_pair;
        coopMatLoad(of, tiles, at, B_STRIDE, gl_CooperativeMatrixLayoutColumnMajor);
    } else {
        uint at = A_LEN + k * B_STRIDE + halves_at(col) + half_of_pair;
        coopMatLoad(of, tiles, at, B_STRIDE, gl_CooperativeMatrixLayoutRowMajor);
    }
}

// Adds the products of a staged step, multiplied by `scale`. The subgroup's part begins at (row,
// col).
void add_products(uint row, uint col, float scale) {
    float low_scale = scale * LOW;
    LEFT left_high[CK * CM];
    LEFT left_low[CK * CM];
    [[unroll]] for (uint f = 0u; f < CK; f++) {
        [[unroll]] for (uint i = 0u; i < CM; i++) {
            load_left(left_high[f * CM + i], row + i * FM, f * FK, 0u);
            load_left(left_low[f * CM + i], row + i * FM, f * FK, 2u);
        }
    }
    [[unroll]] for (uint j = 0u; j < CN; j++) {
        RIGHT high[CK];
        RIGHT low[CK];
        [[unroll]] for (uint f = 0u; f < CK; f++) {
            load_right(high[f], col + j * FN, f * FK, 0u);
            load_right(low[f], col + j * FN, f * FK, 2u);
        }
        [[unroll]] for (uint i = 0u; i < CM; i++) {
            SUMS great = SUMS(0.0);
            SUMS small = SUMS(0.0);
            [[unroll]] for (uint f = 0u; f < CK; f++) {
                great = coopMatMulAdd(left_high[f * CM + i], high[f], great);
                small = coopMatMulAdd(left_low[f * CM + i], high[f], small);
                small = coopMatMulAdd(left_high[f * CM + i], low[f], small);
            }
            [[unroll]] for (uint e = 0u; e < great.length(); e++) {
                float sum = fma(small[e], low_scale, sums[i * CN + j][e]);
                sums[i * CN + j][e] = fma(great[e], scale, sum);
            }
        }
    }
}

void run_tile(Place place, uvec2 tile, uint row, uint col) {
    [[unroll]] for (uint i = 0u; i < CM * CN; i++) {
        sums[i] = SUMS(0.0);
    }
    if (place.k < place.k_end) {
        uint k = place.k;
        find_words(place, tile);
        load_step(k);
        for (;;) {
            store_step();
            barrier();
            float by_a = uintBitsToFloat(scale_a(place.a, tile.x + row, k / BLOCK));
            float by_b = uintBitsToFloat(scale_b(place.b, tile.y + col, k / BLOCK));
            bool more = k + BK < place.k_end;
            if (more) {
                load_step(k + BK);
            } else {
                // If there is no next step, the registers for its operands are cleared: otherwise
                // compilers would copy them.
                [[unroll]] for (uint i = 0u; i < A_LOADS; i++) {
                    next_a[i] = uvec4(0u);
                }
                [[unroll]] for (uint i = 0u; i < B_LOADS; i++) {
                    next_b[i] = uvec4(0u);
                }
            }
            add_products(row, col, by_a * by_b);
            if (!more) {
                break;
            }
            k += BK;
            barrier();
        }
    }
    barrier();
    store_sums(place, tile.x + row, tile.y + col);
}

void main() {
    uvec2 tile = tile_of(gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x);
    if (tile.x >= p.m) {
        return;
    }
    uint row = gl_SubgroupID / (BN / WN) * WM;
    uint col = gl_SubgroupID % (BN / WN) * WN;
    uint across = (p.n + BN - 1u) / BN;
    uint tiles_of_batch = (p.m + BM - 1u) / BM * across;
    for (uint z = gl_WorkGroupID.z; z < p.batches * p.splits; z += gl_NumWorkGroups.z) {
        Place place = place_of(z);
        bool fit = are_fit(place, tile);
        if (gl_LocalInvocationIndex == 0u && z % p.splits == 0u) {
            rest[z / p.splits * tiles_of_batch + tile.x / BM * across + tile.y / BN] = fit ? 0u : 1u;
        }
        if (fit) {
            run_tile(place, tile, row, col);
        }
        barrier();
    }
}
