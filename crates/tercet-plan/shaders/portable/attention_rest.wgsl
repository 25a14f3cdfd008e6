// Attention fallback: computes only the KV heads that the fast kernel flagged in `rest`.
// uses attention_common.wgsl: p

@group(0) @binding(7) var<storage, read> rest: array<u32>;

fn is_left(batch: u32, head: u32) -> bool {
    return rest[batch * p.kv_heads + head] != 0u;
}
