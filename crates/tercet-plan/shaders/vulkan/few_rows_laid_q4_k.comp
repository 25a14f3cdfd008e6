#version 460
// Small-M GEMM for Q4_K weights, prepacked activations: see include/few_rows_laid.glsl.
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_GOOGLE_include_directive : require

#define STREAMED
#define LAID

#include "few_rows_common.glsl"
#include "few_rows_q4_k.glsl"
#include "few_rows_laid.glsl"
