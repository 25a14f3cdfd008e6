//! Options of Gaussian splatting: tiles, and the splats that tiles and pixels draw.

use super::{MIN_ALPHA, MIN_TRANSMITTANCE, TILE};
use crate::attr::FloatAttr;
use crate::error::TypeError;

/// Maximum side of a tile in pixels.
pub const MAX_TILE: usize = 1024;
/// The radius of a splat in standard deviations, unless an option sets another one.
pub const RADIUS_SCALE: f64 = 3.0;
/// Maximum radius of a splat in standard deviations.
const MAX_RADIUS_SCALE: f64 = 1e3;

/// Options of projection and rasterization. `None` stands for the value in parentheses.
///
/// ```
/// use tercet_ir::ops::splat::{SplatOptions, SplatSceneOperands};
/// use tercet_ir::{DType, Graph, Type};
/// # let mut g = Graph::new();
/// # let f32s = |shape: &[usize]| Type::new(DType::F32, shape);
/// # let scene = SplatSceneOperands {
/// #     positions: g.input("positions", f32s(&[9, 3]))?,
/// #     log_scales: g.input("log_scales", f32s(&[9, 3]))?,
/// #     rotations: g.input("rotations", f32s(&[9, 4]))?,
/// #     opacities: g.input("opacities", f32s(&[9]))?,
/// #     colors: g.input("colors", f32s(&[9, 3]))?,
/// # };
/// # let camera = g.input("camera", f32s(&[25]))?;
/// let options = SplatOptions { tile_size: Some(8), ..SplatOptions::default() };
/// let image = g.gaussian_splat_render_with(&scene, camera, [64, 48], options)?;
/// assert_eq!(g.ty(image).to_string(), "f32[48, 64, 3]");
/// # Ok::<(), tercet_ir::OpError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SplatOptions {
    /// Side of a tile in pixels (16).
    pub tile_size: Option<usize>,
    /// Radius of a splat in standard deviations (3): it reaches the tiles within its radius.
    pub radius_scale: Option<f64>,
    /// Minimum alpha of a splat in a pixel (1/255).
    pub alpha_cutoff: Option<f64>,
    /// Minimum transmittance of a pixel (1e-4).
    pub transmittance_threshold: Option<f64>,
    /// Maximum number of splats that a pixel blends (no limit).
    pub max_splat_steps: Option<usize>,
    /// Maximum number of splats in the list of a tile (no limit); the nearest are kept.
    pub max_list_entries: Option<usize>,
}

/// The limits of rasterization, with all options resolved.
///
/// ```
/// use tercet_ir::ops::GaussianSplatRasterize;
/// use tercet_ir::ops::splat::{RasterLimits, SplatOptions};
/// let op = GaussianSplatRasterize::new([64, 48], SplatOptions::default());
/// let limits: RasterLimits = op.limits();
/// assert_eq!((limits.tile_size, limits.max_splat_steps), (16, None));
/// assert_eq!(limits.alpha_cutoff, 1.0 / 255.0);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RasterLimits {
    /// Side of a tile in pixels.
    pub tile_size: usize,
    /// Minimum alpha of a splat in a pixel; below it the splat is skipped.
    pub alpha_cutoff: f64,
    /// Minimum transmittance; a pixel stops before the splat that would reduce its transmittance
    /// below this value.
    pub transmittance_threshold: f64,
    /// Maximum number of splats that a pixel blends.
    pub max_splat_steps: Option<usize>,
    /// Maximum number of splats that cover the tile of a pixel.
    pub max_list_entries: Option<usize>,
}

impl RasterLimits {
    /// True if tiles have another side than [`TILE`], or the splats of a tile or pixel are limited.
    /// Kernels compile their fast path for all other operators.
    pub fn is_special(&self) -> bool {
        let has_limits = self.max_splat_steps.is_some() || self.max_list_entries.is_some();
        self.tile_size != TILE || has_limits
    }
}

impl SplatOptions {
    pub(super) fn limits(&self) -> RasterLimits {
        RasterLimits {
            tile_size: self.tile_size.unwrap_or(TILE),
            alpha_cutoff: self.alpha_cutoff.unwrap_or(MIN_ALPHA),
            transmittance_threshold: self.transmittance_threshold.unwrap_or(MIN_TRANSMITTANCE),
            max_splat_steps: self.max_splat_steps,
            max_list_entries: self.max_list_entries,
        }
    }

    /// Checks all options.
    pub(super) fn check(&self) -> Result<(), TypeError> {
        let bad = |name, reason| Err(TypeError::Attr { name, reason });
        let tile = self.tile_size.unwrap_or(TILE);
        if !(1..=MAX_TILE).contains(&tile) {
            let reason = format!("{tile} pixels; expected 1 to {MAX_TILE}");
            return bad("tile_size", reason);
        }
        let radius = self.radius_scale.unwrap_or(RADIUS_SCALE);
        if !(radius > 0.0 && radius <= MAX_RADIUS_SCALE) {
            let reason = format!(
                "{radius} standard deviations; expected more than 0, at most {MAX_RADIUS_SCALE}"
            );
            return bad("radius_scale", reason);
        }
        let limits = self.limits();
        if !(0.0..1.0).contains(&limits.alpha_cutoff) {
            let reason = format!("{}; expected 0 <= x < 1", limits.alpha_cutoff);
            return bad("alpha_cutoff", reason);
        }
        if !(0.0..1.0).contains(&limits.transmittance_threshold) {
            let reason = format!("{}; expected 0 <= x < 1", limits.transmittance_threshold);
            return bad("transmittance_threshold", reason);
        }
        for (name, count) in [
            ("max_splat_steps", self.max_splat_steps),
            ("max_list_entries", self.max_list_entries),
        ] {
            if count.is_some_and(|n| n == 0 || n > i32::MAX as usize) {
                let reason = format!(
                    "{} splats; expected 1 to {}, or `none` for all",
                    count.unwrap_or(0),
                    i32::MAX
                );
                return bad(name, reason);
            }
        }
        Ok(())
    }
}

/// An optional number as an attribute.
pub(super) fn attr(x: Option<f64>) -> Option<FloatAttr> {
    x.map(FloatAttr)
}
