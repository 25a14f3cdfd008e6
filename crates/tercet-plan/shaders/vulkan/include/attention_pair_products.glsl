// Split-F16 products of attention_halves.glsl.

// q k^T of the subgroup's queries and the staged keys.
void multiply_keys() {
    RIGHT high;
#if PIECES == 2
    RIGHT low;
#endif
    [[unroll]] for (uint j = 0u; j < KF; j++) {
#if PIECES == 2
        SUMS small[RF];
#endif
        [[unroll]] for (uint i = 0u; i < RF; i++) {
#if PIECES == 2
            small[i] = SUMS(0.0);
#endif
            scores[i * KF + j] = SUMS(0.0);
        }
        [[unroll]] for (uint h = 0u; h < HF; h++) {
            uint at = j * FN * K_STRIDE + h * FK / 8u;
            coopMatLoad(high, tiles, at, K_STRIDE, COLUMNS);
#if PIECES == 2
            coopMatLoad(low, tiles, at + HEAD / 8u, K_STRIDE, COLUMNS);
#endif
            [[unroll]] for (uint i = 0u; i < RF; i++) {
                uint of = i * HF + h;
                scores[i * KF + j] = coopMatMulAdd(queries_high[of], high, scores[i * KF + j]);
#if PIECES == 2
                small[i] = coopMatMulAdd(queries_low[of], high, small[i]);
                small[i] = coopMatMulAdd(queries_high[of], low, small[i]);
#endif
            }
        }
#if PIECES == 2
        [[unroll]] for (uint i = 0u; i < RF; i++) {
            scores[i * KF + j] = scores[i * KF + j] + small[i];
        }
#endif
    }
}

// Weights of a fragment, also added to the row sums. A masked pair has the weight 0.
SUMS weigh(uint i, uint j, float by, float lift) {
    float up = lift + HEADROOM;
    float down = exp2(-up);
    SUMS w;
    [[unroll]] for (uint e = 0u; e < w.length(); e++) {
        float x = scores[i * KF + j][e];
        float center = centers[i][e];
        w[e] = exp2(MASK == 2u ? fma(x - center, LOG2_E, up) : fma(x, by, up - center));
        weights[i][e] = fma(w[e], down, weights[i][e]);
    }
    return w;
}

// Rounds weights to the nearest F16, as F32. The code uses integers, because compilers remove a
// conversion to F16 and back.
SUMS high_of(SUMS w) {
    SUMS high;
    [[unroll]] for (uint e = 0u; e < w.length(); e++) {
        high[e] = uintBitsToFloat((floatBitsToUint(w[e]) + 0x1000u) & 0xffffe000u);
    }
    return high;
}

LEFT left_high[RF * (BN / FK)];
#if PIECES == 2
LEFT left_low[RF * (BN / FK)];
#endif

// Converts the scores to weights.
void make_weights(float by, float lift) {
#if CONVERTS
    [[unroll]] for (uint j = 0u; j < KF; j++) {
        [[unroll]] for (uint i = 0u; i < RF; i++) {
            SUMS w = weigh(i, j, by, lift);
#if PIECES == 2
            SUMS high = high_of(w);
            left_high[i * KF + j] = LEFT(NARROW(high));
            left_low[i * KF + j] = LEFT(NARROW(w - high));
#else
            left_high[i * KF + j] = LEFT(NARROW(w));
#endif
        }
    }
#else
    uint to = P_AT + gl_SubgroupID * P_LEN;
    [[unroll]] for (uint i = 0u; i < RF; i++) {
        [[unroll]] for (uint j = 0u; j < KF; j++) {
            uint at = to + i * FM * P_STRIDE + j * FN / 8u;
            SUMS w = weigh(i, j, by, lift);
#if PIECES == 2
            SUMS high = high_of(w);
            coopMatStore(NARROW(high), tiles, at, P_STRIDE, ROWS);
            coopMatStore(NARROW(w - high), tiles, at + BN / 8u, P_STRIDE, ROWS);
#else
            coopMatStore(NARROW(w), tiles, at, P_STRIDE, ROWS);
#endif
        }
    }
    subgroup_meets();
    [[unroll]] for (uint i = 0u; i < RF; i++) {
        [[unroll]] for (uint s = 0u; s < BN / FK; s++) {
            uint at = to + i * FM * P_STRIDE + s * FK / 8u;
            coopMatLoad(left_high[i * (BN / FK) + s], tiles, at, P_STRIDE, ROWS);
#if PIECES == 2
            coopMatLoad(left_low[i * (BN / FK) + s], tiles, at + BN / 8u, P_STRIDE, ROWS);
#endif
        }
    }
#endif
}

// Converts the scores to weights, and adds the staged values times them.
void add_values(float by, float lift) {
    make_weights(by, lift);
    const uint KS = BN / FK;
    [[unroll]] for (uint d = 0u; d < VF; d++) {
        RIGHT high[KS];
#if PIECES == 2
        RIGHT low;
#endif
        SUMS more[RF];
        [[unroll]] for (uint i = 0u; i < RF; i++) {
            more[i] = SUMS(0.0);
        }
        [[unroll]] for (uint s = 0u; s < KS; s++) {
            uint at = V_AT + s * FK * V_STRIDE + d * FN / 8u;
            coopMatLoad(high[s], tiles, at, V_STRIDE, ROWS);
#if PIECES == 2
            coopMatLoad(low, tiles, at + VALUE / 8u, V_STRIDE, ROWS);
            [[unroll]] for (uint i = 0u; i < RF; i++) {
                more[i] = coopMatMulAdd(left_low[i * KS + s], high[s], more[i]);
                more[i] = coopMatMulAdd(left_high[i * KS + s], low, more[i]);
            }
#endif
        }
        [[unroll]] for (uint s = 0u; s < KS; s++) {
            [[unroll]] for (uint i = 0u; i < RF; i++) {
                more[i] = coopMatMulAdd(left_high[i * KS + s], high[s], more[i]);
            }
        }
        [[unroll]] for (uint i = 0u; i < RF; i++) {
            sums[i * VF + d] = sums[i * VF + d] + more[i];
        }
    }
}
