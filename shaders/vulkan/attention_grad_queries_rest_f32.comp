#version 460
// Gradients of attention in f32, of queries, where pairs of f16 do not do: see include/attention_grad_rest.glsl.
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_GOOGLE_include_directive : require

#define OF_KEYS 0
#include "attention_grad_rest.glsl"
