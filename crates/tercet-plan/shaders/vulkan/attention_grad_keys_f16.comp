#version 460
// Attention backward, gradients of keys and values, for F16 operands, on cooperative matrices: see
// include/attention_grad.glsl.
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_GOOGLE_include_directive : require

#define CONVERTS 0
#define OF_KEYS 1
#include "attention_f16.glsl"
#include "attention_grad.glsl"
