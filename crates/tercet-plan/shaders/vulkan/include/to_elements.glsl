// Packs eight sums to elements.

uvec4 to_elements(vec4 a, vec4 b) {
    uvec4 low = uvec4(F32_TO_ELEMENT(a.x), F32_TO_ELEMENT(a.z), F32_TO_ELEMENT(b.x), F32_TO_ELEMENT(b.z));
    uvec4 high = uvec4(F32_TO_ELEMENT(a.y), F32_TO_ELEMENT(a.w), F32_TO_ELEMENT(b.y), F32_TO_ELEMENT(b.w));
    return low | high << 16;
}
