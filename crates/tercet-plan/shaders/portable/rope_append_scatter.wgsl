// The row of a state in which a head is stored: `starts` contains the key of each token's slice, as
// scatter_nd_keys.wgsl computes it. A token whose slice a later one overwrites is not stored.
// uses rope_append.wgsl: NO_ROW, p, starts

fn cache_row(batch: u32, first: u32, second: u32) -> u32 {
    let key = starts[first];
    return select(key * p.k_heads + second, NO_ROW, key == NO_ROW);
}
