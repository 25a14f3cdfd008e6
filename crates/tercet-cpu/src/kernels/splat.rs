//! Blends Gaussian splats into a tile of an image, row by row of pixels.

use super::simd::{Simd, simd_dispatch};
use super::vmath::scalar::exp;

/// Width and height in pixels of the block that a kernel draws; also of a tile, unless an option
/// sets another size.
pub const TILE: usize = 16;

/// A splat as `[x, y, xx, xy, yy, opacity, r, g, b]`: position in pixels, conic, opacity and color.
pub type RasterSplat = [f32; 9];

/// Limits of alpha blending.
#[derive(Clone, Copy, Debug)]
pub struct BlendLimits {
    /// Minimum alpha: a splat is skipped at pixels at which its alpha is lower.
    pub min_alpha: f32,
    /// Maximum alpha of a splat.
    pub greatest_alpha: f32,
    /// Minimum transmittance. If a splat would reduce the transmittance of a pixel below it, the
    /// pixel is closed: neither this nor any later splat is drawn there.
    pub min_transmittance: f32,
    /// Maximum number of splats that a pixel blends.
    pub max_steps: u32,
    /// Maximum number of splats that cover the tile of a pixel.
    pub max_entries: u32,
}

/// Half-open ranges of the columns and of the rows of pixels that a splat may be drawn at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PixelArea {
    /// First column, and the column after the last.
    pub columns: [usize; 2],
    /// First row, and the row after the last.
    pub rows: [usize; 2],
}

impl PixelArea {
    /// All pixels.
    pub(super) const ALL: PixelArea = PixelArea {
        columns: [0, usize::MAX],
        rows: [0, usize::MAX],
    };

    fn has_row(&self, row: usize) -> bool {
        (self.rows[0]..self.rows[1]).contains(&row)
    }

    /// For each pixel of a row of the block that starts at column `first`: 1 inside, else 0.
    pub(super) fn row_mask(&self, first: usize, row: usize) -> [f32; TILE] {
        let is_inside = |column| self.has_row(row) && self.has_column(column);
        std::array::from_fn(|k| if is_inside(first + k) { 1.0 } else { 0.0 })
    }

    fn has_column(&self, column: usize) -> bool {
        (self.columns[0]..self.columns[1]).contains(&column)
    }
}

/// Counts of splats of a pixel row: those that cover the tile of a pixel, and those that it blends.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SplatCounts {
    pub(super) entries: [u32; TILE],
    pub(super) steps: [u32; TILE],
}

impl SplatCounts {
    /// Counts a splat that covers the marked pixels. Pixels without room for it are closed.
    pub(super) fn enter(&mut self, mask: &[f32; TILE], open: &mut [f32; TILE], most: u32) {
        for ((count, &inside), open) in self.entries.iter_mut().zip(mask).zip(open) {
            if inside > 0.0 {
                if *count >= most {
                    *open = 0.0;
                }
                *count = count.saturating_add(1);
            }
        }
    }
}

/// A row of pixels of a tile: accumulated colors and transmittance. `open` is 0 for pixels that
/// take no further splats, else 1.
#[derive(Clone, Copy, Debug)]
struct SplatPixelRow {
    color: [[f32; TILE]; 3],
    light: [f32; TILE],
    open: [f32; TILE],
    counts: SplatCounts,
}

/// A tile of the image during rasterization.
#[derive(Clone, Debug)]
pub struct SplatTile {
    rows: [SplatPixelRow; TILE],
    /// Center of the tile's first pixel.
    first: [f32; 2],
    /// Column and row of the tile's first pixel.
    origin: [usize; 2],
}

impl SplatTile {
    /// An empty tile whose first pixel is at this column and row of the image.
    #[must_use]
    pub fn at(column: usize, row: usize) -> SplatTile {
        let empty = SplatPixelRow {
            color: [[0.0; TILE]; 3],
            light: [1.0; TILE],
            open: [1.0; TILE],
            counts: SplatCounts::default(),
        };
        SplatTile {
            rows: [empty; TILE],
            first: [column as f32 + 0.5, row as f32 + 0.5],
            origin: [column, row],
        }
    }

    /// True if no pixel of the tile takes further splats.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.rows.iter().all(|row| row.open == [0.0; TILE])
    }

    /// Accumulated color and transmittance of a pixel.
    #[must_use]
    pub fn pixel(&self, column: usize, row: usize) -> ([f32; 3], f32) {
        let row = &self.rows[row];
        (row.color.map(|c| c[column]), row.light[column])
    }
}

simd_dispatch!(
    /// Blends a splat into the tile, behind the splats that were drawn before.
    pub fn blend(tile: &mut SplatTile, splat: &RasterSplat, limits: BlendLimits) = blend_body
);

