#version 460
// Grouped GEMM of BF16 rows and quantized weights on cooperative matrices: see include/grouped.glsl.
#extension GL_EXT_bfloat16 : require
#extension GL_GOOGLE_include_directive : require

#define ELEMENT bfloat16_t
#define ELEMENT_TO_F32 bf16_to_f32
#define F32_TO_ELEMENT f32_to_bf16
#define GROUPED

#include "gemm_coop.glsl"
