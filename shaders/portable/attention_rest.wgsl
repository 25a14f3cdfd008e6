// Attention of the key heads that another kernel has left.
// uses attention_common.wgsl: p

@group(0) @binding(7) var<storage, read> rest: array<u32>;

fn is_left(batch: u32, head: u32) -> bool {
    return rest[batch * p.kv_heads + head] != 0u;
}
