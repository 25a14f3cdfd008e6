// Gaussian splatting: layouts shared by the kernels. A splat has position, conic, opacity, color
// and depth. The footprint of a splat has the first and last tile of both axes, and the radius.
// uses prelude.wgsl: magnitude

const SPLAT_LEN: u32 = 10u;
const FOOTPRINT_LEN: u32 = 5u;
// Side of a block in pixels: a workgroup draws one block.
const TILE: u32 = 16u;

// Number of gradient sums per splat and tile.
const SUMS: u32 = 9u;

// Blocks that a half-open range of tiles with this side reaches.
fn blocks_of(first: u32, end: u32, side: u32) -> vec2<u32> {
    if first >= end {
        return vec2<u32>();
    }
    return vec2(first * side / TILE, (end * side + TILE - 1u) / TILE);
}

fn is_finite(x: f32) -> bool {
    return magnitude(x) < 0x7f800000u;
}
