#version 460
// Attention of f16 operands with its keys in parts on cooperative matrices that can be converted: see
// include/attention_coop.glsl.
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_GOOGLE_include_directive : require
#extension GL_NV_cooperative_matrix2 : require

#define CONVERTS 1
#define IN_PARTS 1
#include "attention_f16.glsl"
#include "attention_coop.glsl"
