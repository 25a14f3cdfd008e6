#version 460
// FlashAttention of F16 operands, on cooperative matrices: see include/attention_coop.glsl.
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_GOOGLE_include_directive : require

#define CONVERTS 0
#define KEEPS_LSE 0
#include "attention_f16.glsl"
#include "attention_coop.glsl"
