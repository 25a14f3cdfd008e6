// Element type of chunk_rows.glsl and chunk_walk.glsl: BF16.

#include "half.glsl"

#define ELEMENT bfloat16_t
#define NARROW_SUMS 0

vec2 two_of(uint word) { return uintBitsToFloat(uvec2(word << 16, word & 0xffff0000u)); }

uint two_bits(vec2 x) { return f32_to_bf16(x.x) | f32_to_bf16(x.y) << 16; }
