//! The meaning of `GaussianSplatRasterize`: every pixel walks the splats of its tile, front to back.

use super::project::{DEPTH_AT, FOOTPRINT_LEN, SPLAT_LEN, TILE};
use crate::ops::sort::sorted_order;
use crate::scalar::Scalar;

/// A splat that covers less of a pixel is left out there.
pub const LEAST_ALPHA: f64 = 1.0 / 255.0;
/// No splat covers more of a pixel.
pub const GREATEST_ALPHA: f64 = 0.99;
/// A pixel ends before the splat that would leave less light than this.
pub const LEAST_TRANSMITTANCE: f64 = 1e-4;

/// How much of the pixel in column `x` and row `y` a splat covers; `None` where it is left out.
pub(super) fn alpha(splat: &[f64], x: usize, y: usize) -> Option<f64> {
    let (dx, dy) = (x as f64 + 0.5 - splat[0], y as f64 + 0.5 - splat[1]);
    let along = splat[2] * dx * dx + splat[4] * dy * dy;
    let power = -0.5 * along - splat[3] * dx * dy;
    let alpha = (splat[5] * power.exp()).min(GREATEST_ALPHA);
    (power <= 0.0 && alpha >= LEAST_ALPHA).then_some(alpha)
}

/// The splats in the order in which they are drawn: by depth, equal ones by index, NaN last. Left out
/// are those without a finite place, conic and opacity.
pub(super) fn drawn(splats: &[f64]) -> Vec<usize> {
    let count = splats.len() / SPLAT_LEN;
    let own = |i: usize| &splats[i * SPLAT_LEN..][..SPLAT_LEN];
    let mut order: Vec<usize> = (0..count)
        .filter(|&i| own(i)[..6].iter().all(|x| x.is_finite()))
        .collect();
    let depth = |i: usize| Scalar::F(own(i)[DEPTH_AT]);
    order.sort_by(|&a, &b| sorted_order(depth(a), depth(b), false));
    order
}

/// True if a splat is drawn in the tile of a pixel.
pub(super) fn covers(footprint: &[i64], x: usize, y: usize) -> bool {
    let (x, y) = ((x / TILE) as i64, (y / TILE) as i64);
    footprint[0] <= x && x < footprint[2] && footprint[1] <= y && y < footprint[3]
}

/// Shows the splats that are drawn at a pixel, front to back, with what each covers and the light that reaches it;
/// gives the light that is left.
pub(super) fn walk(
    (splats, footprints, order): (&[f64], &[i64], &[usize]),
    [x, y]: [usize; 2],
    mut visit: impl FnMut(usize, f64, f64),
) -> f64 {
    let mut light = 1.0;
    for &i in order {
        if !covers(&footprints[i * FOOTPRINT_LEN..], x, y) {
            continue;
        }
        let Some(alpha) = alpha(&splats[i * SPLAT_LEN..][..SPLAT_LEN], x, y) else {
            continue;
        };
        let next = light * (1.0 - alpha);
        if next < LEAST_TRANSMITTANCE {
            break;
        }
        visit(i, alpha, light);
        light = next;
    }
    light
}

/// The image `[height, width, 3]`, and what is left of the light of its background `[height, width]`.
pub(super) fn rasterize(
    splats: &[f64],
    footprints: &[i64],
    background: &[f64],
    [width, height]: [usize; 2],
) -> (Vec<f64>, Vec<f64>) {
    let order = drawn(splats);
    let (mut image, mut left) = (Vec::new(), Vec::new());
    for y in 0..height {
        for x in 0..width {
            let mut color = [0.0; 3];
            let light = walk((splats, footprints, &order), [x, y], |i, alpha, light| {
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
