// F16 weights for skinny GEMM (few_rows_held.glsl and few_rows_streamed.glsl).

#define WORDS uvec4
#define SPAN 1
#define STREAM_AHEAD 4
#define HEAD uint

HEAD head_u;
HEAD head_v;

// F16 weights have no scales.
HEAD load_head(Place place, const uint row) { return 0u; }

uint words_at(uint row, uint slice) { return row / 8u + t + (WHOLE == 1u ? slice * 32u : 0u); }

uvec4 load_words(Place place, const uint step, const uint row) {
    if (WHOLE == 1u) {
        return b_vec[place.words[row] + 4u * step];
    }
    uint at = place.slice * 32u + 4u * step;
    // Weights beyond the end of the row are 0.
    bool is_some = at + t < p.k / 8u;
    uvec4 words = b_vec[is_some ? place.words[row] + at : place.words[row] - t];
    return is_some ? words : uvec4(0u);
}

uvec4 arranged(uvec4 words) { return words; }

uint x_at(uint step, uint t) { return 32u * step + 8u * t; }
const uint X_NEXT = 4;
#define X_FIRST xy
#define X_SECOND zw

void take_step(const uint step, uvec4 u, uvec4 v, uint slice) {
    // Matrix units truncate sums, so few products are accumulated before they are added in F32.
    if (step % 2u == 0u) {
        begin_products();
    }
    fill_left(halves(u.x), halves(u.y), halves(v.x), halves(v.y));
    multiply(2u * step);
    fill_left(halves(u.z), halves(u.w), halves(v.z), halves(v.w));
    multiply(2u * step + 1u);
    if (step % 2u == 1u) {
        add_products(1.0, 1.0);
    }
}
