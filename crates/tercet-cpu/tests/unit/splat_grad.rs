//! The backward pass of Gaussian splatting.

use tercet_cpu::kernels::SimdLevel;
use tercet_cpu::kernels::splat::RasterSplat;
use tercet_cpu::kernels::splat_grad::{SplatGradTile, accumulate, cotangents};

use crate::splat::LIMITS;

/// Derivative of a pixel's red by the opacity of the first of two splats: definition compared
/// with every SIMD level.
#[test]
fn every_level_gives_slopes_by_the_definition() {
    let front: RasterSplat = [3.5, 2.5, 0.1, 0.02, 0.2, 0.5, 1.0, 0.5, 0.25];
    let back: RasterSplat = [4.0, 3.0, 0.2, -0.05, 0.1, 0.75, 0.25, 1.0, 0.5];
    let red = |opacity: f64| {
        let alpha = |s: &RasterSplat, opacity: f64| {
            let s = s.map(f64::from);
            let (dx, dy) = (5.5 - s[0], 4.5 - s[1]);
            opacity * (-0.5 * (s[2] * dx * dx + s[4] * dy * dy) - s[3] * dx * dy).exp()
        };
        let (a, b) = (alpha(&front, opacity), alpha(&back, 0.75));
        a + (1.0 - a) * b * 0.25
    };
    let want = (red(0.5 + 1e-6) - red(0.5 - 1e-6)) / 2e-6;
    for &level in SimdLevel::available() {
        let mut tile = SplatGradTile::at(0, 0);
        tile.set(5, 4, [1.0, 0.0, 0.0], red(0.5) as f32);
        let mut sums = [[0.0; 9]; 2];
        for (splat, sums) in [front, back].iter().zip(&mut sums) {
            accumulate(level, &mut tile, splat, LIMITS, sums);
        }
        let got = cotangents(&front, &sums[0])[5];
        let near = (f64::from(got) - want).abs() < 1e-5;
        assert!(near, "{}: {got} {want}", level.name());
        assert!(!tile.is_done());
    }
}
