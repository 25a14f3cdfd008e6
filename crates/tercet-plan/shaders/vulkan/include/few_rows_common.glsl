// Skinny GEMM: C[m, n] = act(sum_k A[m, k] W[n, k] + bias[m, n]) for at most ROWS rows. Shared code
// for all weight formats. With GATED, W contains two concatenated matrices, and C = act(first) *
// second.
//
// Matrix operations are F16 with F32 sums: 16 rows of W by 16 of k, times 16 of k by 8 rows of A.
// Threads fill the fragments directly from memory. With g = l / 4, t = l % 4 and c = 2 t, lane l of
// a subgroup fills:
//
//     of W       (g, c), (g, c + 1), (g, c + 8), (g, c + 9), then the same of row g + 8;
//     of A       (c, g), (c + 1, g), (c + 8, g), (c + 9, g).
//
// The sums of lane l are (g, c), (g, c + 1), (g + 8, c), (g + 8, c + 1). No specification
// guarantees this fragment layout, so a probe must confirm it before these kernels are used. The
// order of k is arbitrary if both operands use the same. Weights are therefore used in memory
// order, and elements of A are permuted to match.
//
// F32 elements of A are split into two F16 numbers, scaled by a power of two per row and slice that
// brings the largest near 2^14. The precision is 22 bits, or 2^-39 of the largest. With at most
// four rows, the second numbers occupy the place of other rows. A row with infinity or NaN has no
// finite result, so its elements are single F16 numbers.

#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require

#include "half.glsl"
#include "activation.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 512;
layout(constant_id = 1) const uint TILES = 7; // tiles of 16 rows of W per workgroup
#ifdef STREAMED
layout(constant_id = 2) const uint PARTS = 2; // parts of k; there is a subgroup per part and tile
layout(constant_id = 3) const uint ROUNDS = 8; // slices per part
#ifdef LAID
layout(constant_id = 11) const uint NUMBERS = 1; // F16 numbers per element of A: 1 or 2
layout(constant_id = 12) const uint CHUNK = 4; // steps of A per stage in shared memory; 0: A is in registers
layout(constant_id = 13) const uint SPLITS = 1; // parts of k in different workgroups, which store partial sums
layout(constant_id = 14) const uint AHEAD = 1; // loads of W in flight
layout(constant_id = 15) const uint PASS = 1; // groups of 8 rows of a subgroup whose sums are stored at once
layout(constant_id = 16) const uint POOL = 4096; // pairs of words in shared memory
layout(constant_id = 17) const uint ROWS_AHEAD = 1; // steps of A in flight, if A is in registers
#else
layout(constant_id = 11) const uint CHUNK = 8; // steps of A per stage in shared memory
#endif
#else
layout(constant_id = 2) const uint PASS = 4; // tiles whose sums share one reduction
layout(constant_id = 3) const uint ROUNDS = 1; // slices per subgroup and tile
#endif
layout(constant_id = 4) const uint ROWS = 8; // 8 or 4; more if A is prepacked
layout(constant_id = 5) const uint WHOLE = 0; // 1: the slices cover k exactly
layout(constant_id = 6) const uint BIAS = 0;
layout(constant_id = 7) const uint ACTIVATION = 0; // see activation.glsl
layout(constant_id = 8) const uint A_TYPE = 0; // F32, F16 or BF16, also for the bias
layout(constant_id = 9) const uint Y_TYPE = 0;
layout(constant_id = 10) const uint GATED = 0;

// Strides and offsets in elements; those of quantized W in bytes.
layout(set = 0, binding = 0) uniform Params {
    uint m;
    uint n;
    uint k;
    uint blocks; // per row of W
    uint a_offset;
    uint a_row;
    uint b_offset;
    uint b_col;
    uint bias_offset;
    uint bias_row;
    uint bias_stride;
    uint zero; // runtime 0, unknown to compilers
#ifdef LAID
    uint slices; // per row of A
    uint units_at; // in words
    uint sums_at;
#endif
} p;

// One buffer, declared with several element types.
layout(set = 0, binding = 1) restrict readonly buffer A16 { uvec4 a_vec[]; };
layout(set = 0, binding = 1) restrict readonly buffer A8 { uvec2 a_pair[]; };
layout(set = 0, binding = 2) restrict readonly buffer B { uint b[]; };
layout(set = 0, binding = 2) restrict readonly buffer B8 { uvec2 b_pair[]; };
layout(set = 0, binding = 2) restrict readonly buffer B16 { uvec4 b_vec[]; };
layout(set = 0, binding = 3) restrict readonly buffer Bias { uint bias[]; };
layout(set = 0, binding = 4) writeonly buffer Y { uint y[]; };
#ifdef LAID
layout(set = 0, binding = 5) restrict readonly buffer Rows16 { uvec4 rows_vec[]; };
layout(set = 0, binding = 5) restrict readonly buffer Rows8 { uvec2 rows_pair[]; };
layout(set = 0, binding = 5) restrict readonly buffer Rows { float rows_unit[]; };
#endif

const uint F32 = 0;
const uint F16 = 1;

const uint SLICE = 256;
const uint STEPS = 8;
const uint STEP_LEN = SLICE / STEPS;
// Location of the second F16 numbers of F32 elements: a separate matrix, or other rows.
#ifdef LAID
const bool HAS_LOW = NUMBERS == 2;
const bool HAS_LOW_ROWS = false;
#else
const bool HAS_LOW = A_TYPE == F32 && ROWS == 8;
const bool HAS_LOW_ROWS = A_TYPE == F32 && ROWS == 4;
#endif

