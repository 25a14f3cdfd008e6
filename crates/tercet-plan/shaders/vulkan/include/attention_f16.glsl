// Element type of attention_coop.glsl: F16.

#define ELEMENT float16_t
#define ELEMENT_TO_F32 f16_to_f32
#define F32_TO_ELEMENT f32_to_f16
// True if one of eight elements is NaN or infinite: adding 1 to an all-ones exponent carries out of
// it.
#define ELEMENTS_ARE_SPECIAL(words) \
    (any(notEqual(((words & 0x7fff7fffu) + 0x04000400u) & 0x80008000u, uvec4(0u))))
#define BIAS_AT(at) ELEMENT_TO_F32((mask[(at) >> 1] >> ((at) & 1u) * 16u) & 0xffffu)
