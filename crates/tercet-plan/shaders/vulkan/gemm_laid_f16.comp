#version 460
// GEMM with prepacked weights: C[m, n] = act(sum_k A[m, k] W[k, n] + bias[n]) of F16. lay_out.wgsl
// reorders the weights for this kernel.
//
// Sums are F32; C is rounded once. A subgroup computes PART_ROWS x 64 of C: 4 fragments of 16
// columns times PART_ROWS / 8 fragments of 8 rows. Threads fill the fragments directly from global
// memory, without shared memory and without barriers. Subgroups of a workgroup share operands
// through the L1 cache. Filling fragments requires a known register layout, which
// `fragment_layout.rs` probes. Lane l owns row or column g = l / 4 and the elements of t = l % 4.
//
// W is stored in blocks of 64 columns, and each block in steps of 32 of k. A step contains the
// fragments of its two halves, with the 16 bytes of each lane in order. Columns g and g + 8 of
// fragment i are columns 8 g + 2 i and 8 g + 2 i + 1. The results of a lane are then 8 adjacent
// elements of a row. The four elements of a lane along k are adjacent, so that it loads 16 bytes of
// a row of A per step. The order of W is:
//
//     W[block, step, half, i, g, t, pair, side, 2] = B[row, column];
//     row = 32 step + 8 t + 4 half + 2 pair + 0..2;
//     column = 64 block + 8 g + 2 i + side.
//
// The 16 bytes are a fragment's registers in the order of the hardware instruction.
//
// Each step multiplies while the operands of the next step are loaded. If the last part of the rows
// is partial, it begins earlier, overlaps the previous part and stores only its new rows. If m is
// below PART_ROWS, row indices are clamped. With SLICES > 1, a workgroup computes one part, its
// subgroups divide k into slices, and shared memory reduces their sums. Workgroups iterate over
// tiles with a grid stride.
//
// Rows may be stored in panels: 32 columns of all rows, then the next 32 columns,
//
//     A[k / 32, m, k mod 32], C[n / 32, m, n mod 32].
//
// Eight rows of a step are then 512 contiguous bytes, which a subgroup loads together.
//
// Constraints: n is a multiple of 64; k of 64 SLICES, at least 64; lda, ldc and offset_a of 8; one
// batch, no split over workgroups. gemm_params.glsl describes the operands and the grid.

#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require // only for the built-in variables; uses no subgroup operation

#define ELEMENT_TO_F32 f16_to_f32
#define F32_TO_ELEMENT f32_to_f16
#define NATIVE_PAIR packHalf2x16

#include "half.glsl"
#include "activation.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 256; // 32 (BM / PART_ROWS) (BN / 64) SLICES
layout(constant_id = 1) const uint BM = 128; // tile of a workgroup
layout(constant_id = 2) const uint BN = 256;
layout(constant_id = 3) const uint PART_ROWS = 64; // rows of the tile per subgroup
layout(constant_id = 4) const uint ACTIVATION = 0; // see activation.glsl
layout(constant_id = 5) const uint HAS_BIAS = 0;
layout(constant_id = 6) const uint BAND = 8; // rows of tiles per band; a band shares cached columns of W
layout(constant_id = 7) const uint FULL_PARTS = 0; // m is at least PART_ROWS
layout(constant_id = 8) const uint SLICES = 1; // number of slices of k
layout(constant_id = 9) const uint LDA = 0; // lda if known at pipeline creation, else 0
layout(constant_id = 10) const uint A_PANELS = 0; // 1: A is stored in panels, and LDA is 32

// Constants of gemm_finish.glsl: F16 bias and results, no residual. Devices with a known fragment
// layout also convert F16 correctly.
const uint HAS_RESIDUAL = 0;
const uint OUT_F32 = 0;
const uint BIAS_F32 = 0;
const uint RESIDUAL_F32 = 0;
const uint NATIVE = 1;

#define PANELS
#include "gemm_params.glsl"

layout(set = 0, binding = 1) restrict readonly buffer A16 { uvec4 a_vec[]; };
layout(set = 0, binding = 2) restrict readonly buffer W16 { uvec4 w_vec[]; };
layout(set = 0, binding = 3) restrict readonly buffer Bias { uint bias[]; };
layout(set = 0, binding = 4) restrict readonly buffer Residual { uint residual[]; };
layout(set = 0, binding = 5) writeonly buffer C16 { uvec4 c_vec[]; };

#include "gemm_finish.glsl"

