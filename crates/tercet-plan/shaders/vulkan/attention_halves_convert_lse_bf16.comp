#version 460
// FlashAttention of BF16 operands as scaled F16 that also writes the log-sum-exp, on cooperative
// matrices, with matrix-use conversions: see include/attention_halves.glsl.
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_GOOGLE_include_directive : require
#extension GL_NV_cooperative_matrix2 : require

#define PIECES 1
#define CONVERTS 1
#define KEEPS_LSE 1
#include "attention_halves.glsl"
