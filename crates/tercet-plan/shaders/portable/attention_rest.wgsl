// Attention fallback: computes only the KV heads that the fast kernel flagged in `rest`.
// uses attention_common.wgsl: p
// uses attention_rows.wgsl: Place

@group(0) @binding(7) var<storage, read> rest: array<u32>;

fn is_left(batch: u32, head: u32) -> bool {
    return rest[batch * p.kv_heads + head] != 0u;
}

// Stores nothing; attention_all_lse.wgsl stores the log-sum-exp.
fn put_lse(place: Place, row: u32, weights: vec4<f32>, top: vec4<i32>) {}
