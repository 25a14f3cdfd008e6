#version 460
// FlashAttention of F32 operands as split F16 with split-KV, on cooperative matrices, with
// matrix-use conversions: see include/attention_halves.glsl.
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_GOOGLE_include_directive : require
#extension GL_NV_cooperative_matrix2 : require

#define CONVERTS 1
#define IN_PARTS 1
#include "attention_halves.glsl"
