// What the kernels of splatting share: sizes of a splat (place, conic, opacity, colour, depth) and of its
// footprint (tiles from and to, radius).
// uses prelude.wgsl: magnitude

const SPLAT_LEN: u32 = 10u;
const FOOTPRINT_LEN: u32 = 5u;
// The side of a tile in pixels.
const TILE: u32 = 16u;

// Sums of a splat over the pixels of a tile.
const SUMS: u32 = 9u;

fn is_finite(x: f32) -> bool {
    return magnitude(x) < 0x7f800000u;
}
