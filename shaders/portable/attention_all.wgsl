// Attention of every key head.

fn is_left(batch: u32, head: u32) -> bool {
    return true;
}