#define LEFT coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA>
#define RIGHT coopmat<float16_t, gl_ScopeSubgroup, 16, 8, gl_MatrixUseB>
#define SUMS coopmat<float, gl_ScopeSubgroup, 16, 8, gl_MatrixUseAccumulator>

LEFT left;
#ifdef LAID
// Groups of 8 rows of A.
const uint GROUPS = ROWS / 8;
const bool IS_STAGED = CHUNK != 0;
// Two stages of A, each with the matrices of CHUNK steps of all parts; at the end, the sums. A matrix
// is a pair of words per lane.
shared uvec2 pool[POOL];
// Scales of A of both stages.
shared vec2 stage_units[2 * PARTS * ROWS / 2];
// If A is in registers: this lane's words of a step, and its scales in a slice.
uvec4 held[IS_STAGED ? 1 : GROUPS * NUMBERS];
vec2 units[IS_STAGED ? 1 : GROUPS];
RIGHT right;
SUMS products[GROUPS];
// This lane's sums of a slice, and of all slices.
vec4 slice_sums[GROUPS];
vec4 sums[GROUPS];
// Offsets of the subgroup's current stage, and of its scales.
uint stage_at;
uint units_from;
#else
// Fragments of A, two per step: of the subgroup's whole slice, or with STREAMED of one step.
#ifdef STREAMED
const uint MATRICES = 2;
#else
const uint MATRICES = 2 * STEPS;
#endif
RIGHT high[MATRICES];
RIGHT low[MATRICES];
SUMS products;
// This lane's sums of a tile in a slice, and the scale of A in its two columns.
vec4 sums;
vec2 units;
#endif
uint g;
uint t;
#if defined(STREAMED) && !defined(LAID)
// Row, part and step that this thread stores in shared memory.
uint writer_row;
uint writer_part;
uint writer_step;
#endif

// Offsets of this lane's words in a slice, for rows g and g + 8 of a tile, and of the rows.
struct Place {
    uvec2 words;
    uvec2 rows;
    uint slice;
};

f16vec2 halves(uint word) { return unpackFloat2x16(word); }

// Two masked numbers of a word, plus 1024, as F16. `p.zero` hides one constant from the compiler:
// the instruction can take only one.
f16vec2 about_1024(uint word, const uint mask) { return halves((word & mask) | (0x64006400u | p.zero)); }

// Fills this lane's elements of rows g and g + 8 of W.
void fill_left(f16vec2 u, f16vec2 next_u, f16vec2 v, f16vec2 next_v) {
    left[0] = u.x;
    left[1] = u.y;
    left[2] = next_u.x;
    left[3] = next_u.y;
    left[4] = v.x;
    left[5] = v.y;
    left[6] = next_v.x;
    left[7] = next_v.y;
}

#ifdef LAID
void begin_products() {
    [[unroll]] for (uint i = 0u; i < GROUPS; i++) {
        products[i] = SUMS(0.0);
    }
}

void fill_right(uvec2 words) {
    f16vec2 u = halves(words.x);
    f16vec2 v = halves(words.y);
    right[0] = u.x;
    right[1] = u.y;
    right[2] = v.x;
    right[3] = v.y;
}

// Adds the products with matrix `at` of A.
void multiply(const uint at) {
    const uint matrix = at % (2u * max(CHUNK, 1u)) * GROUPS * NUMBERS;
    [[unroll]] for (uint i = 0u; i < GROUPS; i++) {
        [[unroll]] for (uint number = 0u; number < NUMBERS; number++) {
            if (IS_STAGED) {
                fill_right(pool[stage_at + (matrix + i * NUMBERS + number) * 32u]);
            } else {
                uvec4 words = held[i * NUMBERS + number];
                fill_right(at % 2u == 0u ? words.xy : words.zw);
            }
            products[i] = coopMatMulAdd(left, right, products[i]);
        }
    }
}

// Scale of A in this lane's two columns. A negative scale marks a row that needs the float fallback.
vec2 unit_of(const uint i) { return IS_STAGED ? stage_units[units_from + 4u * i] : units[i]; }

// Adds the products, multiplied by the scales of rows g and g + 8.
void add_products(float u, float v) {
    [[unroll]] for (uint i = 0u; i < GROUPS; i++) {
        slice_sums[i] = fma(vec4(products[i][0], products[i][1], products[i][2], products[i][3]), vec4(u, u, v, v), slice_sums[i]);
    }
}

// Adds the sums of a slice, multiplied by the scales of A.
void add_slice() {
    [[unroll]] for (uint i = 0u; i < GROUPS; i++) {
        sums[i] = fma(slice_sums[i], abs(unit_of(i)).xyxy, sums[i]);
        slice_sums[i] = vec4(0.0);
    }
}
#else
void begin_products() { products = SUMS(0.0); }

// Adds the products with matrix `at` of A.
void multiply(const uint at) {
    products = coopMatMulAdd(left, high[at % MATRICES], products);
    if (HAS_LOW) {
        products = coopMatMulAdd(left, low[at % MATRICES], products);
    }
}

// Adds the products, multiplied by the scales of rows g and g + 8.
void add_products(float u, float v) {
    sums += vec4(products[0], products[1], products[2], products[3]) * vec4(u, u, v, v);
}
#endif

// The first of the two F16 numbers: x truncated to F16 precision. The function uses bit operations,
// because compilers may optimize conversions away.
vec2 first_of(vec2 x) { return uintBitsToFloat(floatBitsToUint(x) & 0xffffe000u); }

f16vec2 second_of(vec2 x, bool is_finite) {
    uint both = packFloat2x16(f16vec2(x - first_of(x)));
    return halves(is_finite ? both : 0u);
}
