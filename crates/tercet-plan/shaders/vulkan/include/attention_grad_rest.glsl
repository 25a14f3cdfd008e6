// Attention backward, F32 fallback: computes the KV heads that attention_grad_pairs.glsl flagged.
// See attention_rest.glsl. Each group of LINES streamed rows is summed separately, so that long
// sequences do not lose precision.
//
// Tiles have LINES stationary rows. attention_order.glsl defines the order of tiles.

#include "attention_rest.glsl"

shared float values[LINES * V_STRIDE];
shared float dys[LINES * V_STRIDE];
STAGE(stage_values, values, v, p.value_dim, V_STRIDE, p.v_offset + batch * p.v_batch + head * p.v_head + line * p.v_seq)
STAGE(stage_dys, dys, dy, p.value_dim, V_STRIDE, row_of(line, p.dy_offset, p.dy_batch, p.dy_head, p.dy_seq))

// Weights and ds of all pairs of a stationary and a streamed row.
const uint W_STRIDE = LINES + 1;
shared float weights[LINES * W_STRIDE];
shared float scores[LINES * W_STRIDE];

// Columns per thread.
const uint H_OWN = (HEAD + LINES - 1) / LINES;
const uint V_OWN = (VALUE + LINES - 1) / LINES;

float first_sums[H_OWN];
float second_sums[V_OWN];

#define ADD(sums, count, dim, factors, lines, stride)                                           \
    [[unroll]] for (uint c = 0u; c < count; c++) {                                              \
        float more = 0.0;                                                                       \
        uint col = min(other + c * LINES, dim - 1u);                                            \
        for (uint j = 0u; j < LINES; j++) {                                                     \
            more = fma(factors[own * W_STRIDE + j], lines[j * (stride) + col], more);           \
        }                                                                                       \
        sums[c] += more;                                                                        \
    }

#define STORE(words, sums, count, dim, place)                                                   \
    [[unroll]] for (uint c = 0u; c < count; c++) {                                              \
        uint col = other + c * LINES;                                                           \
        if (line < last && col < dim) {                                                         \
            words[(place) + col] = line < own_lines() ? sums[c] : 0.0;                          \
        }                                                                                       \
    }

void make_tile() {
    ivec2 walk;
    ivec2 clear;
    take_walk(walk, clear);
    [[unroll]] for (uint c = 0u; c < H_OWN; c++) {
        first_sums[c] = 0.0;
    }
    [[unroll]] for (uint c = 0u; c < V_OWN; c++) {
        second_sums[c] = 0.0;
    }
#if OF_KEYS
    stage_keys(first_line, uint(n));
    stage_values(first_line, uint(n));
#else
    stage_queries(first_line, rows);
    stage_dys(first_line, rows);
#endif
    for (int line = walk.x; line < walk.y; line += int(LINES)) {
#if OF_KEYS
        stage_queries(uint(line), rows);
        stage_dys(uint(line), rows);
        uint row = uint(line) + other;
        uint key = first_line + own;
        uint staged_row = other;
        uint staged_key = own;
#else
        stage_keys(uint(line), uint(n));
        stage_values(uint(line), uint(n));
        uint row = first_line + own;
        uint key = uint(line) + other;
        uint staged_row = own;
        uint staged_key = other;
#endif
        barrier();
        vec2 score = score_of(row, key, staged_row, staged_key);
        float w = 0.0;
        float ds = 0.0;
        if (score.x != -infinity()) {
            w = exp2(score.x - lse[number_at(row)] * LOG2_E);
            float dp = 0.0;
            for (uint d = 0u; d < p.value_dim; d++) {
                dp = fma(dys[staged_row * V_STRIDE + d], values[staged_key * V_STRIDE + d], dp);
            }
            ds = w * (dp - delta[number_at(row)]) * score.y;
        }
        weights[own * W_STRIDE + other] = w;
        scores[own * W_STRIDE + other] = ds;
        barrier();
#if OF_KEYS
        ADD(first_sums, H_OWN, p.head_dim, scores, queries, H_STRIDE)
        ADD(second_sums, V_OWN, p.value_dim, weights, dys, V_STRIDE)
#else
        ADD(first_sums, H_OWN, p.head_dim, scores, keys, H_STRIDE)
#endif
        barrier();
    }
    uint line = first_line + own;
    uint last = lines();
#if OF_KEYS
    STORE(first, first_sums, H_OWN, p.head_dim, batch * p.first_batch + head * p.first_head + line * p.first_seq)
    STORE(second, second_sums, V_OWN, p.value_dim, batch * p.second_batch + head * p.second_head + line * p.second_seq)
#else
    STORE(first, first_sums, H_OWN, p.head_dim, row_of(line, 0u, p.first_batch, p.first_head, p.first_seq))
#endif
}

void main() {
    if (!take_rest()) {
        return;
    }
    for (; first_line < lines(); first_line += p.tiles * LINES) {
        make_tile();
    }
}
