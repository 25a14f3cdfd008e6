// Softcap and masks of attention_coop.glsl.

float capped(float x) {
    float t = tanh(clamp(x, -12.0, 12.0));
    return is_nan(x) ? x : t;
}

// Converts products to scores.
void scale_scores() {
    [[unroll]] for (uint i = 0u; i < RF * KF; i++) {
        if (CAPPED == 0u) {
            scores[i] = scores[i] * (FACTOR * UNIT);
            continue;
        }
        scores[i] = scores[i] * (FACTOR / p.softcap);
        [[unroll]] for (uint e = 0u; e < scores[i].length(); e++) {
            scores[i][e] = capped(scores[i][e]);
        }
        scores[i] = scores[i] * (p.softcap * UNIT);
    }
}

// Mask term of a score: -infinity for a masked pair.
float penalty_of(uint at) {
    if (MASK == 1u) {
        return ((mask[at >> 2] >> (at & 3u) * 8u) & 0xffu) != 0u ? 0.0 : minus_infinity();
    }
    return BIAS_AT(at);
}

float with_penalty(float score, float penalty) {
    // The score of a masked pair may be NaN.
    return penalty == minus_infinity() ? penalty : score + penalty;
}

// Stages the mask terms of the keys from `first` on, and records whether any is nonzero.
void stage_penalties(int first, int end, uint step) {
    for (uint at = gl_LocalInvocationIndex; at < BN; at += THREADS) {
        int key = first + int(at);
        float penalty = minus_infinity();
        if (key < end) {
            penalty = penalty_of(p.mask_offset + batch * p.mask_batch + uint(key) * p.mask_key);
        }
        NUMBER(PENALTY_AT + at) = penalty;
        if (penalty != 0.0) {
            masked_step = step;
        }
    }
}

void mask_keys() {
    SUMS column;
    coopMatLoad(column, numbers, INDEX_AT / 4u, 0, ROWS);
    [[unroll]] for (uint e = 0u; e < column.length(); e++) {
        uint at = PENALTY_AT + uint(column[e]);
        [[unroll]] for (uint j = 0u; j < KF; j++) {
            float penalty = NUMBER(at + j * FN);
            [[unroll]] for (uint i = 0u; i < RF; i++) {
                scores[i * KF + j][e] = with_penalty(scores[i * KF + j][e], penalty);
            }
        }
    }
}

// Sets the scores of masked pairs to -infinity.
void mask_pairs(int first) {
    SUMS row;
    SUMS column;
    coopMatLoad(row, numbers, INDEX_AT / 4u, 0, COLUMNS);
    coopMatLoad(column, numbers, INDEX_AT / 4u, 0, ROWS);
    [[unroll]] for (uint i = 0u; i < RF; i++) {
        SUMS from;
        SUMS end;
        coopMatLoad(from, numbers, (FROM_AT + own_row + i * FM) / 4u, 0, COLUMNS);
        coopMatLoad(end, numbers, (END_AT + own_row + i * FM) / 4u, 0, COLUMNS);
        [[unroll]] for (uint j = 0u; j < KF; j++) {
            int key = first + int(j * FN);
            vec2 at = vec2(ivec2(key) - base);
            [[unroll]] for (uint e = 0u; e < row.length(); e++) {
                float penalty = at.x + column[e] < from[e] || at.y + column[e] >= end[e] ? minus_infinity() : 0.0;
                if (MASK != 0u && penalty == 0.0) {
                    uint mask_at = tiles[ROW_AT + own_row + i * FM + uint(row[e])].z;
                    penalty = penalty_of(mask_at + uint(key + int(column[e])) * p.mask_key);
                }
                scores[i * KF + j][e] = with_penalty(scores[i * KF + j][e], penalty);
            }
        }
    }
}
