//! The reference of `GaussianSplatRasterize`: every pixel blends the splats of its tile, front to
//! back.

use super::RasterLimits;
use super::project::{DEPTH_AT, FOOTPRINT_LEN, SPLAT_LEN};
use crate::ops::sort::sorted_order;
use crate::scalar::Scalar;

/// Minimum alpha of a splat in a pixel, unless an option sets another one.
pub const MIN_ALPHA: f64 = 1.0 / 255.0;
/// Maximum alpha of a splat in a pixel.
pub const GREATEST_ALPHA: f64 = 0.99;
/// Minimum transmittance of a pixel, unless an option sets another one.
pub const MIN_TRANSMITTANCE: f64 = 1e-4;

/// The alpha of a splat in the pixel in column `x` and row `y`; `None` if it is skipped.
pub fn alpha(splat: &[f64], x: usize, y: usize, cutoff: f64) -> Option<f64> {
    let (dx, dy) = (x as f64 + 0.5 - splat[0], y as f64 + 0.5 - splat[1]);
    let along = splat[2] * dx * dx + splat[4] * dy * dy;
    let power = -0.5 * along - splat[3] * dx * dy;
    let alpha = (splat[5] * power.exp()).min(GREATEST_ALPHA);
    (power <= 0.0 && alpha >= cutoff).then_some(alpha)
}

/// The indices of the splats in drawing order: by depth, ties by index, NaN last. Splats without a
/// finite position, conic and opacity are excluded.
pub fn drawn(splats: &[f64]) -> Vec<usize> {
    let count = splats.len() / SPLAT_LEN;
    let own = |i: usize| &splats[i * SPLAT_LEN..][..SPLAT_LEN];
    let mut order: Vec<usize> = (0..count)
        .filter(|&i| own(i)[..6].iter().all(|x| x.is_finite()))
        .collect();
    let depth = |i: usize| Scalar::F(own(i)[DEPTH_AT]);
    order.sort_by(|&a, &b| sorted_order(depth(a), depth(b), false));
    order
}

/// True if a splat covers the tile of a pixel.
pub fn covers(footprint: &[i64], x: usize, y: usize, tile: usize) -> bool {
    let (x, y) = ((x / tile) as i64, (y / tile) as i64);
    footprint[0] <= x && x < footprint[2] && footprint[1] <= y && y < footprint[3]
}

/// Calls `f` for each splat that is drawn at a pixel, front to back, with its alpha and the
/// transmittance in front of it. Returns the final transmittance.
pub(super) fn for_each_covering_splat(
    (splats, footprints, order): (&[f64], &[i64], &[usize]),
    [x, y]: [usize; 2],
    limits: &RasterLimits,
    mut visit: impl FnMut(usize, f64, f64),
) -> f64 {
    let mut light = 1.0;
    let covering = order
        .iter()
        .filter(|&&i| covers(&footprints[i * FOOTPRINT_LEN..], x, y, limits.tile_size));
    let mut steps = 0;
    for &i in covering.take(limits.max_list_entries.unwrap_or(usize::MAX)) {
        let own = &splats[i * SPLAT_LEN..][..SPLAT_LEN];
        let Some(alpha) = alpha(own, x, y, limits.alpha_cutoff) else {
            continue;
        };
        let next = light * (1.0 - alpha);
        if next < limits.transmittance_threshold || limits.max_splat_steps == Some(steps) {
            break;
        }
        visit(i, alpha, light);
        light = next;
        steps += 1;
    }
    light
}

/// The image `[height, width, 3]` and the transmittance `[height, width]`.
pub(super) fn rasterize(
    splats: &[f64],
    footprints: &[i64],
    background: &[f64],
    [width, height]: [usize; 2],
    limits: &RasterLimits,
) -> (Vec<f64>, Vec<f64>) {
    let order = drawn(splats);
    let (mut image, mut left) = (Vec::new(), Vec::new());
    for y in 0..height {
        for x in 0..width {
            let mut color = [0.0; 3];
            let scene = (splats, footprints, &order[..]);
            let light = for_each_covering_splat(scene, [x, y], limits, |i, alpha, light| {
                let own = &splats[i * SPLAT_LEN..][6..9];
                for (sum, own) in color.iter_mut().zip(own) {
                    *sum += own * alpha * light;
                }
            });
            image.extend([0, 1, 2].map(|c| color[c] + light * background[c]));
            left.push(light);
        }
    }
    (image, left)
}
