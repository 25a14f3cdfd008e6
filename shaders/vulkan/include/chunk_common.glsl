// What chunk_rows.glsl and chunk_walk.glsl share: a sequence of at least CHUNK steps in chunks of as many.
//
// Where the steps are no whole number of chunks, the last chunk begins early and has steps again that the one before
// had; those change nothing there, and their results are not stored. So nothing is read beyond a tensor.

#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 128;
layout(constant_id = 1) const uint SUBGROUP = 32;
layout(constant_id = 2) const uint STATES = 128; // of a channel: a multiple of 16
layout(constant_id = 3) const uint DELTA = 0; // 1: the gated delta rule, else Mamba-2

const uint CHUNK = 64;
const uint BLOCKS = CHUNK / 16;
const uint SUBGROUPS = THREADS / SUBGROUP;
// Fragments of states, and words of 16 bytes of a row of them, and of a chunk's square of 16-bit numbers.
const uint STATE_BLOCKS = STATES / 16;
const uint ROW_WORDS = STATES / 8;
const uint SQUARE_WORDS = CHUNK * CHUNK / 8;
// Floats that chunk_rows.glsl says of a chunk: what states of before weigh at each step, what each step weighs at
// the end of the chunk, and the four numbers from ABOUT on.
const uint ABOUT = 2 * CHUNK;
const uint FACTORS = ABOUT + 4;

#define SUMS coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>
#define NARROW coopmat<ELEMENT, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>
#define LEFT coopmat<ELEMENT, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA>
#define RIGHT coopmat<ELEMENT, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB>
const int ROWS = gl_CooperativeMatrixLayoutRowMajor;
const int COLUMNS_FIRST = gl_CooperativeMatrixLayoutColumnMajor;

// The power of two by which a number of the magnitude of `most` is brought to about 2^to, at most 2^range or its
// inverse.
float power_for(float most, int to, int range) {
    int exponent = int(floatBitsToUint(most) >> 23 & 255u) - 127;
    return uintBitsToFloat(uint(127 + clamp(to - exponent, -range, range)) << 23);
}

// One over a power of two.
float inverse_power(float power) { return uintBitsToFloat((254u << 23) - floatBitsToUint(power)); }

// The first step of a chunk as it is read.
uint first_of(uint chunk, uint steps) { return min(chunk * CHUNK, steps - CHUNK); }

// The greatest of the magnitudes of a subgroup: as whole numbers, of which devices find it at once.
float greatest_of(float magnitude) { return uintBitsToFloat(subgroupMax(floatBitsToUint(magnitude))); }
