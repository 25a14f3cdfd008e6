// Log-sum-exp of attention, F32 fallback: computes the KV heads that attention_halves.glsl flagged.
// See attention_rest.glsl. LINES threads share a row. Each of these threads processes every
// LINES-th key with a separate running maximum.
//
// Tiles have LINES rows. attention_order.glsl defines the order of tiles.

#define OF_KEYS 0
#include "attention_rest.glsl"

// Running maximum and sum, by row and thread.
shared vec2 parts[LINES * LINES];

void make_tile() {
    ivec2 walk;
    ivec2 clear;
    take_walk(walk, clear);
    stage_queries(first_line, rows);
    // Running maximum, and the sum of the exponentials relative to it.
    float center = -infinity();
    float sum = 0.0;
    for (int line = walk.x; line < walk.y; line += int(LINES)) {
        stage_keys(uint(line), uint(n));
        barrier();
        float score = score_of(first_line + own, uint(line) + other, own, other).x;
        if (score != -infinity()) {
            float most = max(center, score);
            sum = sum * exp2(center - most) + exp2(score - most);
            center = most;
        }
        barrier();
    }
    parts[own * LINES + other] = vec2(center, sum);
    barrier();
    uint row = first_line + own;
    if (other == 0u && row < rows) {
        float most = -infinity();
        for (uint i = 0u; i < LINES; i++) {
            most = max(most, parts[own * LINES + i].x);
        }
        float total = 0.0;
        for (uint i = 0u; i < LINES; i++) {
            vec2 part = parts[own * LINES + i];
            total += part == vec2(-infinity(), 0.0) ? 0.0 : part.y * exp2(part.x - most);
        }
        first[number_at(row)] = most == -infinity() && total == 0.0 ? most : (most + log2(total)) / LOG2_E;
    }
    barrier();
}

void main() {
    if (!take_rest()) {
        return;
    }
    for (; first_line < lines(); first_line += p.tiles * LINES) {
        make_tile();
    }
}