// Columns of a subgroup's part, in fragments, and its rows.
const uint COLUMNS = 4;
const uint PART_COLUMNS = 16 * COLUMNS;
const uint ROWS = PART_ROWS / 8;
const uint STEP = 32;
// 16-byte words of a block in half a step.
const uint HALF_LEN = 32 * COLUMNS;

#define LEFT coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA>
#define RIGHT coopmat<float16_t, gl_ScopeSubgroup, 16, 8, gl_MatrixUseB>
#define SUMS coopmat<float, gl_ScopeSubgroup, 16, 8, gl_MatrixUseAccumulator>

SUMS sums[COLUMNS][ROWS];
LEFT left;
RIGHT right[ROWS];
// Operands of a step. A is double-buffered: one step is multiplied while the next is loaded.
uvec4 weights[2][COLUMNS];
uvec4 rows[2][ROWS];
// Offsets of this lane's words in the first step, for each fragment of A. Parts with PART_ROWS rows
// use only the first offset: the other fragments have the constant distance LDA, so that a load
// needs one addition.
uint first_row[ROWS];
uint first_weight;

// Sums of all slices except the first, in vectors of four per lane.
shared vec4 shares[(SLICES - 1u) * COLUMNS * ROWS * 32u + 1u];

f16vec2 pair_of(uint word) { return unpackFloat2x16(word); }

void fill_left(uvec4 words) {
    [[unroll]] for (uint pair = 0u; pair < 2u; pair++) {
        [[unroll]] for (uint side = 0u; side < 2u; side++) {
            f16vec2 both = pair_of(words[2u * pair + side]);
            left[4u * side + 2u * pair] = both.x;
            left[4u * side + 2u * pair + 1u] = both.y;
        }
    }
}

void fill_right(const uint j, uint first, uint second) {
    right[j][0] = pair_of(first).x;
    right[j][1] = pair_of(first).y;
    right[j][2] = pair_of(second).x;
    right[j][3] = pair_of(second).y;
}

uint lda() { return LDA != 0u ? LDA : p.lda; }

// Distance of two steps of A, in 16-byte words.
uint step_apart() { return A_PANELS != 0u ? STEP / 8u * p.m : STEP / 8u; }

void load_rows(const uint to, uint step) {
    [[unroll]] for (uint j = 0u; j < ROWS; j++) {
        // Fragments are eight rows apart, and a row has lda / 8 words.
        uint first = FULL_PARTS != 0u ? first_row[0] + j * lda() : first_row[j];
        rows[to][j] = a_vec[first + step * step_apart()];
    }
}

uvec4 load_weights(const uint part, const uint i, uint step) {
    return w_vec[first_weight + step * (2u * HALF_LEN) + part * HALF_LEN + i * 32u];
}

// Multiplies a step. The weights of the next step are loaded as soon as their registers are free.
void multiply(const uint of, uint next) {
    [[unroll]] for (uint part = 0u; part < 2u; part++) {
        [[unroll]] for (uint j = 0u; j < ROWS; j++) {
            fill_right(j, rows[of][j][2u * part], rows[of][j][2u * part + 1u]);
        }
        [[unroll]] for (uint i = 0u; i < COLUMNS; i++) {
            fill_left(weights[part][i]);
            [[unroll]] for (uint j = 0u; j < ROWS; j++) {
                sums[i][j] = coopMatMulAdd(left, right[j], sums[i][j]);
            }
            weights[part][i] = load_weights(part, i, next);
        }
    }
}

// Initializes the sums: slice 0 with the bias of the lane's columns from `first` on, other slices
// with 0.
void begin_sums(uint first, uint slice) {
    [[unroll]] for (uint i = 0u; i < COLUMNS; i++) {
        float low = slice == 0u ? bias_at(first + 2u * i) : 0.0;
        float high = slice == 0u ? bias_at(first + 2u * i + 1u) : 0.0;
        SUMS begin;
        begin[0] = low;
        begin[1] = low;
        begin[2] = high;
        begin[3] = high;
        [[unroll]] for (uint j = 0u; j < ROWS; j++) {
            sums[i][j] = begin;
        }
    }
}

uint place_in_c(uint line, uint col) {
    uint in_panels = (col / STEP * p.m + line) * STEP + col % STEP;
    return p.offset_c + (p.c_panels != 0u ? in_panels : line * p.ldc + col);
}

