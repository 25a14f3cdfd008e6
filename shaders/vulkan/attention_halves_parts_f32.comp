#version 460
// Attention of f32 operands as pairs of f16 with its keys in parts on cooperative matrices: see
// include/attention_halves.glsl.
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_GOOGLE_include_directive : require

#define CONVERTS 0
#define IN_PARTS 1
#include "attention_halves.glsl"
