// What attention_coop.glsl does to scores whose pairs may not be seen, or that are capped.

float capped(float x) {
    float t = tanh(clamp(x, -12.0, 12.0));
    return is_nan(x) ? x : t;
}

// Products to scores.
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

// What a mask adds to a score: -infinity where the pair is not seen.
float penalty_of(uint at) {
    if (MASK == 1u) {
        return ((mask[at >> 2] >> (at & 3u) * 8u) & 0xffu) != 0u ? 0.0 : minus_infinity();
    }
    return BIAS_AT(at);
}

float with_penalty(float score, float penalty) {
    // The score may be NaN.
    return penalty == minus_infinity() ? penalty : score + penalty;
}

// The penalties of the keys from `first` on, and whether there are any.
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
    SUMS index;
    coopMatLoad(index, tiles, INDEX_AT, FN / 4, ROWS);
    [[unroll]] for (uint e = 0u; e < index.length(); e++) {
        uint at = PENALTY_AT + uint(index[e]) % FN;
        [[unroll]] for (uint j = 0u; j < KF; j++) {
            float penalty = NUMBER(at + j * FN);
            [[unroll]] for (uint i = 0u; i < RF; i++) {
                scores[i * KF + j][e] = with_penalty(scores[i * KF + j][e], penalty);
            }
        }
    }
}

float masked(float score, int key, uvec4 about) {
    if (key < int(about.x) || key >= int(about.y)) {
        return minus_infinity();
    }
    if (MASK == 0u) {
        return score;
    }
    return with_penalty(score, penalty_of(about.z + uint(key) * p.mask_key));
}

// Scores of pairs that are not seen become -infinity.
void mask_pairs(int first) {
    SUMS index;
    coopMatLoad(index, tiles, INDEX_AT, FN / 4, ROWS);
    [[unroll]] for (uint e = 0u; e < index.length(); e++) {
        uint row = own_row + uint(index[e]) / FN;
        int key = first + int(uint(index[e]) % FN);
        [[unroll]] for (uint i = 0u; i < RF; i++) {
            uvec4 about = tiles[ROW_AT + row + i * FM];
            [[unroll]] for (uint j = 0u; j < KF; j++) {
                scores[i * KF + j][e] = masked(scores[i * KF + j][e], key + int(j * FN), about);
            }
        }
    }
}
