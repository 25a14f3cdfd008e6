#version 460
// Attention backward, gradients of keys and values, F32 fallback for heads that split F16 cannot
// represent: see include/attention_grad_rest.glsl.
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_GOOGLE_include_directive : require

#define OF_KEYS 1
#include "attention_grad_rest.glsl"
