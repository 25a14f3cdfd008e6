// Key range that a query attends to. Shared by the attention kernels, which declare `p` and `lens`.

// Marks a value that is uniform across the workgroup. Browsers require a proof of uniformity, so
// `pipeline.rs` of tercet-wgpu replaces this function for them. The replacement contains a barrier,
// so all threads of the workgroup must call this function.
fn uniform_word(x: u32) -> u32 {
    return x;
}

// Number of keys of a batch entry.
fn keys_of(batch: u32) -> i32 {
    if (p.has_lens == 0u) {
        return i32(p.keys);
    }
    return clamp(bitcast<i32>(lens[p.lens_offset + batch * p.lens_stride]), 0, i32(p.keys));
}

// Number of keys of a batch entry that is uniform across the workgroup.
fn common_keys_of(batch: u32) -> i32 {
    return bitcast<i32>(uniform_word(bitcast<u32>(keys_of(batch))));
}

// Half-open range of the keys that query `i` attends to, before `keep` or `bias`; `n` is the number
// of keys.
fn seen_by(i: u32, n: i32) -> vec2<i32> {
    if (p.causal == 0u) {
        return vec2<i32>(0, n);
    }
    let end = n - i32(p.queries) + i32(i) + 1;
    return vec2<i32>(max(end - i32(p.window), 0), clamp(end, 0, n));
}
