// Weight addressing and prefetch of a workgroup's tiles, for few_rows_streamed.glsl and
// few_rows_laid.glsl.

#ifndef LAID
const uint AHEAD = STREAM_AHEAD;
#endif
// Loads per slice.
const uint LOADS = STEPS / SPAN;
// Words of weights in flight (words_u, words_v), and words in use (u, v).
WORDS words_u[AHEAD];
WORDS words_v[AHEAD];
WORDS u;
WORDS v;

Place place_of(uint tile, uint slice) {
    uint half_n = p.n / 2u;
    uvec2 column = GATED == 1u ? min(uvec2(tile * 8u + g), uvec2(half_n - 1u)) + uvec2(0u, half_n)
                               : min(uvec2(tile * 16u + g) + uvec2(0u, 8u), uvec2(p.n - 1u));
    uvec2 rows = p.b_offset + column * p.b_col;
    return Place(uvec2(words_at(rows.x, slice), words_at(rows.y, slice)), rows, slice);
}

// Takes the words of a load, and prefetches the words AHEAD loads later, in this tile and slice or
// in the next ones.
void next_words(const uint load, Place place, Place next) {
    const uint at = load % AHEAD;
    u = arranged(words_u[at]);
    v = arranged(words_v[at]);
    if (load + AHEAD < LOADS) {
        words_u[at] = load_words(place, load + AHEAD, 0u);
        words_v[at] = load_words(place, load + AHEAD, 1u);
    } else {
        words_u[at] = load_words(next, load + AHEAD - LOADS, 0u);
        words_v[at] = load_words(next, load + AHEAD - LOADS, 1u);
    }
}
