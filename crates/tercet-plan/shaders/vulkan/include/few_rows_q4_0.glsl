// Q4_0 weights for small-M GEMM with prepacked activations (few_rows_laid.glsl).

#define WORDS uvec4
const uint SPAN = 4;
#define HEAD uvec4

// Each block has 16 bytes of quantized values.
const uint CODE_VECS = 1;

#include "few_rows_blocks.glsl"

// Each lane loads a whole block: 16-byte loads use a quarter of the L1 throughput of word loads.
uvec4 load_words(Place place, const uint load, const uint row) {
    uint block = place.slice * 8u + 4u * load + t;
    return b_vec[place.rows[row] / 16u + (WHOLE == 1u ? block : min(block, p.blocks - 1u))];
}

// Transposes the words of four lanes, so that each lane has its word of each block. Lanes exchange
// two words at distance two, then two at distance one.
uvec4 turned(uvec4 w) {
    bool is_high = t >= 2u;
    uvec2 sent = is_high ? w.xy : w.zw;
    sent = subgroupShuffleXor(sent, 2u);
    w = is_high ? uvec4(sent, w.zw) : uvec4(w.xy, sent);
    bool is_odd = (t & 1u) == 1u;
    sent = is_odd ? w.xz : w.yw;
    sent = subgroupShuffleXor(sent, 1u);
    return is_odd ? uvec4(sent.x, w.y, sent.y, w.w) : uvec4(w.x, sent.x, w.z, sent.y);
}

uvec4 arranged(uvec4 words) { return turned(words); }

f16vec2 low_pair(uint w) { return about_1024(w, 0x000f000fu) - f16vec2(1032.0hf); }

f16vec2 high_pair(uint w) { return fma(about_1024(w, 0x00f000f0u), f16vec2(0.0625hf), f16vec2(-72.0hf)); }

void take_step(const uint step, uvec4 words, uvec4 next_words, uint slice) {
    uint u = words[step % 4u];
    uint v = next_words[step % 4u];
    begin_products();
    fill_left(low_pair(u), low_pair(u >> 8), low_pair(v), low_pair(v >> 8));
    multiply(2u * step);
    fill_left(high_pair(u), high_pair(u >> 8), high_pair(v), high_pair(v >> 8));
    multiply(2u * step + 1u);
    add_products(scale_of(head_u, step, slice), scale_of(head_v, step, slice));
}

uint bits_of(WORDS words) { return words.x ^ words.y ^ words.z ^ words.w; }
