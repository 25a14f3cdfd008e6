// Activation functions of a matmul or convolution epilogue. The codes match the list of the
// epilogue fusion pass: 0 none, 1 relu, 2 sigmoid, 3 tanh, 4 gelu, 5 gelu_tanh, 6 silu, 7 softplus,
// 8 relu6.
//
// NaN is preserved and tested by its bits, because a compiler may assume that NaN does not occur.

bool is_nan(float x) { return (floatBitsToUint(x) & 0x7fffffffu) > 0x7f800000u; }

bool is_negative_infinity(float x) { return floatBitsToUint(x) == 0xff800000u; }

float sigmoid(float x) {
    // exp of minus the magnitude does not overflow.
    float e = exp(-abs(x));
    return (x < 0.0 ? e : 1.0) / (1.0 + e);
}

// Complementary error function, with a relative error of 1.2e-7 (Numerical Recipes, section 6.2).
float erfc(float x) {
    float z = abs(x);
    float t = 1.0 / (1.0 + 0.5 * z);
    float poly = 0.17087277;
    poly = poly * t - 0.82215223;
    poly = poly * t + 1.48851587;
    poly = poly * t - 1.13520398;
    poly = poly * t + 0.27886807;
    poly = poly * t - 0.18628806;
    poly = poly * t + 0.09678418;
    poly = poly * t + 0.37409196;
    poly = poly * t + 1.00002368;
    poly = poly * t - 1.26551223;
    float tail = t * exp(poly - z * z);
    return x < 0.0 ? 2.0 - tail : tail;
}

float softplus(float x) {
    float e = exp(-abs(x));
    // log(1 + e), to first order if 1 + e would round.
    float log_term = e < 1e-4 ? e - 0.5 * e * e : log(1.0 + e);
    return (x > 0.0 ? x : 0.0) + log_term;
}

float activate(uint code, float x) {
    if (code == 0u || is_nan(x)) {
        return x;
    }
    if (is_negative_infinity(x)) {
        return code == 3u ? -1.0 : (code >= 4u && code <= 6u ? -0.0 : 0.0);
    }
    switch (code) {
    case 1u:
        return x < 0.0 ? 0.0 : x;
    case 2u:
        return sigmoid(x);
    case 3u: {
        float y = 2.0 * sigmoid(2.0 * abs(x)) - 1.0;
        float near = x - x * x * x * (1.0 / 3.0) * (1.0 - 0.4 * x * x);
        return abs(x) < 0.1 ? near : (x < 0.0 ? -y : y);
    }
    case 4u:
        return 0.5 * x * erfc(-x * 0.70710678118654752);
    case 5u:
        return x * sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x));
    case 6u:
        return x * sigmoid(x);
    case 7u:
        return softplus(x);
    default:
        return clamp(x, 0.0, 6.0);
    }
}

// GELU: x Phi(x) with a relative error of 2^-11, or an absolute error of 1e-11. The tail Phi(-|x|)
// is a power of two with a polynomial exponent, which avoids cancellation.
float gelu_narrow(float x) {
    // For larger |x|, the tail is zero relative to any result.
    float a = min(abs(x), 30.0);
    float poly = -2.0168446644674987e-4 * a + 4.467606544494629e-3;
    poly = poly * a - 4.283273592591286e-2;
    poly = poly * a - 0.47278568148612976;
    poly = poly * a - 1.144399642944336;
    poly = poly * a - 1.000531792640686;
    // max(x, 0) would be shorter, but would drop NaN.
    float tail = a * exp2(poly);
    return x < 0.0 ? -tail : x - tail;
}

// x / (1 + exp(-of)) for operands of the same sign, with a relative error of about 2^-20, or an
// absolute error of 1e-30. Below NARROW_LEAST the result is negligible.
const float NARROW_LEAST = -80.0;

float logistic_narrow(float x, float of) { return x * (1.0 / (1.0 + exp2(-1.44269504 * of))); }

// Activation for results that are rounded to 16 bits. max() would be shorter than the comparison,
// but would drop NaN.
float activate_narrow(uint code, float x) {
    float within = x < NARROW_LEAST ? NARROW_LEAST : x;
    switch (code) {
    case 4u:
        return gelu_narrow(x);
    case 5u:
        return logistic_narrow(within, 1.5957691216057308 * (within + 0.044715 * within * within * within));
    case 6u:
        return logistic_narrow(within, within);
    default:
        return activate(code, x);
    }
}
