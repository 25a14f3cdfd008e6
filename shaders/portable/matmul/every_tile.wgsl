// Tiles of gemm.wgsl: all of them.

fn is_left(batch: u32, row: u32, col: u32) -> bool {
    return true;
}
