// Q8_0 weights for small-M GEMM with prepacked activations (few_rows_laid.glsl).

#define WORDS uvec2
#define SPAN 1
#define HEAD uvec4

// Each block has 32 bytes of quantized values.
const uint CODE_VECS = 2;

#include "few_rows_blocks.glsl"

uvec2 load_words(Place place, const uint step, const uint row) { return b_pair[word_of(place, step, row)]; }

uvec2 arranged(uvec2 words) { return words; }

// Bytes 0 and 2 of a word form a pair.
// The stored bytes are the quantized values plus 128.
f16vec2 pair_of(uint w) { return about_1024(w, 0x00ff00ffu) - f16vec2(1152.0hf); }

void take_step(const uint step, uvec2 u, uvec2 v, uint slice) {
    u ^= 0x80808080u;
    v ^= 0x80808080u;
    begin_products();
    fill_left(pair_of(u.x), pair_of(u.x >> 8), pair_of(v.x), pair_of(v.x >> 8));
    multiply(2u * step);
    fill_left(pair_of(u.y), pair_of(u.y >> 8), pair_of(v.y), pair_of(v.y >> 8));
    multiply(2u * step + 1u);
    add_products(scale_of(head_u, step, slice), scale_of(head_v, step, slice));
}

uint bits_of(WORDS words) { return words.x ^ words.y; }
