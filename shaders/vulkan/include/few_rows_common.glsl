// C[m, n] = act(sum_k A[m, k] W[n, k] + bias[m, n]) for up to ROWS rows: what a lane holds, for all formats of W.
// With GATED, W has two matrices below each other, and C = act(first) * second.
//
// Matrices of F16 with sums in F32: 16 rows of W times 16 of k, by 16 of k times 8 rows of A. They go from memory to
// registers to products: lane l of a subgroup fills in, with g = l / 4, t = l % 4 and c = 2 t,
//
//     of W       (g, c), (g, c + 1), (g, c + 8), (g, c + 9), then the same of row g + 8,
//     of A       (c, g), (c + 1, g), (c + 8, g), (c + 9, g),
//
// and has of the sums (g, c), (g, c + 1), (g + 8, c), (g + 8, c + 1). Nothing says that a device keeps its matrices so:
// it is tried before these kernels are used. The order of k is free as long as both factors have the same, so that
// weights are taken as they lie in memory, and elements of A as those need them.
//
// A in F32 is two numbers of F16, the second what the first leaves, times a power of two for each row and slice that
// brings the greatest near 2^14: 22 bits, or 2^-39 of the greatest. Where rows are four at most, the second is in
// the place of another row. A row with an infinity or NaN has no finite sum: its elements are one number each.

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
layout(constant_id = 1) const uint TILES = 7; // of 16 rows of W, of a workgroup
#ifdef STREAMED
layout(constant_id = 2) const uint PARTS = 2; // of k, each with a subgroup for every tile
layout(constant_id = 3) const uint ROUNDS = 8; // slices of a part
#ifdef LAID
layout(constant_id = 11) const uint NUMBERS = 1; // of F16 for an element of A, or 2
layout(constant_id = 12) const uint ROWS_AHEAD = 1; // steps whose rows of A are under way
#else
layout(constant_id = 11) const uint CHUNK = 8; // steps whose part of A is in shared memory at once
#endif
#else
layout(constant_id = 2) const uint PASS = 4; // tiles whose sums are in shared memory at once
layout(constant_id = 3) const uint ROUNDS = 1; // how often subgroups take slices of a tile
#endif
layout(constant_id = 4) const uint ROWS = 8; // or 4; up to 32 where they are laid out
layout(constant_id = 5) const uint WHOLE = 0; // slices are all of k, no more
layout(constant_id = 6) const uint BIAS = 0;
layout(constant_id = 7) const uint ACTIVATION = 0; // see activation.glsl
layout(constant_id = 8) const uint A_TYPE = 0; // F32, F16, BF16; of the bias, too
layout(constant_id = 9) const uint Y_TYPE = 0;
layout(constant_id = 10) const uint GATED = 0;

// Strides and offsets in elements, of W in blocks in bytes.
layout(set = 0, binding = 0) uniform Params {
    uint m;
    uint n;
    uint k;
    uint blocks; // of a row of W
    uint a_offset;
    uint a_row;
    uint b_offset;
    uint b_col;
    uint bias_offset;
    uint bias_row;
    uint bias_stride;
    uint zero; // 0, which compilers do not know
#ifdef LAID
    uint slices; // of a row of A
    uint units_at; // in words
    uint sums_at;
#endif
} p;

// One buffer under several views.
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
// Elements of F32 are two numbers of F16: in a matrix of their own, or as another row.
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
// Matrices of 8 rows of A.
const uint GROUPS = ROWS / 8;
// What the lane has of them in a step: the words of two matrices, for each number.
uvec4 held[GROUPS * NUMBERS];
RIGHT right;
SUMS products[GROUPS];
// What the lane has of the sums, and what 1 is in its two columns: negative for one that floats are taken of.
vec4 sums[GROUPS];
vec2 units[GROUPS];
#else
// A of the subgroup's slice, or of a step: two matrices of each.
#ifdef STREAMED
const uint MATRICES = 2;
#else
const uint MATRICES = 2 * STEPS;
#endif
RIGHT high[MATRICES];
RIGHT low[MATRICES];
SUMS products;
// What the lane has of the sums of a tile in a slice, and what 1 is in its two columns: negative for one with an infinity or NaN.
vec4 sums;
vec2 units;
#endif
uint g;
uint t;
#if defined(STREAMED) && !defined(LAID)
// The row, part and step that the invocation puts into shared memory.
uint writer_row;
uint writer_part;
uint writer_step;
#endif

// Where the lane's words of rows g and g + 8 of a tile begin in the slice, and the rows.
struct Place {
    uvec2 words;
    uvec2 rows;
    uint slice;
};

f16vec2 halves(uint word) { return unpackFloat2x16(word); }

// 1024 plus the two numbers below 1024 that a word has under a mask. Compilers take one constant of such an operation
// at most: the other is not known to them.
f16vec2 about_1024(uint word, const uint mask) { return halves((word & mask) | (0x64006400u | p.zero)); }

// The lane's elements of rows g and g + 8 of W.
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
    [[unroll]] for (uint i = 0u; i < GROUPS; i++) {
        [[unroll]] for (uint number = 0u; number < NUMBERS; number++) {
            uvec4 words = held[i * NUMBERS + number];
            fill_right(at % 2u == 0u ? words.xy : words.zw);
            products[i] = coopMatMulAdd(left, right, products[i]);
        }
    }
}

// Adds the products times the scales of rows g and g + 8.
void add_products(float u, float v) {
    [[unroll]] for (uint i = 0u; i < GROUPS; i++) {
        vec4 scaled = vec4(products[i][0], products[i][1], products[i][2], products[i][3]) * vec4(u, u, v, v);
        sums[i] += scaled * abs(units[i]).xyxy;
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

// Adds the products times the scales of rows g and g + 8.
void add_products(float u, float v) {
    sums += vec4(products[0], products[1], products[2], products[3]) * vec4(u, u, v, v);
}
#endif

// The first of the two numbers: what F16 holds of x. By its bits, since compilers may take x for what is rounded.
vec2 first_of(vec2 x) { return uintBitsToFloat(floatBitsToUint(x) & 0xffffe000u); }

f16vec2 second_of(vec2 x, bool is_finite) {
    uint both = packFloat2x16(f16vec2(x - first_of(x)));
    return halves(is_finite ? both : 0u);
}
