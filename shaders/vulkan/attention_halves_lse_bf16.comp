#version 460
// Attention of bf16 operands as scaled f16 that keeps the logarithms of its sums, on cooperative matrices: see
// include/attention_halves.glsl.
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_GOOGLE_include_directive : require

#define PIECES 1
#define CONVERTS 0
#define KEEPS_LSE 1
#include "attention_halves.glsl"
