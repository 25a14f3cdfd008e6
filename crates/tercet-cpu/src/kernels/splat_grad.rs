//! Backward pass of splat blending for one tile. The backward pass visits splats front to back, in
//! the order of drawing, row by row of pixels.

use super::simd::{Simd, simd_dispatch};
use super::splat::{BlendLimits, PixelArea, RasterSplat, SplatCounts, TILE, reach};
use super::vmath::scalar::exp;

/// Gradient sums of a splat over pixels.
///
/// Let `v` be the cotangent of the exponent and `(dx, dy)` the offset from the splat's center. The
/// first six elements are the sums over all pixels of `v`, `v dx`, `v dy`, `v dx^2`, `v dx dy` and
/// `v dy^2`. The last three are the cotangents of the color.
pub type SplatGradSums = [f32; 9];

/// A row of pixels of a tile: transmittance, cotangent-weighted contribution of everything behind
/// the visited splats, and color cotangents. `open` is 0 for pixels that take no further splats,
/// else 1.
#[derive(Clone, Copy, Debug)]
struct SplatGradPixelRow {
    light: [f32; TILE],
    blended_behind: [f32; TILE],
    open: [f32; TILE],
    d_color: [[f32; TILE]; 3],
    counts: SplatCounts,
}

/// A tile during the backward pass.
#[derive(Clone, Debug)]
pub struct SplatGradTile {
    rows: [SplatGradPixelRow; TILE],
    /// Center of the tile's first pixel.
    first: [f32; 2],
    /// Column and row of the tile's first pixel.
    origin: [usize; 2],
}

impl SplatGradTile {
    /// A tile whose first pixel is at this column and row of the image. Pixels take no splats until
    /// [`SplatGradTile::set`] opens them.
    #[must_use]
    pub fn at(column: usize, row: usize) -> SplatGradTile {
        let empty = SplatGradPixelRow {
            light: [1.0; TILE],
            blended_behind: [0.0; TILE],
            open: [0.0; TILE],
            d_color: [[0.0; TILE]; 3],
            counts: SplatCounts::default(),
        };
        SplatGradTile {
            rows: [empty; TILE],
            first: [column as f32 + 0.5, row as f32 + 0.5],
            origin: [column, row],
        }
    }

    /// Opens a pixel. `d_color` is the cotangent of its color. `shown` is the sum of the pixel's
    /// color channels and transmittance, each multiplied by its cotangent.
    pub fn set(&mut self, column: usize, row: usize, d_color: [f32; 3], shown: f32) {
        let row = &mut self.rows[row];
        for (to, from) in row.d_color.iter_mut().zip(d_color) {
            to[column] = from;
        }
        row.blended_behind[column] = shown;
        row.open[column] = 1.0;
    }

    /// True if no pixel of the tile takes further splats.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.rows.iter().all(|row| row.open == [0.0; TILE])
    }
}

simd_dispatch!(
    /// Adds the tile's gradient contributions of the next splat to `sums`.
    pub fn accumulate(tile: &mut SplatGradTile, splat: &RasterSplat, limits: BlendLimits, sums: &mut SplatGradSums) = accumulate_body
);

simd_dispatch!(
    /// [`accumulate`] within an area, with the maximum numbers of splats of `limits`.
    pub fn accumulate_within(tile: &mut SplatGradTile, splat: &RasterSplat, area: PixelArea, limits: BlendLimits, sums: &mut SplatGradSums) = within_body
);

/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn accumulate_body<S: Simd>(
    tile: &mut SplatGradTile,
    splat: &RasterSplat,
    limits: BlendLimits,
    sums: &mut SplatGradSums,
) {
    // SAFETY: the caller guarantees the instructions of `S`.
    unsafe { body::<S, false>(tile, splat, PixelArea::ALL, limits, sums) }
}

