// Tile filter of gemm.wgsl for the F32 fallback: computes only the tiles that contain a flagged
// tile of gemm_pairs_f32.comp. Flagged tiles have LEFT_ROWS x LEFT_COLUMNS elements, which divide
// TILE.
// uses matmul/gemm.wgsl: TILE

override LEFT_ROWS: u32 = 128u;
override LEFT_COLUMNS: u32 = 128u;

@group(0) @binding(5) var<storage, read> rest: array<u32>;

fn is_left(batch: u32, row: u32, col: u32) -> bool {
    let across = (p.n + LEFT_COLUMNS - 1u) / LEFT_COLUMNS;
    let down = (p.m + LEFT_ROWS - 1u) / LEFT_ROWS;
    var left = 0u;
    for (var i = row / LEFT_ROWS; i < min((row + TILE) / LEFT_ROWS, down); i += 1u) {
        for (var j = col / LEFT_COLUMNS; j < min((col + TILE) / LEFT_COLUMNS, across); j += 1u) {
            left |= rest[(batch * down + i) * across + j];
        }
    }
    return left != 0u;
}
