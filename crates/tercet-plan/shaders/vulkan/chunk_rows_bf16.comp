#version 460
// Intra-chunk matmuls of state-space scans (SSD and delta rule), BF16 operands on cooperative
// matrices: see include/chunk_rows.glsl.
#extension GL_EXT_bfloat16 : require
#extension GL_GOOGLE_include_directive : require

#include "chunk_bf16.glsl"
#include "chunk_rows.glsl"
