// Which keys there are, and which of them rows of queries see.

// The number of keys of a batch entry.
int keys_of(uint batch) {
    if (p.has_lens == 0u) {
        return int(p.keys);
    }
    return clamp(int(lens[p.lens_offset + batch * p.lens_stride]), 0, int(p.keys));
}

// The query of a row of queries. Where query heads have key heads of their own, nothing is divided.
uint query_of(uint row) { return p.group == 1u ? row : row / p.group; }

// The first key that a row sees and the one after the last, before `keep` and `bias`; `n` keys.
ivec2 seen_by(uint row, int n) {
    if (p.causal == 0u) {
        return ivec2(0, n);
    }
    int end = n - int(p.queries) + int(query_of(row)) + 1;
    return ivec2(max(end - int(p.window), 0), clamp(end, 0, n));
}
