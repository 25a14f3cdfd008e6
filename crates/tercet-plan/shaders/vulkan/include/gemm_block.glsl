// GEMM on workgroup-scope matrices (VK_NV_cooperative_matrix2), for each batch: C[m, n] = act(sum_k
// A[m, k] B[k, n] + bias[n]) + residual[m, n].
//
// A and B are ELEMENT (F16 or BF16), sums are F32, and C is rounded once. gemm_params.glsl
// describes operands, batches, splits and the grid. The driver stages operands and divides the
// work. Interior tiles are loaded without bounds tests. Edge tiles are zero-padded, and nothing is
// stored beyond the edges.
//
// Constraints: A, B and C satisfy the ALIGNED conditions of gemm_coop.glsl. The device determines
// BM, BN, BK and THREADS.

#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_NV_cooperative_matrix2 : require

#include "half.glsl"
#include "activation.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 256;
layout(constant_id = 1) const uint BM = 128; // tile of a workgroup
layout(constant_id = 2) const uint BN = 256;
layout(constant_id = 3) const uint BK = 64;
layout(constant_id = 4) const uint B_TRANSPOSED = 0;
layout(constant_id = 5) const uint ACTIVATION = 0; // see activation.glsl
layout(constant_id = 6) const uint HAS_BIAS = 0;
layout(constant_id = 7) const uint HAS_RESIDUAL = 0;
layout(constant_id = 8) const uint OUT_F32 = 0; // type of C: 1: F32, 0: ELEMENT; likewise of the bias and the residual
layout(constant_id = 9) const uint BIAS_F32 = 0;
layout(constant_id = 10) const uint RESIDUAL_F32 = 0;
layout(constant_id = 11) const uint BAND = 8; // rows of tiles per band; a band shares cached columns of B

#include "gemm_params.glsl"

layout(set = 0, binding = 1) restrict readonly buffer A { ELEMENT a[]; };
layout(set = 0, binding = 2) restrict readonly buffer B { ELEMENT b[]; };
layout(set = 0, binding = 3) restrict readonly buffer Bias { uint bias[]; };
layout(set = 0, binding = 4) restrict readonly buffer Residual { uint residual[]; };
layout(set = 0, binding = 5) writeonly buffer C { float c[]; };
layout(set = 0, binding = 5) writeonly buffer C2 { ELEMENT c_half[]; };

// Number of unrolled steps of BK. The driver moves loads ahead within straight-line code.
const uint UNROLLED = 4;

float half_of(uint word, uint at) { return ELEMENT_TO_F32((word >> ((at & 1u) * 16u)) & 0xffffu); }

// Epilogue of the sum at (row, col) of a tile.
float finish(
    const in uint row, const in uint col, const in float sum, const in uint first_row, const in uint first_col,
    const in uint residual_at
) {
    float x = sum;
    bool inside = first_row + row < p.m && first_col + col < p.n;
    if (HAS_BIAS != 0u && inside) {
        uint at = p.offset_bias + first_col + col;
        x += BIAS_F32 != 0u ? uintBitsToFloat(bias[at]) : half_of(bias[at >> 1], at);
    }
    x = activate(ACTIVATION, x);
    if (HAS_RESIDUAL != 0u && inside) {
        uint at = residual_at + (first_row + row) * p.ld_residual + first_col + col;
        x += RESIDUAL_F32 != 0u ? uintBitsToFloat(residual[at]) : half_of(residual[at >> 1], at);
    }
    return x;
}

#define SUMS coopmat<float, gl_ScopeWorkgroup, BM, BN, gl_MatrixUseAccumulator>

// Tensor layouts of A and B, limited to the end of the part of k.
#define LAY_OUT(layout_a, layout_b)                                                                \
    layout_a = setTensorLayoutDimensionNV(layout_a, p.m, place.k_end);                             \
    layout_a = setTensorLayoutStrideNV(layout_a, p.lda & ~7u, 1u);                                 \
    if (B_TRANSPOSED != 0u) {                                                                      \
        layout_b = setTensorLayoutDimensionNV(layout_b, p.n, place.k_end);                         \
    } else {                                                                                       \
        layout_b = setTensorLayoutDimensionNV(layout_b, place.k_end, p.n);                         \
    }                                                                                              \
    layout_b = setTensorLayoutStrideNV(layout_b, p.ldb & ~7u, 1u);

