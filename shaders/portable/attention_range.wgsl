// Which keys a query sees: shared by the attention kernels, which declare `p` and `lens`.

// What all invocations of a workgroup have in common, as it is. Browsers want that proven, and get another function in
// its place (`pipeline.rs` of tercet-wgpu), for which all have to come here.
fn uniform_word(x: u32) -> u32 {
    return x;
}

// The number of keys of a batch entry.
fn keys_of(batch: u32) -> i32 {
    if (p.has_lens == 0u) {
        return i32(p.keys);
    }
    return clamp(bitcast<i32>(lens[p.lens_offset + batch * p.lens_stride]), 0, i32(p.keys));
}

// As keys_of, of a batch entry that all invocations of a workgroup have in common.
fn common_keys_of(batch: u32) -> i32 {
    return bitcast<i32>(uniform_word(bitcast<u32>(keys_of(batch))));
}

// The first key that query `i` sees and the one after the last, before `keep` and `bias`; `n` keys.
fn seen_by(i: u32, n: i32) -> vec2<i32> {
    if (p.causal == 0u) {
        return vec2<i32>(0, n);
    }
    let end = n - i32(p.queries) + i32(i) + 1;
    return vec2<i32>(max(end - i32(p.window), 0), clamp(end, 0, n));
}
