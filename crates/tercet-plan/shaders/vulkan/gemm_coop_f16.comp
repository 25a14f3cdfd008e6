#version 460
// GEMM of F16 operands on cooperative matrices: see include/gemm_coop.glsl.
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_GOOGLE_include_directive : require

#define ELEMENT float16_t
#define ELEMENT_TO_F32 f16_to_f32
#define F32_TO_ELEMENT f32_to_f16
#define NATIVE_PAIR packHalf2x16

#include "gemm_coop.glsl"
