// Key ranges: the number of keys, and the range that a query row attends to.

// Number of keys of a batch entry.
int keys_of(uint batch) {
    if (p.has_lens == 0u) {
        return int(p.keys);
    }
    return clamp(int(lens[p.lens_offset + batch * p.lens_stride]), 0, int(p.keys));
}

// Query index of a row. With one query head per KV head, no division is needed.
uint query_of(uint row) { return p.group == 1u ? row : row / p.group; }

// Half-open range of the keys that a row attends to, before `keep` or `bias`; `n` is the number of
// keys.
ivec2 seen_by(uint row, int n) {
    if (p.causal == 0u) {
        return ivec2(0, n);
    }
    int end = n - int(p.queries) + int(query_of(row)) + 1;
    return ivec2(max(end - int(p.window), 0), clamp(end, 0, n));
}
