// Chunked state-space scans: shared code of chunk_rows.glsl and chunk_walk.glsl. A sequence of at
// least CHUNK steps is processed in chunks of CHUNK steps.
//
// If the number of steps is not a multiple of CHUNK, the last chunk begins earlier and overlaps the
// previous one. The last chunk skips the steps that the previous one has computed already: it
// leaves the state as it is and stores no results for them. Loads therefore stay inside the tensors.

#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 128;
layout(constant_id = 1) const uint SUBGROUP = 32;
layout(constant_id = 2) const uint STATES = 128; // states per channel: a multiple of 16
layout(constant_id = 3) const uint DELTA = 0; // 1: gated delta rule, 0: Mamba-2

const uint CHUNK = 64;
const uint BLOCKS = CHUNK / 16;
const uint SUBGROUPS = THREADS / SUBGROUP;
// Fragments of states; 16-byte words of a row of states, and of a chunk's square matrix of 16-bit
// numbers.
const uint STATE_BLOCKS = STATES / 16;
const uint ROW_WORDS = STATES / 8;
const uint SQUARE_WORDS = CHUNK * CHUNK / 8;
// Floats per chunk that chunk_rows.glsl writes: the factor of the old state at each step, the
// factor of each step at the end of the chunk, and four numbers from ABOUT on.
const uint ABOUT = 2 * CHUNK;
const uint FACTORS = ABOUT + 4;

#define SUMS coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>
#define NARROW coopmat<ELEMENT, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>
#define LEFT coopmat<ELEMENT, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA>
#define RIGHT coopmat<ELEMENT, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB>
const int ROWS = gl_CooperativeMatrixLayoutRowMajor;
const int COLUMNS_FIRST = gl_CooperativeMatrixLayoutColumnMajor;

// Power of two that scales the magnitude `most` to about 2^to, limited to 2^-range .. 2^range.
float power_for(float most, int to, int range) {
    int exponent = int(floatBitsToUint(most) >> 23 & 255u) - 127;
    return uintBitsToFloat(uint(127 + clamp(to - exponent, -range, range)) << 23);
}

// Inverse of a power of two.
float inverse_power(float power) { return uintBitsToFloat((254u << 23) - floatBitsToUint(power)); }

// First step that is loaded for a chunk.
uint first_of(uint chunk, uint steps) { return min(chunk * CHUNK, steps - CHUNK); }

// Maximum of magnitudes over a subgroup, as integers, which have a hardware reduction.
float greatest_of(float magnitude) { return uintBitsToFloat(subgroupMax(floatBitsToUint(magnitude))); }
