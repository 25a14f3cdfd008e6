// Products, weights and ds of attention_grad_pairs.glsl in split F16.

#if PIECES == 1
// Products of the stationary rows with FN streamed rows, for operands with only high halves.
#define MULTIPLY(result, own, count, at, stride, width)                                     \
    {                                                                                       \
        result = SUMS(0.0);                                                                 \
        [[unroll]] for (uint h = 0u; h < count; h++) {                                      \
            RIGHT high;                                                                     \
            coopMatLoad(high, tiles, (at) + h * FK / 8u, stride, COLUMNS);                  \
            result = coopMatMulAdd(own##_high[h], high, result);                            \
        }                                                                                   \
    }
#else
// Products of the stationary rows with FN streamed rows, in split F16.
#define MULTIPLY(result, own, count, at, stride, width)                                     \
    {                                                                                       \
        SUMS small = SUMS(0.0);                                                             \
        result = SUMS(0.0);                                                                 \
        [[unroll]] for (uint h = 0u; h < count; h++) {                                      \
            RIGHT high;                                                                     \
            RIGHT low;                                                                      \
            coopMatLoad(high, tiles, (at) + h * FK / 8u, stride, COLUMNS);                  \
            coopMatLoad(low, tiles, (at) + ((width) + h * FK) / 8u, stride, COLUMNS);       \
            result = coopMatMulAdd(own##_high[h], high, result);                            \
            small = coopMatMulAdd(own##_low[h], high, small);                               \
            small = coopMatMulAdd(own##_high[h], low, small);                               \
        }                                                                                   \
        result = result + small;                                                            \
    }
#endif

// ds for PART streamed rows, and whether an element of ds exceeds the split-F16 range.
SUMS part_ds[PART / FN];
bool is_far;

// Computes weights times 2^HEADROOM, and ds. The fragment's first streamed row has index `walked`
// in its operand and index `row_at` among the staged rows.
void weigh(uint row_at, int walked, const bool guarded) {
    SUMS penalties;
    if (guarded) {
        penalties = penalties_of(own_line, walked, row_at);
    }
    float by = p.scale / (own_first_scale * first_scale);
    float of_dp = lift / (own_second_scale * second_scale);
    [[unroll]] for (uint e = 0u; e < products.length(); e++) {
        float x;
        float slope = 1.0;
        if (CAPPED != 0u) {
            float t = capped(products[e] * by / p.softcap);
            x = t * p.softcap * LOG2_E;
            slope -= t * t;
        } else {
            x = products[e] * (by * LOG2_E);
        }
        if (guarded) {
            // Rounds scores as the forward pass does, so that they match the log-sum-exp.
            x = penalties[e] == 0.0 ? x : -infinity();
        }
        float w = exp2(x + sums[e]);
        float ds = w * fma(dp[e], of_dp, deltas[e] * lift) * slope;
        ds = guarded && x == -infinity() ? 0.0 : ds;
        products[e] = w * exp2(HEADROOM);
        dp[e] = ds;
        is_far = is_far || abs(ds) > exp2(ROOM);
    }
}

// Reduces `lift` until split F16 represents ds for all PART streamed rows.
void fall() {
    for (uint i = 0u; i < FALLS && subgroupAny(is_far); i++) {
        lift *= exp2(-FALL);
        is_far = false;
        [[unroll]] for (uint j = 0u; j < PART / FN; j++) {
            [[unroll]] for (uint e = 0u; e < dp.length(); e++) {
                part_ds[j][e] *= exp2(-FALL);
                is_far = is_far || abs(part_ds[j][e]) > exp2(ROOM);
            }
        }
    }
}

#if PIECES == 1
// Adds left operands times the PART streamed rows staged at `at`, multiplied by `by`, which removes
// the scales of both.
#define ADD(to_sums, count, factors, at, stride, width, by)                                     \
    [[unroll]] for (uint d = 0u; d < count; d++) {                                              \
        RIGHT high;                                                                             \
        SUMS more = SUMS(0.0);                                                                  \
        [[unroll]] for (uint s = 0u; s < PK; s++) {                                             \
            coopMatLoad(high, tiles, (at) + s * FK * stride + d * FN / 8u, stride, ROWS);       \
            more = coopMatMulAdd(factors##_high[s], high, more);                                \
        }                                                                                       \
        [[unroll]] for (uint e = 0u; e < more.length(); e++) {                                  \
            to_sums[d][e] = fma(more[e], by, to_sums[d][e]);                                    \
        }                                                                                       \
    }

#if CONVERTS
#define TAKE(factors, numbers_of, j, at) factors##_high[j] = LEFT(NARROW(numbers_of));
#else
#define TAKE(factors, numbers_of, j, at) \
    coopMatStore(NARROW(numbers_of), tiles, (at) + (j) * FN / 8u, P_STRIDE, ROWS);
#define TAKEN(factors, at)                                                          \
    [[unroll]] for (uint s = 0u; s < PK; s++) {                                     \
        coopMatLoad(factors##_high[s], tiles, (at) + s * FK / 8u, P_STRIDE, ROWS);  \
    }
#endif
#else
// Rounds numbers to the nearest F16, as F32. The code uses integers, because compilers remove a
// conversion to F16 and back.
SUMS high_of(SUMS w) {
    SUMS high;
    [[unroll]] for (uint e = 0u; e < w.length(); e++) {
        high[e] = uintBitsToFloat((floatBitsToUint(w[e]) + 0x1000u) & 0xffffe000u);
    }
    return high;
}

// Adds split-F16 left operands times the PART streamed rows staged at `at`, multiplied by `by`,
// which removes the scales of both.
#define ADD(to_sums, count, factors, at, stride, width, by)                                     \
    [[unroll]] for (uint d = 0u; d < count; d++) {                                              \
        RIGHT high[PK];                                                                         \
        RIGHT low;                                                                              \
        SUMS more = SUMS(0.0);                                                                  \
        [[unroll]] for (uint s = 0u; s < PK; s++) {                                             \
            coopMatLoad(high[s], tiles, (at) + s * FK * stride + d * FN / 8u, stride, ROWS);    \
            coopMatLoad(low, tiles, (at) + s * FK * stride + ((width) + d * FN) / 8u, stride, ROWS); \
            more = coopMatMulAdd(factors##_low[s], high[s], more);                              \
            more = coopMatMulAdd(factors##_high[s], low, more);                                 \
        }                                                                                       \
        [[unroll]] for (uint s = 0u; s < PK; s++) {                                             \
            more = coopMatMulAdd(factors##_high[s], high[s], more);                             \
        }                                                                                       \
        [[unroll]] for (uint e = 0u; e < more.length(); e++) {                                  \
            to_sums[d][e] = fma(more[e], by, to_sums[d][e]);                                    \
        }                                                                                       \
    }

#if CONVERTS
#define TAKE(factors, numbers_of, j, at)                                   \
    {                                                                      \
        SUMS rounded = high_of(numbers_of);                                \
        factors##_high[j] = LEFT(NARROW(rounded));                         \
        factors##_low[j] = LEFT(NARROW(numbers_of - rounded));             \
    }
#else
#define TAKE(factors, numbers_of, j, at)                                                        \
    {                                                                                           \
        SUMS rounded = high_of(numbers_of);                                                     \
        coopMatStore(NARROW(rounded), tiles, (at) + (j) * FN / 8u, P_STRIDE, ROWS);             \
        coopMatStore(NARROW(numbers_of - rounded), tiles, (at) + (PART + (j) * FN) / 8u, P_STRIDE, ROWS); \
    }
#define TAKEN(factors, at)                                                                  \
    [[unroll]] for (uint s = 0u; s < PK; s++) {                                             \
        coopMatLoad(factors##_high[s], tiles, (at) + s * FK / 8u, P_STRIDE, ROWS);          \
        coopMatLoad(factors##_low[s], tiles, (at) + (PART + s * FK) / 8u, P_STRIDE, ROWS);  \
    }
#endif
#endif
