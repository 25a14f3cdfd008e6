#version 460
// Gradients of attention in f16, of queries, on cooperative matrices that can be converted: see include/attention_grad.glsl.
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_GOOGLE_include_directive : require
#extension GL_NV_cooperative_matrix2 : require

#define CONVERTS 1
#define OF_KEYS 0
#include "attention_f16.glsl"
#include "attention_grad.glsl"
