#version 460
// Log-sum-exp of attention, F32 fallback for heads that split F16 cannot represent: see
// include/attention_lse_rest.glsl.
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_GOOGLE_include_directive : require

#include "attention_lse_rest.glsl"