// Adds the product of BK elements of k from `at` on.
#define ADD_STEP(layout_a, layout_b, at)                                                           \
    {                                                                                              \
        coopmat<ELEMENT, gl_ScopeWorkgroup, BM, BK, gl_MatrixUseA> left;                           \
        coopmat<ELEMENT, gl_ScopeWorkgroup, BK, BN, gl_MatrixUseB> right;                          \
        coopMatLoadTensorNV(left, a, first_a, sliceTensorLayoutNV(layout_a, tile.x, BM, at, BK));  \
        if (B_TRANSPOSED != 0u) {                                                                  \
            coopMatLoadTensorNV(                                                                   \
                right, b, first_b, sliceTensorLayoutNV(layout_b, tile.y, BN, at, BK), transpose_b  \
            );                                                                                     \
        } else {                                                                                   \
            coopMatLoadTensorNV(                                                                   \
                right, b, first_b, sliceTensorLayoutNV(layout_b, at, BK, tile.y, BN)               \
            );                                                                                     \
        }                                                                                          \
        sums = coopMatMulAdd(left, right, sums);                                                   \
    }

// Computes one tile of one part of one batch.
void run_tile(Place place, uvec2 tile) {
    SUMS sums = SUMS(0.0);
    // The masks tell the compiler that offsets are multiples of 8. The strides are masked alike.
    uint first_a = place.a & ~7u;
    uint first_b = place.b & ~7u;
    uint first_c = place.c & ~7u;
    uint k = place.k & ~7u;
    tensorViewNV<2, false, 1, 0> transpose_b = createTensorViewNV(2, false, 1, 0);
    if (tile.x + BM <= p.m && tile.y + BN <= p.n) {
        tensorLayoutNV<2> layout_a = createTensorLayoutNV(2);
        tensorLayoutNV<2> layout_b = createTensorLayoutNV(2);
        LAY_OUT(layout_a, layout_b)
        for (; k + UNROLLED * BK <= place.k_end; k += UNROLLED * BK) {
            [[unroll]] for (uint i = 0u; i < UNROLLED; i++) {
                ADD_STEP(layout_a, layout_b, k + i * BK)
            }
        }
        for (; k + BK <= place.k_end; k += BK) {
            ADD_STEP(layout_a, layout_b, k)
        }
    }
    if (k < place.k_end) {
        tensorLayoutNV<2, gl_CooperativeMatrixClampModeConstantNV> layout_a =
            createTensorLayoutNV(2, gl_CooperativeMatrixClampModeConstantNV);
        tensorLayoutNV<2, gl_CooperativeMatrixClampModeConstantNV> layout_b =
            createTensorLayoutNV(2, gl_CooperativeMatrixClampModeConstantNV);
        LAY_OUT(layout_a, layout_b)
        for (; k < place.k_end; k += BK) {
            ADD_STEP(layout_a, layout_b, k)
        }
    }
    if (HAS_BIAS + HAS_RESIDUAL + ACTIVATION != 0u) {
        coopMatPerElementNV(sums, sums, finish, tile.x, tile.y, place.residual);
    }
    tensorLayoutNV<2, gl_CooperativeMatrixClampModeConstantNV> layout_c =
        createTensorLayoutNV(2, gl_CooperativeMatrixClampModeConstantNV);
    layout_c = setTensorLayoutDimensionNV(layout_c, p.m, p.n);
    layout_c = setTensorLayoutStrideNV(layout_c, p.ldc & ~7u, 1u);
    layout_c = sliceTensorLayoutNV(layout_c, tile.x, BM, tile.y, BN);
    if (OUT_F32 != 0u) {
        coopMatStoreTensorNV(sums, c, first_c, layout_c);
    } else {
        coopmat<ELEMENT, gl_ScopeWorkgroup, BM, BN, gl_MatrixUseAccumulator> rounded =
            coopmat<ELEMENT, gl_ScopeWorkgroup, BM, BN, gl_MatrixUseAccumulator>(sums);
        coopMatStoreTensorNV(rounded, c_half, first_c, layout_c);
    }
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
