// Parameters of GEMM kernels: C[m, n] = act(sum_k A[m, k] B[k, n] + bias[n]) + residual[m, n].
//
// Leading dimensions, strides and offsets are in elements. B is [k, n], or [n, k] if B_TRANSPOSED.
// Batch b has the index (b / batch_inner, b % batch_inner) in the two batch axes; a stride of 0
// broadcasts. Split-K: part s of `splits` sums at most split_k elements of k, from s split_k on,
// and its C is at offset s split_c. With several parts, C contains plain F32 sums.
//
// Grid: tiles of BM x BN of C, flat over x and y (workgroups beyond the last tile return). Batches
// and their parts map to z with a grid stride. Tiles advance down BAND rows of tiles before the
// next column, so that concurrent tiles share cached operands.

layout(set = 0, binding = 0) uniform Params {
    uint m;
    uint n;
    uint k;
    uint batches;
    uint batch_inner;
    uint splits;
    uint split_k;
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
    uint split_c;
    uint len_c; // elements of the tensor that contains C
#ifdef PANELS
    uint c_panels; // nonzero: C is stored in panels of 32 columns
#endif
#ifdef WINDOWS
#include "window_params.glsl"
#endif
#ifdef WEIGHTS
#include "weight_params.glsl"
#endif
#ifdef GROUPED
#include "grouped_params.glsl"
#endif
} p;

// Offsets of a batch in each operand, and the range of k to sum.
struct Place {
    uint a;
    uint b;
    uint c;
    uint residual;
    uint k;
    uint k_end;
};

Place place_of(uint z) {
    uint part = z % p.splits;
    uint batch = z / p.splits;
    uvec2 at = uvec2(batch / p.batch_inner, batch % p.batch_inner);
    Place place;
    place.a = p.offset_a + at.x * p.outer_a + at.y * p.inner_a;
    place.b = p.offset_b + at.x * p.outer_b + at.y * p.inner_b;
    place.c = p.offset_c + at.x * p.outer_c + at.y * p.inner_c + part * p.split_c;
    place.residual = p.offset_residual + at.x * p.outer_residual + at.y * p.inner_residual;
    place.k = part * p.split_k;
    place.k_end = min(place.k + p.split_k, p.k);
    return place;
}

// First row and column of a workgroup's tile. For workgroups beyond the last tile, the returned row
// is at least m.
uvec2 tile_of(uint flat_tile) {
    uvec2 tiles_of = uvec2((p.m + BM - 1u) / BM, (p.n + BN - 1u) / BN);
    if (flat_tile >= tiles_of.x * tiles_of.y) {
        return uvec2(p.m, 0u);
    }
    uint band = flat_tile / (BAND * tiles_of.y);
    uint height = min(tiles_of.x - band * BAND, BAND);
    uint in_band = flat_tile - band * BAND * tiles_of.y;
    return uvec2((band * BAND + in_band % height) * BM, in_band / height * BN);
}
