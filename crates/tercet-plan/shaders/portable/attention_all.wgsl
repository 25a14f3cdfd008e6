// Attention over all KV heads: the variant of attention_rest.wgsl that skips no head.

fn is_left(batch: u32, head: u32) -> bool {
    return true;
}
