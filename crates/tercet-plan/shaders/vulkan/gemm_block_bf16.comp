#version 460
// GEMM of BF16 operands on workgroup-scope matrices: see include/gemm_block.glsl.
#extension GL_EXT_bfloat16 : require
#extension GL_GOOGLE_include_directive : require

#define ELEMENT bfloat16_t
#define ELEMENT_TO_F32 bf16_to_f32
#define F32_TO_ELEMENT f32_to_bf16

#include "gemm_block.glsl"