// Stores this lane's results of the part at `row`, skipping rows below `own`. The columns of this
// part begin at `first`.
void store_sums(uint row, uint own, uint first) {
    uint lane_row = row + gl_SubgroupInvocationID % 4u * 2u;
    [[unroll]] for (uint j = 0u; j < ROWS; j++) {
        [[unroll]] for (uint side = 0u; side < 2u; side++) {
            uint line = lane_row + 8u * j + side;
            if (line >= p.m || line < own) {
                continue;
            }
            vec4 low = vec4(sums[0][j][side], sums[0][j][2u + side], sums[1][j][side], sums[1][j][2u + side]);
            vec4 high = vec4(sums[2][j][side], sums[2][j][2u + side], sums[3][j][side], sums[3][j][2u + side]);
            low = finish_biased(low, 0u, 4u);
            high = finish_biased(high, 0u, 4u);
            c_vec[place_in_c(line, first) >> 3] = uvec4(halves(low), halves(high));
        }
    }
}

// Adds the sums of all slices to those of the first slice.
void meet(uint slice) {
    const uint LANE_LEN = COLUMNS * ROWS;
    if (slice > 0u) {
        [[unroll]] for (uint i = 0u; i < COLUMNS; i++) {
            [[unroll]] for (uint j = 0u; j < ROWS; j++) {
                vec4 own = vec4(sums[i][j][0], sums[i][j][1], sums[i][j][2], sums[i][j][3]);
                shares[((slice - 1u) * LANE_LEN + i * ROWS + j) * 32u + gl_SubgroupInvocationID] = own;
            }
        }
    }
    barrier();
    if (slice == 0u) {
        [[unroll]] for (uint i = 0u; i < COLUMNS; i++) {
            [[unroll]] for (uint j = 0u; j < ROWS; j++) {
                vec4 sum = vec4(0.0);
                for (uint other = 0u; other < SLICES - 1u; other++) {
                    sum += shares[(other * LANE_LEN + i * ROWS + j) * 32u + gl_SubgroupInvocationID];
                }
                [[unroll]] for (uint e = 0u; e < 4u; e++) {
                    sums[i][j][e] += sum[e];
                }
            }
        }
    }
    barrier();
}

void multiply_tile(uvec2 tile) {
    uint slice = SLICES > 1u ? gl_SubgroupID : 0u;
    uint part = SLICES > 1u ? 0u : gl_SubgroupID;
    uint own = tile.x + part / (BN / PART_COLUMNS) * PART_ROWS;
    uint col = tile.y + part % (BN / PART_COLUMNS) * PART_COLUMNS;
    if (own >= p.m || col >= p.n) {
        return;
    }
    uint row = FULL_PARTS != 0u ? min(own, p.m - PART_ROWS) : own;
    uint g = gl_SubgroupInvocationID / 4u;
    uint t = gl_SubgroupInvocationID % 4u;
    [[unroll]] for (uint j = 0u; j < ROWS; j++) {
        uint line = row + 8u * j + g;
        first_row[j] = (p.offset_a + (FULL_PARTS != 0u ? line : min(line, p.m - 1u)) * lda()) / 8u + t;
    }
    uint steps = p.k / STEP / SLICES;
    uint skipped = slice * steps;
    [[unroll]] for (uint j = 0u; j < ROWS; j++) {
        first_row[j] += skipped * step_apart();
    }
    first_weight = p.offset_b / 8u + gl_SubgroupInvocationID;
    first_weight += (col / PART_COLUMNS * (p.k / STEP) + skipped) * (2u * HALF_LEN);
    load_rows(0u, 0u);
    [[unroll]] for (uint i = 0u; i < 2u * COLUMNS; i++) {
        weights[i / COLUMNS][i % COLUMNS] = load_weights(i / COLUMNS, i % COLUMNS, 0u);
    }
    begin_sums(col + 8u * g, slice);
    uint step = 0u;
    [[dont_unroll]] do {
        load_rows(1u, step + 1u);
        multiply(0u, step + 1u);
        step += 2u;
        uint next = min(step, steps - 1u);
        load_rows(0u, next);
        multiply(1u, next);
    } while (step < steps);
    if (SLICES > 1u) {
        meet(slice);
    }
    if (slice == 0u) {
        store_sums(row, own, col + 8u * g);
    }
}

void main() {
    uint tiles = (p.m + BM - 1u) / BM * ((p.n + BN - 1u) / BN);
    uint groups = gl_NumWorkGroups.x * gl_NumWorkGroups.y;
    uint first = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    [[dont_unroll]] for (uint tile = first; tile < tiles; tile += groups) {
        multiply_tile(tile_of(tile));
    }
}
