// Blocks of 32 weights with an F16 scale, for small-M GEMM with prepacked activations. The WORDS of a
// lane are a quarter of a block.

HEAD head_u;
HEAD head_v;

// Scales of the 8 blocks of a slice; 0 beyond the end of the row.
HEAD load_head(Place place, const uint row) {
    uint at = place.rows[row] / 16u + p.blocks * CODE_VECS + (WHOLE == 1u ? place.slice : min(place.slice, (p.blocks - 1u) / 8u));
    return b_vec[at];
}

uint words_at(uint row, uint slice) { return row / (16u * CODE_VECS / 4u) + t + (WHOLE == 1u ? slice * 32u : 0u); }

uint word_of(Place place, const uint step, const uint row) {
    uint block = WHOLE == 1u ? step : min(place.slice * 8u + step, p.blocks - 1u);
    return place.words[row] + block * 4u;
}

float scale_of(HEAD head, const uint step, uint slice) {
    float scale = unpackHalf2x16(head[step / 2u])[step % 2u];
    return WHOLE == 1u || slice * 8u + step < p.blocks ? scale : 0.0;
}
