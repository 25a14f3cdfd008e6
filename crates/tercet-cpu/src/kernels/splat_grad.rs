//! What a tile of an image does to the cotangents of its splats: each walked front to back, as they are drawn, row by
//! row of pixels.

use super::simd::{Simd, simd_dispatch};
use super::splat::{Limits, Splat, TILE, reach};
use super::vmath::scalar::exp;

/// Sums over pixels for a splat: of the cotangents of its powers alone, times the way to its place in x and y and
/// their products `xx xy yy`, and of the cotangent of its colour.
pub type Sums = [f32; 9];

/// A row of pixels of a tile: the light that is left, what is behind the splats so far times the cotangents, and
/// cotangents of colours. Pixels that have ended have `open` 0, others 1.
#[derive(Clone, Copy, Debug)]
struct Row {
    light: [f32; TILE],
    rest: [f32; TILE],
    open: [f32; TILE],
    d_color: [[f32; TILE]; 3],
}

/// A tile while its splats are walked.
#[derive(Clone, Debug)]
pub struct TileGrad {
    rows: [Row; TILE],
    /// The centre of its first pixel.
    first: [f32; 2],
}

impl TileGrad {
    /// A tile whose first pixel is in this column and row of the image. Pixels have ended until they are set.
    #[must_use]
    pub fn at(column: usize, row: usize) -> TileGrad {
        let empty = Row {
            light: [1.0; TILE],
            rest: [0.0; TILE],
            open: [0.0; TILE],
            d_color: [[0.0; TILE]; 3],
        };
        TileGrad {
            rows: [empty; TILE],
            first: [column as f32 + 0.5, row as f32 + 0.5],
        }
    }

    /// Sets a pixel: the cotangent of its colour, and what it shows and lets through times their cotangents.
    pub fn set(&mut self, column: usize, row: usize, d_color: [f32; 3], shown: f32) {
        let row = &mut self.rows[row];
        for (to, from) in row.d_color.iter_mut().zip(d_color) {
            to[column] = from;
        }
        row.rest[column] = shown;
        row.open[column] = 1.0;
    }

    /// True if every pixel has ended.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.rows.iter().all(|row| row.open == [0.0; TILE])
    }
}

simd_dispatch!(
    /// Adds what the tile does to the cotangents of the next splat.
    pub fn walk(tile: &mut TileGrad, splat: &Splat, limits: Limits, sums: &mut Sums) = body
);

/// # Safety
/// Needs the instructions of `S`.
#[inline(always)]
unsafe fn body<S: Simd>(tile: &mut TileGrad, splat: &Splat, limits: Limits, sums: &mut Sums) {
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
    // By column of pixels, so that sums are made as vectors are.
    let mut columns = [[0.0; TILE]; 9];
    for (i, row) in tile.rows.iter_mut().enumerate() {
        let dy = tile.first[1] + i as f32 - y;
        if dy.abs() > reach[1] {
            continue;
        }
        let mut weight = [0.0; TILE];
        let mut d_power = [0.0; TILE];
        for (k, &dx) in dx.iter().enumerate() {
            let power = -0.5 * (xx * dx * dx + yy * dy * dy) - xy * dx * dy;
            let full = opacity * exp::<S>(power);
            let covered = full.min(limits.greatest_alpha);
            let counts = power <= 0.0 && covered >= limits.least_alpha;
            let alpha = if counts { covered } else { 0.0 };
            let light = row.light[k];
            let next = light * (1.0 - alpha);
            let ends = counts && next < limits.least_light;
            row.open[k] = if ends { 0.0 } else { row.open[k] };
            let is_drawn = counts && row.open[k] > 0.0;
            let shown = row.d_color[0][k] * color[0]
                + row.d_color[1][k] * color[1]
                + row.d_color[2][k] * color[2];
            let own = alpha * light;
            let rest = row.rest[k] - own * shown;
            let d_alpha = light * shown - rest / (1.0 - alpha);
            weight[k] = if is_drawn { own } else { 0.0 };
            let passes = is_drawn && full <= limits.greatest_alpha;
            d_power[k] = if passes { full * d_alpha } else { 0.0 };
            row.rest[k] = if is_drawn { rest } else { row.rest[k] };
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

/// The cotangents of a splat's place, conic, opacity and colour from its sums.
#[must_use]
pub fn cotangents(splat: &Splat, sums: &Sums) -> Splat {
    let [_, _, xx, xy, yy, opacity, ..] = *splat;
    let [power, x, y, square_x, product, square_y, r, g, b] = *sums;
    // The power is of opacity exp(power), whose logarithm has a slope of 1 by the power.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::SimdLevel;

    const LIMITS: Limits = Limits {
        least_alpha: 1.0 / 255.0,
        greatest_alpha: 0.99,
        least_light: 1e-4,
    };

    /// The slope of a pixel's red by the opacity of the first of two splats: by the definition, and by every level.
    #[test]
    fn every_level_gives_slopes_by_the_definition() {
        let front: Splat = [3.5, 2.5, 0.1, 0.02, 0.2, 0.5, 1.0, 0.5, 0.25];
        let back: Splat = [4.0, 3.0, 0.2, -0.05, 0.1, 0.75, 0.25, 1.0, 0.5];
        let red = |opacity: f64| {
            let alpha = |s: &Splat, opacity: f64| {
                let s = s.map(f64::from);
                let (dx, dy) = (5.5 - s[0], 4.5 - s[1]);
                opacity * (-0.5 * (s[2] * dx * dx + s[4] * dy * dy) - s[3] * dx * dy).exp()
            };
            let (a, b) = (alpha(&front, opacity), alpha(&back, 0.75));
            a + (1.0 - a) * b * 0.25
        };
        let want = (red(0.5 + 1e-6) - red(0.5 - 1e-6)) / 2e-6;
        for &level in SimdLevel::available() {
            let mut tile = TileGrad::at(0, 0);
            tile.set(5, 4, [1.0, 0.0, 0.0], red(0.5) as f32);
            let mut sums = [[0.0; 9]; 2];
            for (splat, sums) in [front, back].iter().zip(&mut sums) {
                walk(level, &mut tile, splat, LIMITS, sums);
            }
            let got = cotangents(&front, &sums[0])[5];
            let near = (f64::from(got) - want).abs() < 1e-5;
            assert!(near, "{}: {got} {want}", level.name());
            assert!(!tile.is_done());
        }
    }
}
