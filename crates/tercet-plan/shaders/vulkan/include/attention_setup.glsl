// Constants, operands, fragment types and key ranges of attention on cooperative matrices.

#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_vote : require

#include "half.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 128; // SUBGROUP BM / WM
layout(constant_id = 1) const uint SUBGROUP = 32;
layout(constant_id = 2) const uint FM = 16; // fragment size of the device
layout(constant_id = 3) const uint FN = 16;
layout(constant_id = 4) const uint FK = 16;
layout(constant_id = 5) const uint BM = 128; // rows per workgroup
layout(constant_id = 6) const uint WM = 32; // rows per subgroup
layout(constant_id = 7) const uint BN = 64; // keys per step
layout(constant_id = 8) const uint HEAD = 64; // head_dim, padded to a multiple of the fragment size
layout(constant_id = 9) const uint VALUE = 64; // value_dim, padded likewise
layout(constant_id = 10) const uint MASK = 0; // 1: boolean keep mask, 2: additive bias
layout(constant_id = 11) const uint KEY_MASK = 0; // 1: the mask is the same for all rows of a batch entry
layout(constant_id = 12) const uint CAPPED = 0;

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
    uint mask_offset;
    uint mask_batch;
    uint mask_head;
    uint mask_query;
    uint mask_key;
    uint y_batch;
    uint y_head;
    uint y_seq;
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
    uint parts;
    float scale;
    float softcap;
#ifdef PANELS
    uint half_stride; // distance of the two 32-element halves of a head, in elements
    uint rows; // total number of result rows
    uint y_panels; // nonzero: results are stored in panels of 32 columns
#endif
} p;

layout(set = 0, binding = 1) readonly buffer Q { uvec4 q[]; };
layout(set = 0, binding = 2) readonly buffer K { uvec4 k[]; };
layout(set = 0, binding = 3) readonly buffer V { uvec4 v[]; };
layout(set = 0, binding = 4) readonly buffer Mask { uint mask[]; };
layout(set = 0, binding = 5) readonly buffer Lens { uint lens[]; };
layout(set = 0, binding = 6) writeonly buffer Y { uvec4 y[]; };
#if KEEPS_LSE // also writes the log-sum-exp
#ifndef LSE_AT
#define LSE_AT 7
#endif
layout(set = 0, binding = LSE_AT) writeonly buffer Lse { float lse[]; };
#endif
#if IN_PARTS // split-KV: see attention_parts.glsl
#ifndef STATS_AT
#define STATS_AT 7
#endif
layout(set = 0, binding = STATS_AT) writeonly buffer Stats { vec2 stats[]; };
#endif

#define SUMS coopmat<float, gl_ScopeSubgroup, FM, FN, gl_MatrixUseAccumulator>
#define NARROW coopmat<ELEMENT, gl_ScopeSubgroup, FM, FN, gl_MatrixUseAccumulator>
#define LEFT coopmat<ELEMENT, gl_ScopeSubgroup, FM, FK, gl_MatrixUseA>
#define RIGHT coopmat<ELEMENT, gl_ScopeSubgroup, FK, FN, gl_MatrixUseB>
const int ROWS = gl_CooperativeMatrixLayoutRowMajor;
const int COLUMNS = gl_CooperativeMatrixLayoutColumnMajor;

// Fragments of a subgroup: rows, keys, head dimension, value columns.
const uint RF = WM / FM;
const uint KF = BN / FN;
const uint HF = HEAD / FK;
const uint VF = VALUE / FN;
const uint SUBGROUPS = BM / WM;
