#version 460
// Attention backward, gradients of queries, for F32 operands as split F16, on cooperative matrices,
// with matrix-use conversions: see include/attention_grad_pairs.glsl.
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_GOOGLE_include_directive : require
#extension GL_NV_cooperative_matrix2 : require

#define CONVERTS 1
#define OF_KEYS 0
#include "attention_grad_pairs.glsl"
