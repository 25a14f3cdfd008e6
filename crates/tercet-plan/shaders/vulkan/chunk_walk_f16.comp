#version 460
// Inter-chunk state passing of state-space scans (SSD and delta rule), F16 operands on cooperative
// matrices: see include/chunk_walk.glsl.
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_GOOGLE_include_directive : require

#include "chunk_f16.glsl"
#include "chunk_walk.glsl"
