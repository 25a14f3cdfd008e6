#version 460
// Skinny GEMM for F16 weights, activations in registers: see include/few_rows_held.glsl.
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_GOOGLE_include_directive : require

#include "few_rows_common.glsl"
#include "few_rows_f16.glsl"
#include "few_rows_held.glsl"
