// F16 and BF16 as the low 16 bits of a word. Conversions use integers, because a driver's
// conversions may round toward zero or flush subnormal numbers.

float f16_to_f32(uint h) {
    uint sign = (h & 0x8000u) << 16;
    uint exponent = (h >> 10) & 31u;
    uint fraction = h & 0x3ffu;
    if (exponent == 0u) {
        float magnitude = float(fraction) * 5.9604644775390625e-8; // 2^-24
        return uintBitsToFloat(floatBitsToUint(magnitude) | sign);
    }
    uint wide = exponent == 31u ? 0x7f800000u : (exponent + 112u) << 23;
    return uintBitsToFloat(sign | wide | (fraction << 13));
}

// Rounds to nearest, ties to even. The code is branchless: it computes each kind of result and
// selects one.
uint f32_to_f16(float x) {
    uint bits = floatBitsToUint(x);
    uint magnitude = bits & 0x7fffffffu;
    // Next to 0.5, one unit in the last place of F32 is 2^-24, the spacing of subnormal F16
    // numbers.
    uint subnormal = floatBitsToUint(uintBitsToFloat(magnitude) + 0.5) - 0x3f000000u;
    uint normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
    uint h = magnitude < 0x38800000u ? subnormal : normal;
    h = magnitude >= 0x477ff000u ? 0x7c00u : h; // 65520 and above are infinite
    h = magnitude > 0x7f800000u ? 0x7e00u : h;
    return ((bits >> 16) & 0x8000u) | h;
}

float bf16_to_f32(uint h) { return uintBitsToFloat(h << 16); }

// Rounds to nearest, ties to even.
uint f32_to_bf16(float x) {
    uint bits = floatBitsToUint(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return (bits >> 16) | 0x40u;
    }
    return (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}
