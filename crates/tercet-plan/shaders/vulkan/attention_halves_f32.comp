#version 460
// FlashAttention of F32 operands as split F16, on cooperative matrices: see
// include/attention_halves.glsl.
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_GOOGLE_include_directive : require

#define CONVERTS 0
#include "attention_halves.glsl"
