// Epilogue of a GEMM: bias, activation, residual, and rounding to ELEMENT.

float half_of(uint word, uint at) { return ELEMENT_TO_F32((word >> ((at & 1u) * 16u)) & 0xffffu); }

float bias_at(uint col) {
    if (HAS_BIAS == 0u || col >= p.n) {
        return 0.0;
    }
    uint at = p.offset_bias + col;
    return BIAS_F32 != 0u ? uintBitsToFloat(bias[at]) : half_of(bias[at >> 1], at);
}

vec4 bias_four(uint col) {
    return vec4(bias_at(col), bias_at(col + 1u), bias_at(col + 2u), bias_at(col + 3u));
}

float activated(float x) { return OUT_F32 == 0u ? activate_narrow(ACTIVATION, x) : activate(ACTIVATION, x); }

// Applies the epilogue except the bias to four sums, of which `valid` are inside C.
vec4 finish_biased(vec4 sum, uint residual_at, uint valid) {
    vec4 x = sum;
    if (ACTIVATION != 0u) {
        x = vec4(activated(x.x), activated(x.y), activated(x.z), activated(x.w));
    }
    if (HAS_RESIDUAL != 0u) {
        [[unroll]] for (uint i = 0u; i < 4u; i++) {
            if (i < valid) {
                uint at = residual_at + i;
                x[i] += RESIDUAL_F32 != 0u ? uintBitsToFloat(residual[at]) : half_of(residual[at >> 1], at);
            }
        }
    }
    return x;
}

vec4 finish(vec4 sum, vec4 added, uint residual_at, uint valid) {
    return finish_biased(HAS_BIAS != 0u ? sum + added : sum, residual_at, valid);
}

uvec2 halves(vec4 x) {
#ifdef NATIVE_PAIR
    if (NATIVE != 0u) {
        return uvec2(NATIVE_PAIR(x.xy), NATIVE_PAIR(x.zw));
    }
#endif
    return uvec2(
        F32_TO_ELEMENT(x.x) | F32_TO_ELEMENT(x.y) << 16,
        F32_TO_ELEMENT(x.z) | F32_TO_ELEMENT(x.w) << 16
    );
}
