#version 460
// Skinny GEMM for F16 weights, activations through shared memory: see
// include/few_rows_streamed.glsl.
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_GOOGLE_include_directive : require

#define STREAMED

#include "few_rows_common.glsl"
#include "few_rows_f16.glsl"
#include "few_rows_streamed.glsl"
