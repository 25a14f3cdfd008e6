// Softmax weights of attention_coop.glsl, and the multiplication by the values.

// Weights of a fragment, also added to the row sums.
NARROW weigh(uint i, uint j, float by, const bool guarded) {
    SUMS w;
    [[unroll]] for (uint e = 0u; e < w.length(); e++) {
        float x = scores[i * KF + j][e];
        float center = centers[i][e];
        w[e] = exp2(MASK == 2u ? (x - center) * LOG2_E : fma(x, by, -center));
        if (guarded) {
            w[e] = x == minus_infinity() ? -0.0 : w[e];
        }
    }
    weights[i] = weights[i] + w;
    return NARROW(w);
}

// Adds the values of one fragment of keys, times the weights of each strip of rows.
void add_products(uint key) {
    RIGHT values;
    [[unroll]] for (uint d = 0u; d < VF; d++) {
        coopMatLoad(values, tiles, V_AT + key * V_STRIDE + d * FN / 8u, V_STRIDE, ROWS);
        [[unroll]] for (uint i = 0u; i < RF; i++) {
            sums[i * VF + d] = coopMatMulAdd(left[i], values, sums[i * VF + d]);
        }
    }
}

// Converts the scores to weights, and adds the staged values times them.
void add_values(float by, const bool guarded) {
#if CONVERTS
    [[unroll]] for (uint j = 0u; j < KF; j++) {
        [[unroll]] for (uint i = 0u; i < RF; i++) {
            left[i] = LEFT(weigh(i, j, by, guarded));
        }
        add_products(j * FN);
    }
#else
    uint at = P_AT + gl_SubgroupID * P_LEN;
    [[unroll]] for (uint i = 0u; i < RF; i++) {
        [[unroll]] for (uint j = 0u; j < KF; j++) {
            coopMatStore(weigh(i, j, by, guarded), tiles, at + i * FM * P_STRIDE + j * FN / 8u, P_STRIDE, ROWS);
        }
    }
    subgroup_meets();
    [[unroll]] for (uint s = 0u; s < BN / FK; s++) {
        [[unroll]] for (uint i = 0u; i < RF; i++) {
            coopMatLoad(left[i], tiles, at + i * FM * P_STRIDE + s * FK / 8u, P_STRIDE, ROWS);
        }
        add_products(s * FK);
    }
#endif
}

uint half_at(uint at, uint element) {
    return (tiles[at + element / 8u][element % 8u / 2u] >> (element & 1u) * 16u) & 0xffffu;
}

// Dot product of one row of weights and one column of values, over the keys that the row attends
// to.
float seen_sum(uint weights_at, uint column, uint count) {
    float sum = 0.0;
    for (uint key = 0u; key < count; key++) {
        uint w = half_at(weights_at, key);
        if (w != 0x8000u) {
            sum += ELEMENT_TO_F32(w) * ELEMENT_TO_F32(half_at(V_AT + key * V_STRIDE, column));
        }
    }
    return sum;
}

// Variant of add_values if some of the `count` values are not finite. It adds each element of a
// strip of FN columns separately and skips hidden keys. The sums of a fragment pass through the
// shared memory of the keys. The code is rarely executed, so it is barely unrolled.
void add_seen_values(float by, uint count) {
    uint at = P_AT + gl_SubgroupID * P_LEN;
    uint to = gl_SubgroupID * SUM_LEN;
    [[unroll]] for (uint i = 0u; i < RF; i++) {
        [[unroll]] for (uint j = 0u; j < KF; j++) {
            coopMatStore(weigh(i, j, by, true), tiles, at + j * FN / 8u, P_STRIDE, ROWS);
        }
        subgroup_meets();
        [[unroll]] for (uint d = 0u; d < VF; d++) {
            for (uint part = gl_SubgroupInvocationID; part < FM * FN / 4u; part += SUBGROUP) {
                uint row = part / (FN / 4u);
                uint column = part % (FN / 4u) * 4u;
                vec4 x;
                for (uint c = 0u; c < 4u; c++) {
                    x[c] = seen_sum(at + row * P_STRIDE, d * FN + column + c, count);
                }
                tiles[to + row * SUM_STRIDE + column / 4u] = floatBitsToUint(x);
            }
            subgroup_meets();
            SUMS more;
            coopMatLoad(more, tiles, to, SUM_STRIDE, ROWS);
            sums[i * VF + d] = sums[i * VF + d] + more;
            subgroup_meets();
        }
    }
    barrier();
}
