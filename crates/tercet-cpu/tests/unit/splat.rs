//! The rasterizer of Gaussian splatting.

use tercet_cpu::kernels::SimdLevel;
use tercet_cpu::kernels::splat::{BlendLimits, RasterSplat, SplatTile, TILE, blend};

pub(super) const LIMITS: BlendLimits = BlendLimits {
    min_alpha: 1.0 / 255.0,
    greatest_alpha: 0.99,
    min_transmittance: 1e-4,
    max_steps: u32::MAX,
    max_entries: u32::MAX,
};

/// Reference: one pixel by the definition.
fn pixel(splats: &[RasterSplat], x: f64, y: f64) -> ([f64; 3], f64) {
    let (mut color, mut light) = ([0.0; 3], 1.0);
    for s in splats.iter().map(|s| s.map(f64::from)) {
        let (dx, dy) = (x + 0.5 - s[0], y + 0.5 - s[1]);
        let power = -0.5 * (s[2] * dx * dx + s[4] * dy * dy) - s[3] * dx * dy;
        let alpha = (s[5] * power.exp()).min(0.99);
        if power > 0.0 || alpha < 1.0 / 255.0 {
            continue;
        }
        if light * (1.0 - alpha) < 1e-4 {
            break;
        }
        color = [0, 1, 2].map(|c| color[c] + s[6 + c] * alpha * light);
        light *= 1.0 - alpha;
    }
    (color, light)
}

#[test]
fn every_level_draws_by_the_definition() {
    let mut splats: Vec<RasterSplat> = (0..9)
        .map(|i| {
            let t = i as f32;
            let place = [20.0 + 1.9 * t, 30.0 + 2.3 * t];
            let conic = [0.11 + 0.07 * t, 0.05, 0.61 - 0.05 * t];
            [
                place[0],
                place[1],
                conic[0],
                conic[1],
                conic[2],
                1.0 - 0.11 * t,
                0.1 * t,
                1.0 - 0.1 * t,
                0.5,
            ]
        })
        .collect();
    // One splat has too little alpha to be visible; other splats close a row of pixels.
    splats.push([25.0, 35.0, 1.0, 0.0, 1.0, 0.003, 9.0, 9.0, 9.0]);
    splats.extend([[24.0, 37.5, 0.01, 0.0, 50.0, 0.97, 1.0, 0.5, 0.25]; 5]);
    for &level in SimdLevel::available() {
        let mut tile = SplatTile::at(16, 32);
        splats
            .iter()
            .for_each(|s| blend(level, &mut tile, s, LIMITS));
        for (x, y) in (0..TILE).flat_map(|y| (0..TILE).map(move |x| (x, y))) {
            let (got, light) = tile.pixel(x, y);
            let (want, left) = pixel(&splats, (16 + x) as f64, (32 + y) as f64);
            let near = |a: f32, b: f64| (f64::from(a) - b).abs() < 1e-5;
            let same = got.iter().zip(want).all(|(a, b)| near(*a, b)) && near(light, left);
            assert!(same, "{} {x} {y}: {got:?} {want:?}", level.name());
        }
        assert!(!tile.is_done());
    }
}
