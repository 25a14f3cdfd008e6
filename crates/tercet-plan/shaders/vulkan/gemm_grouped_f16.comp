#version 460
// Grouped GEMM of F16 rows and quantized weights on cooperative matrices: see include/grouped.glsl.
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_GOOGLE_include_directive : require

#define ELEMENT float16_t
#define ELEMENT_TO_F32 f16_to_f32
#define F32_TO_ELEMENT f32_to_f16
#define NATIVE_PAIR packHalf2x16
#define GROUPED

#include "gemm_coop.glsl"
