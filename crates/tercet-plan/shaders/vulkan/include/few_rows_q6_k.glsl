// Q6_K weights for small-M GEMM with prepacked activations (few_rows_laid.glsl).
//
// A slice is one block.

// Low bits of four steps, and high bits, which are shared by steps two apart.
struct Words {
    uvec4 low;
    uvec2 high;
};
#define WORDS Words
#define SPAN 4
#define HEAD Head

// Scales of 16 weights each, and the F16 scale that multiplies them.
struct Head {
    uvec4 scales;
    float unit;
};

HEAD head_u;
HEAD head_v;

uint block_of(uint slice) { return WHOLE == 1u ? slice : min(slice, p.blocks - 1u); }

HEAD load_head(Place place, const uint row) {
    uint block = block_of(place.slice);
    uint at = place.rows[row] / 2u + p.blocks * 104u + block;
    vec2 two = unpackHalf2x16(b[at / 2u]);
    bool is_some = WHOLE == 1u || place.slice < p.blocks;
    return Head(b_vec[place.rows[row] / 16u + p.blocks * 12u + block], is_some ? two[at % 2u] : 0.0);
}

uint words_at(uint row, uint slice) { return row / 4u + block_of(slice) * 32u + t; }

// 64 bytes of low bits and 32 bytes of high bits contain 128 weights.
Words load_words(Place place, const uint load, const uint row) {
    uint low = place.words[row] + 16u * load;
    uint high = place.rows[row] / 4u + p.blocks * 32u + block_of(place.slice) * 16u + 8u * load + t;
    return Words(uvec4(b[low], b[low + 4u], b[low + 8u], b[low + 12u]), uvec2(b[high], b[high + 4u]));
}

Words arranged(Words words) { return words; }

// Quantized values plus 32. The top two bits of a value are bits `at` and `at` + 1 of a byte of
// `high_bits`.
uint codes_of(uint low_bits, uint high_bits, const uint at) {
    uint top = at < 4u ? high_bits << (4u - at) : high_bits >> (at - 4u);
    return (low_bits & 0x0f0f0f0fu) | (top & 0x30303030u);
}

f16vec2 pair_of(uint codes) { return about_1024(codes, 0x00ff00ffu) - f16vec2(1056.0hf); }

float scale_of(HEAD head, const uint i) {
    return head.unit * float(bitfieldExtract(int(head.scales[i / 4u]), int(i % 4u * 8u), 8));
}

void take_group(const uint at, uint u, uint v, const uint group) {
    begin_products();
    fill_left(pair_of(u), pair_of(u >> 8), pair_of(v), pair_of(v >> 8));
    multiply(at);
    add_products(scale_of(head_u, group), scale_of(head_v, group));
}

void take_words(const uint step, uvec2 u, uvec2 v) {
    const uint at = step % 4u / 2u * 2u;
    const uint group = step / 4u * 8u + step % 4u;
    take_group(2u * step, codes_of(u.x, u.y, at), codes_of(v.x, v.y, at), group);
    take_group(2u * step + 1u, codes_of(u.x >> 4, u.y, at + 4u), codes_of(v.x >> 4, v.y, at + 4u), group + 4u);
}

uvec2 words_of(Words words, const uint step) { return uvec2(words.low[step % 4u], words.high[step % 2u]); }

void take_step(const uint step, Words u, Words v, uint slice) { take_words(step, words_of(u, step), words_of(v, step)); }

uint bits_of(WORDS words) { return words.low.x ^ words.low.y ^ words.low.z ^ words.low.w ^ words.high.x ^ words.high.y; }
