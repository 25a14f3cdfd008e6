#version 460
// Attention of bf16 operands as scaled f16 that keeps the logarithms of its sums, on cooperative matrices that can be converted: see
// include/attention_halves.glsl.
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_GOOGLE_include_directive : require
#extension GL_NV_cooperative_matrix2 : require

#define PIECES 1
#define CONVERTS 1
#define KEEPS_LSE 1
#include "attention_halves.glsl"