simd_dispatch!(
    /// [`blend`] within an area, with the maximum numbers of splats of `limits`.
    pub fn blend_within(tile: &mut SplatTile, splat: &RasterSplat, area: PixelArea, limits: BlendLimits) = within_body
);

/// Maximum distance in x and y from the center at which the alpha can reach `min_alpha`, rounded
/// up a little.
pub(super) fn reach(splat: &RasterSplat, limits: BlendLimits) -> [f32; 2] {
    let [_, _, xx, xy, yy, opacity, ..] = *splat;
    let det = xx * yy - xy * xy;
    let ratio = opacity / limits.min_alpha;
    // For a thin splat, cancellation leaves the determinant few significant digits.
    let is_sure = det > 1e-3 * xx * yy && xx > 0.0 && yy > 0.0 && ratio.is_finite();
    if !is_sure {
        return [f32::INFINITY; 2];
    }
    if ratio < 0.99 {
        return [-1.0; 2];
    }
    // The ellipse `d^T conic d = 2 ln(ratio)` has its maximum y at `d_x = -xy d_y / xx`, and
    // likewise for x.
    let square = 2.0 * ratio.max(1.0).ln() / det;
    [yy, xx].map(|own| 1.01 * (square * own).sqrt() + 0.01)
}

/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn blend_body<S: Simd>(tile: &mut SplatTile, splat: &RasterSplat, limits: BlendLimits) {
    // SAFETY: the caller guarantees the instructions of `S`.
    unsafe { body::<S, false>(tile, splat, PixelArea::ALL, limits) }
}

/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn within_body<S: Simd>(
    tile: &mut SplatTile,
    splat: &RasterSplat,
    area: PixelArea,
    limits: BlendLimits,
) {
    let [first, top] = tile.origin;
    for (i, row) in tile.rows.iter_mut().enumerate() {
        let mask = area.row_mask(first, top + i);
        row.counts.enter(&mask, &mut row.open, limits.max_entries);
    }
    // SAFETY: the caller guarantees the instructions of `S`.
    unsafe { body::<S, true>(tile, splat, area, limits) }
}

/// Blends a splat; with `LIMITED`, within an area and with counts.
///
/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn body<S: Simd, const LIMITED: bool>(
    tile: &mut SplatTile,
    splat: &RasterSplat,
    area: PixelArea,
    limits: BlendLimits,
) {
    let [x, y, xx, xy, yy, opacity, r, g, b] = *splat;
    let origin = tile.origin;
    let reach = reach(splat, limits);
    let left = tile.first[0] - x;
    let right = left + (TILE - 1) as f32;
    if left > reach[0] || -right > reach[0] {
        return;
    }
    let mut dx = [0.0; TILE];
    for (i, dx) in dx.iter_mut().enumerate() {
        *dx = left + i as f32;
    }
    for (i, row) in tile.rows.iter_mut().enumerate() {
        let dy = tile.first[1] + i as f32 - y;
        if dy.abs() > reach[1] {
            continue;
        }
        let mut mask = [1.0; TILE];
        if LIMITED {
            mask = area.row_mask(origin[0], origin[1] + i);
        }
        let mut weight = [0.0; TILE];
        for (k, &dx) in dx.iter().enumerate() {
            let power = -0.5 * (xx * dx * dx + yy * dy * dy) - xy * dx * dy;
            let covered = (opacity * exp::<S>(power)).min(limits.greatest_alpha);
            let mut counts = power <= 0.0 && covered >= limits.min_alpha;
            if LIMITED {
                counts &= mask[k] > 0.0;
            }
            let alpha = if counts { covered } else { 0.0 };
            let next = row.light[k] * (1.0 - alpha);
            let mut ends = counts && next < limits.min_transmittance;
            if LIMITED {
                ends |= counts && row.counts.steps[k] >= limits.max_steps;
            }
            row.open[k] = if ends { 0.0 } else { row.open[k] };
            let is_drawn = row.open[k] > 0.0;
            if LIMITED {
                row.counts.steps[k] += u32::from(is_drawn && counts);
            }
            weight[k] = if is_drawn { alpha * row.light[k] } else { 0.0 };
            row.light[k] = if is_drawn { next } else { row.light[k] };
        }
        for (sums, own) in row.color.iter_mut().zip([r, g, b]) {
            for (sum, weight) in sums.iter_mut().zip(&weight) {
                // A non-finite color affects only the pixels that it is drawn on.
                *sum += if *weight > 0.0 { own * weight } else { 0.0 };
            }
        }
    }
}
