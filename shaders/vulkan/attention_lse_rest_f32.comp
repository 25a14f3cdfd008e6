#version 460
// The logarithms of the sums of attention in f32 where pairs of f16 do not do: see include/attention_lse_rest.glsl.
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_GOOGLE_include_directive : require

#include "attention_lse_rest.glsl"
