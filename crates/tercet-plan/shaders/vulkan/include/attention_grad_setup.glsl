// Constants, operands and fragment types of attention backward on matrices.

#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_vote : require

#include "half.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 128; // a multiple of SUBGROUP
layout(constant_id = 1) const uint SUBGROUP = 32;
layout(constant_id = 2) const uint FM = 16; // fragment size of the device
layout(constant_id = 3) const uint FN = 16;
layout(constant_id = 4) const uint FK = 16;
layout(constant_id = 5) const uint BM = 64; // stationary rows per workgroup
layout(constant_id = 6) const uint BN = 32; // streamed rows per step
layout(constant_id = 7) const uint HEAD = 64; // head_dim, padded to a multiple of the fragment size
layout(constant_id = 8) const uint VALUE = 64; // value_dim, padded likewise
layout(constant_id = 9) const uint MASK = 0; // 1: boolean keep mask, 2: additive bias
layout(constant_id = 10) const uint CAPPED = 0;
const uint WM = BM * SUBGROUP / THREADS; // stationary rows per subgroup

layout(set = 0, binding = 0) uniform Params {
    uint q_offset;
    uint q_batch;
    uint q_head;
    uint q_seq;
    uint k_offset;
    uint k_batch;
    uint k_head;
    uint k_seq;
    uint v_offset;
    uint v_batch;
    uint v_head;
    uint v_seq;
    uint dy_offset;
    uint dy_batch;
    uint dy_head;
    uint dy_seq;
    uint mask_offset;
    uint mask_batch;
    uint mask_head;
    uint mask_query;
    uint mask_key;
    // Strides of dq or dk, and of dv.
    uint first_batch;
    uint first_head;
    uint first_seq;
    uint second_batch;
    uint second_head;
    uint second_seq;
    uint lens_offset;
    uint lens_stride;
    uint has_lens;
    uint causal;
    uint window;
    uint queries;
    uint keys;
    uint kv_heads;
    uint group;
    uint head_dim;
    uint value_dim;
    uint tiles;
    uint groups;
    float scale;
    float softcap;
} p;

layout(set = 0, binding = 1) readonly buffer Q { uvec4 q[]; };
layout(set = 0, binding = 2) readonly buffer K { uvec4 k[]; };
layout(set = 0, binding = 3) readonly buffer V { uvec4 v[]; };
layout(set = 0, binding = 4) readonly buffer Dy { uvec4 dy[]; };
layout(set = 0, binding = 5) readonly buffer Lse { float lse[]; };
layout(set = 0, binding = 6) readonly buffer Delta { float delta[]; };
layout(set = 0, binding = 7) readonly buffer Mask { uint mask[]; };
layout(set = 0, binding = 8) readonly buffer Lens { uint lens[]; };
#ifndef RESULT
#define RESULT uvec4
#endif
layout(set = 0, binding = 9) writeonly buffer First { RESULT first[]; };
#if OF_KEYS
layout(set = 0, binding = 10) writeonly buffer Second { RESULT second[]; };
#endif

#define SUMS coopmat<float, gl_ScopeSubgroup, FM, FN, gl_MatrixUseAccumulator>
#define NARROW coopmat<ELEMENT, gl_ScopeSubgroup, FM, FN, gl_MatrixUseAccumulator>
#define LEFT coopmat<ELEMENT, gl_ScopeSubgroup, FM, FK, gl_MatrixUseA>
#define RIGHT coopmat<ELEMENT, gl_ScopeSubgroup, FK, FN, gl_MatrixUseB>
const int ROWS = gl_CooperativeMatrixLayoutRowMajor;
const int COLUMNS = gl_CooperativeMatrixLayoutColumnMajor;
