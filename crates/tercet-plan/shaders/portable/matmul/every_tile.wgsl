// Tile filter of gemm.wgsl: computes all tiles.

fn is_left(batch: u32, row: u32, col: u32) -> bool {
    return true;
}
