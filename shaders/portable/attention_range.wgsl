// Which keys a query sees: shared by the attention kernels, which declare `p` and `lens`.

// The number of keys of a batch entry.
fn keys_of(batch: u32) -> i32 {
    if (p.has_lens == 0u) {
        return i32(p.keys);
    }
    return clamp(bitcast<i32>(lens[p.lens_offset + batch * p.lens_stride]), 0, i32(p.keys));
}

// The first key that query `i` sees and the one after the last, before `keep` and `bias`; `n` keys.
fn seen_by(i: u32, n: i32) -> vec2<i32> {
    if (p.causal == 0u) {
        return vec2<i32>(0, n);
    }
    let end = n - i32(p.queries) + i32(i) + 1;
    return vec2<i32>(max(end - i32(p.window), 0), clamp(end, 0, n));
}
