// Gaussian splatting: layouts shared by the kernels. A splat has position, conic, opacity, color
// and depth. The footprint of a splat has the first and last tile of both axes, and the radius.
// uses prelude.wgsl: magnitude

const SPLAT_LEN: u32 = 10u;
const FOOTPRINT_LEN: u32 = 5u;
// Side of a tile in pixels.
const TILE: u32 = 16u;

// Number of gradient sums per splat and tile.
const SUMS: u32 = 9u;

fn is_finite(x: f32) -> bool {
    return magnitude(x) < 0x7f800000u;
}
