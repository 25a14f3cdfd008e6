// Element type of chunk_rows.glsl and chunk_walk.glsl: F16. The device must convert F16 as IEEE 754
// specifies.

#define ELEMENT float16_t
#define NARROW_SUMS 1

vec2 two_of(uint word) { return unpackHalf2x16(word); }

uint two_bits(vec2 x) { return packHalf2x16(x); }