/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn within_body<S: Simd>(
    tile: &mut SplatGradTile,
    splat: &RasterSplat,
    area: PixelArea,
    limits: BlendLimits,
    sums: &mut SplatGradSums,
) {
    let [first, top] = tile.origin;
    for (i, row) in tile.rows.iter_mut().enumerate() {
        let mask = area.row_mask(first, top + i);
        row.counts.enter(&mask, &mut row.open, limits.max_entries);
    }
    // SAFETY: the caller guarantees the instructions of `S`.
    unsafe { body::<S, true>(tile, splat, area, limits, sums) }
}

/// Adds the contributions of a tile; with `LIMITED`, within an area and with counts.
///
/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn body<S: Simd, const LIMITED: bool>(
    tile: &mut SplatGradTile,
    splat: &RasterSplat,
    area: PixelArea,
    limits: BlendLimits,
    sums: &mut SplatGradSums,
) {
    let origin = tile.origin;
    let [x, y, xx, xy, yy, opacity, ..] = *splat;
    let color = [splat[6], splat[7], splat[8]];
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
    // Sums are accumulated per pixel column, so that the compiler vectorizes them.
    let mut columns = [[0.0; TILE]; 9];
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
        let mut d_power = [0.0; TILE];
        for (k, &dx) in dx.iter().enumerate() {
            let power = -0.5 * (xx * dx * dx + yy * dy * dy) - xy * dx * dy;
            let full = opacity * exp::<S>(power);
            let covered = full.min(limits.greatest_alpha);
            let mut counts = power <= 0.0 && covered >= limits.min_alpha;
            if LIMITED {
                counts &= mask[k] > 0.0;
            }
            let alpha = if counts { covered } else { 0.0 };
            let light = row.light[k];
            let next = light * (1.0 - alpha);
            let mut ends = counts && next < limits.min_transmittance;
            if LIMITED {
                ends |= counts && row.counts.steps[k] >= limits.max_steps;
            }
            row.open[k] = if ends { 0.0 } else { row.open[k] };
            let is_drawn = counts && row.open[k] > 0.0;
            if LIMITED {
                row.counts.steps[k] += u32::from(is_drawn);
            }
            let shown = row.d_color[0][k] * color[0]
                + row.d_color[1][k] * color[1]
                + row.d_color[2][k] * color[2];
            let own = alpha * light;
            let rest = row.blended_behind[k] - own * shown;
            let d_alpha = light * shown - rest / (1.0 - alpha);
            weight[k] = if is_drawn { own } else { 0.0 };
            let passes = is_drawn && full <= limits.greatest_alpha;
            d_power[k] = if passes { full * d_alpha } else { 0.0 };
            row.blended_behind[k] = if is_drawn {
                rest
            } else {
                row.blended_behind[k]
            };
            row.light[k] = if is_drawn { next } else { light };
        }
        for (k, (&v, &dx)) in d_power.iter().zip(&dx).enumerate() {
            columns[0][k] += v;
            columns[1][k] += v * dx;
            columns[2][k] += v * dy;
            columns[3][k] += v * dx * dx;
            columns[4][k] += v * dx * dy;
            columns[5][k] += v * dy * dy;
            for (column, d_color) in columns[6..].iter_mut().zip(&row.d_color) {
                column[k] += weight[k] * d_color[k];
            }
        }
    }
    for (sum, column) in sums.iter_mut().zip(&columns) {
        *sum += column.iter().sum::<f32>();
    }
}

/// Cotangents of a splat's position, conic, opacity and color, from its sums.
#[must_use]
pub fn cotangents(splat: &RasterSplat, sums: &SplatGradSums) -> RasterSplat {
    let [_, _, xx, xy, yy, opacity, ..] = *splat;
    let [power, x, y, square_x, product, square_y, r, g, b] = *sums;
    // Alpha is `opacity * exp(power)`, so `d_opacity = d_power / opacity`.
    let d_opacity = if power == 0.0 { 0.0 } else { power / opacity };
    [
        xx * x + xy * y,
        xy * x + yy * y,
        -0.5 * square_x,
        -product,
        -0.5 * square_y,
        d_opacity,
        r,
        g,
        b,
    ]
}
