// The logarithm of the sum of the exponentials of each row's scores, of the key heads that attention_halves.glsl left: see
// attention_rest.glsl. Each of LINES invocations of a row has every LINES-th key and a centre of its own.
//
// Tiles are of LINES rows; their order: attention_order.glsl.

#define OF_KEYS 0
#include "attention_rest.glsl"

// By row and invocation.
shared vec2 parts[LINES * LINES];

void make_tile() {
    ivec2 walk;
    ivec2 clear;
    take_walk(walk, clear);
    stage_queries(first_line, rows);
    // The greatest score so far, and the sum of exponentials below it.
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
