//! 3-D Gaussian splatting (Kerbl et al. 2023, "3D Gaussian Splatting for Real-Time Radiance Field
//! Rendering"; EWA splatting, Zwicker et al. 2001), forward. `GaussianSplatPrepare` projects,
//! `GaussianSplatRasterize` draws, and `GaussianSplatRender` does both.
//!
//! **Static sizes.** The number of splats in a tile depends on data, and so would the size of a
//! list of tile-splat pairs. This implementation stores no list of tile-splat pairs. It sorts the
//! splats once by depth, and each tile iterates over that order and selects the splats that reach
//! it. The order within a tile is the same (by depth, ties by index), the result is deterministic,
//! and every size is known at compile time.
//!
//! **Discontinuities.** An image is not a continuous function of its scene:
//!
//! - A splat is assigned to whole tiles.
//! - A splat contributes to pixels that it covers with an alpha of at least `alpha_cutoff`.
//! - A pixel stops before its transmittance falls below `transmittance_threshold`.
//!
//! Executors compute these thresholds in F32. If a number is within rounding error of a threshold,
//! one executor may draw a splat that another omits. The difference at the alpha threshold is up to
//! about one step of an 8-bit image. At a tile boundary the difference is the part of a splat
//! beyond three standard deviations (at most 1.1 %), with the default `radius_scale`. The test
//! cases keep a distance from
//! thresholds, which a test measures. Away from thresholds the tolerance class holds.

mod options;
pub(crate) mod project;
pub(crate) mod raster;
mod raster_grad;

use options::attr;
pub use options::{MAX_TILE, RADIUS_SCALE, RasterLimits, SplatOptions};
pub use project::{
    BACKGROUND_AT, CAMERA_LEN, DEPTH_AT, DILATION, FAR_OUT, FOOTPRINT_LEN, Gaussian, MIN_DEPTH,
    MIN_ROTATION_NORM, PinholeCamera, ProjectedGaussian, ProjectionFloat, ProjectionImage,
    SPLAT_LEN, TILE,
};
pub use raster::{GREATEST_ALPHA, MIN_ALPHA, MIN_TRANSMITTANCE};
pub use raster_grad::GaussianSplatRasterizeGrad;

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Dim, Shape, Tensor, TensorType, Type};

use crate::attr::FloatAttr;
use crate::attrs;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{exactly, expect_dtype, expect_equal, expect_rank, expect_same_dtype};

/// Maximum width and height of an image: tile indices fit 16 bits, and pixel centres are exact in
/// F32.
pub const MAX_SIDE: usize = 1 << 15;

/// Narrower floats cannot represent positions in pixels.
const DTYPES: &[DType] = &[DType::F32, DType::F64];

attrs! {
    /// Projection of Gaussians to a camera's image. The operands are `positions [N,3]`, `log_scales
    /// [N,3]`, quaternions `rotations [N,4]`, `opacities [N]` before their sigmoid, and `colors`.
    /// Quaternions are `w x y z` of any length; zeros mean no rotation. Colours are `[N,3]`, or
    /// coefficients `[N,K,3]` of real spherical harmonics of degree 0 to 3 (`K` of 1, 4, 9, 16),
    /// which give `max(sum + 0.5, 0)`.
    ///
    /// `camera [25]` contains the view matrix, the focal lengths and principal point in pixels, the
    /// near and far depth, and the background. The view matrix maps world to camera coordinates (x
    /// right, y down, z forward). The view matrix has four rows, a rotation and a translation; the
    /// last row is not read. Pixel `i` has its centre at `i + 0.5`.
    ///
    /// Results: `splats [N,10]` and `footprints I32[N,5]`. A splat is its position in pixels, the
    /// conic `xx xy yy`, opacity, colour and depth. The conic is the inverse of the variance in
    /// square pixels, with 0.3 added to both axes. A footprint has the first tile of `tile_size` x
    /// `tile_size` pixels and the tile after the last one, each in x and y. Its last element is the
    /// radius of `radius_scale` standard deviations in pixels.
    ///
    /// A Gaussian is culled if it is not strictly between the near depth (at least 1e-6) and the
    /// far depth, or reaches no tile. So is one with a non-finite number, or beyond 2^40 pixels.
    /// Culled splats are zeros with infinite depth.
    ///
    /// ```
    /// use tercet_ir::ops::splat::SplatSceneOperands;
    /// use tercet_ir::{DType, Graph, Type};
    /// let mut g = Graph::new();
    /// # let f32s = |shape: &[usize]| Type::new(DType::F32, shape);
    /// # let scene = SplatSceneOperands {
    /// #     positions: g.input("positions", f32s(&[9, 3]))?,
    /// #     log_scales: g.input("log_scales", f32s(&[9, 3]))?,
    /// #     rotations: g.input("rotations", f32s(&[9, 4]))?,
    /// #     opacities: g.input("opacities", f32s(&[9]))?,
    /// #     colors: g.input("colors", f32s(&[9, 3]))?,
    /// # };
    /// # let camera = g.input("camera", f32s(&[25]))?;
    /// let splats = g.gaussian_splat_prepare(&scene, camera, [64, 48])?;
    /// assert_eq!(g.ty(splats).to_string(), "f32[9, 10]");
    /// assert_eq!(g.ty(splats.port(1)).to_string(), "i32[9, 5]");
    /// # Ok::<(), tercet_ir::OpError>(())
    /// ```
    pub struct GaussianSplatPrepare {
        /// The width of the image in pixels.
        pub width: usize,
        /// The height of the image in pixels.
        pub height: usize,
        /// The side of a tile in pixels; 16 if absent.
        pub tile_size: Option<usize>,
        /// The radius of a splat in standard deviations; 3 if absent.
        pub radius_scale: Option<FloatAttr>,
    }
}

attrs! {
    /// Rasterization: an image `[height, width, 3]` of `splats` and `footprints` from
    /// `GaussianSplatPrepare` over a `background [3]`, and the transmittance `[height, width]`.
    ///
    /// Each pixel blends the splats of its tile by depth, ties by index, with `alpha = min(opacity
    /// exp(-d^T conic d / 2), 0.99)`. Splats with an alpha below `alpha_cutoff` are skipped. The
    /// pixel stops before the splat that would reduce the transmittance below
    /// `transmittance_threshold`, after `max_splat_steps` blended splats, and after
    /// `max_list_entries` splats of its tile. Splats with a non-finite position, conic or opacity
    /// are not drawn.
    ///
    /// ```
    /// use tercet_ir::{DType, Graph, Type};
    /// let mut g = Graph::new();
    /// let splats = g.input("splats", Type::new(DType::F32, [9, 10]))?;
    /// let footprints = g.input("footprints", Type::new(DType::I32, [9, 5]))?;
    /// let background = g.input("background", Type::new(DType::F32, [3]))?;
    /// let image = g.gaussian_splat_rasterize(splats, footprints, background, [64, 48])?;
    /// assert_eq!(g.ty(image).to_string(), "f32[48, 64, 3]");
    /// assert_eq!(g.ty(image.port(1)).to_string(), "f32[48, 64]");
    /// # Ok::<(), tercet_ir::OpError>(())
    /// ```
    pub struct GaussianSplatRasterize {
        /// The width of the image in pixels.
        pub width: usize,
        /// The height of the image in pixels.
        pub height: usize,
        /// The side of a tile in pixels; 16 if absent.
        pub tile_size: Option<usize>,
        /// The minimum alpha of a splat in a pixel; 1/255 if absent.
        pub alpha_cutoff: Option<FloatAttr>,
        /// The minimum transmittance of a pixel; 1e-4 if absent.
        pub transmittance_threshold: Option<FloatAttr>,
        /// The maximum number of splats that a pixel blends.
        pub max_splat_steps: Option<usize>,
        /// The maximum number of splats in the list of a tile.
        pub max_list_entries: Option<usize>,
    }
}

attrs! {
    /// `GaussianSplatRasterize` of `GaussianSplatPrepare`, over the camera's background.
    ///
    /// ```
    /// use tercet_ir::ops::splat::SplatSceneOperands;
    /// use tercet_ir::{DType, Graph, Type};
    /// let mut g = Graph::new();
    /// # let f32s = |shape: &[usize]| Type::new(DType::F32, shape);
    /// # let scene = SplatSceneOperands {
    /// #     positions: g.input("positions", f32s(&[9, 3]))?,
    /// #     log_scales: g.input("log_scales", f32s(&[9, 3]))?,
    /// #     rotations: g.input("rotations", f32s(&[9, 4]))?,
    /// #     opacities: g.input("opacities", f32s(&[9]))?,
    /// #     colors: g.input("colors", f32s(&[9, 3]))?,
    /// # };
    /// # let camera = g.input("camera", f32s(&[25]))?;
    /// let image = g.gaussian_splat_render(&scene, camera, [64, 48])?;
    /// assert_eq!(g.ty(image).to_string(), "f32[48, 64, 3]");
    /// assert_eq!(g.ty(image.port(1)).to_string(), "f32[48, 64]");
    /// # Ok::<(), tercet_ir::OpError>(())
    /// ```
    pub struct GaussianSplatRender {
        /// The width of the image in pixels.
        pub width: usize,
        /// The height of the image in pixels.
        pub height: usize,
        /// The side of a tile in pixels; 16 if absent.
        pub tile_size: Option<usize>,
        /// The radius of a splat in standard deviations; 3 if absent.
        pub radius_scale: Option<FloatAttr>,
        /// The minimum alpha of a splat in a pixel; 1/255 if absent.
        pub alpha_cutoff: Option<FloatAttr>,
        /// The minimum transmittance of a pixel; 1e-4 if absent.
        pub transmittance_threshold: Option<FloatAttr>,
        /// The maximum number of splats that a pixel blends.
        pub max_splat_steps: Option<usize>,
        /// The maximum number of splats in the list of a tile.
        pub max_list_entries: Option<usize>,
    }
}

impl GaussianSplatPrepare {
    /// Projection to an image of `[width, height]` pixels; it reads the first two options.
    pub fn new([width, height]: [usize; 2], options: SplatOptions) -> GaussianSplatPrepare {
        GaussianSplatPrepare {
            width,
            height,
            tile_size: options.tile_size,
            radius_scale: attr(options.radius_scale),
        }
    }

    /// The sizes of the projection.
    pub fn image(&self) -> ProjectionImage {
        ProjectionImage {
            size: [self.width, self.height],
            tile_size: self.tile_size.unwrap_or(TILE),
            radius_scale: self.radius_scale.map_or(RADIUS_SCALE, |x| x.0),
        }
    }

    fn check(&self) -> Result<(), TypeError> {
        expect_image([self.width, self.height])?;
        let options = SplatOptions {
            tile_size: self.tile_size,
            radius_scale: self.radius_scale.map(|x| x.0),
            ..SplatOptions::default()
        };
        options.check()
    }
}

/// Functions of an operator with the attributes of rasterization.
macro_rules! raster_attrs {
    ($($Op:ident),*) => {$(
        impl $Op {
            /// The operator for an image of `[width, height]` pixels; it does not read
            /// `radius_scale`.
            pub fn new([width, height]: [usize; 2], options: SplatOptions) -> $Op {
                $Op {
                    width,
                    height,
                    tile_size: options.tile_size,
                    alpha_cutoff: attr(options.alpha_cutoff),
                    transmittance_threshold: attr(options.transmittance_threshold),
                    max_splat_steps: options.max_splat_steps,
                    max_list_entries: options.max_list_entries,
                }
            }

            /// The options, without `radius_scale`.
            pub fn options(&self) -> SplatOptions {
                SplatOptions {
                    tile_size: self.tile_size,
                    radius_scale: None,
                    alpha_cutoff: self.alpha_cutoff.map(|x| x.0),
                    transmittance_threshold: self.transmittance_threshold.map(|x| x.0),
                    max_splat_steps: self.max_splat_steps,
                    max_list_entries: self.max_list_entries,
                }
            }

            /// The options, resolved.
            pub fn limits(&self) -> RasterLimits {
                self.options().limits()
            }

            fn check(&self) -> Result<(), TypeError> {
                expect_image([self.width, self.height])?;
                self.options().check()
            }
        }
    )*};
}
raster_attrs!(GaussianSplatRasterize, GaussianSplatRasterizeGrad);

impl GaussianSplatRender {
    /// Rendering of an image of `[width, height]` pixels.
    pub fn new([width, height]: [usize; 2], options: SplatOptions) -> GaussianSplatRender {
        GaussianSplatRender {
            width,
            height,
            tile_size: options.tile_size,
            radius_scale: attr(options.radius_scale),
            alpha_cutoff: attr(options.alpha_cutoff),
            transmittance_threshold: attr(options.transmittance_threshold),
            max_splat_steps: options.max_splat_steps,
            max_list_entries: options.max_list_entries,
        }
    }

    /// The options of projection and rasterization.
    pub fn options(&self) -> SplatOptions {
        SplatOptions {
            tile_size: self.tile_size,
            radius_scale: self.radius_scale.map(|x| x.0),
            alpha_cutoff: self.alpha_cutoff.map(|x| x.0),
            transmittance_threshold: self.transmittance_threshold.map(|x| x.0),
            max_splat_steps: self.max_splat_steps,
            max_list_entries: self.max_list_entries,
        }
    }
}

fn expect_side(name: &'static str, side: usize) -> Result<(), TypeError> {
    if side <= MAX_SIDE {
        return Ok(());
    }
    let reason = format!("{side} pixels; expected at most {MAX_SIDE}");
    Err(TypeError::Attr { name, reason })
}

fn expect_image([width, height]: [usize; 2]) -> Result<(), TypeError> {
    expect_side("width", width)?;
    expect_side("height", height)
}

/// Checks that an operand has this shape.
fn expect_sizes(name: &'static str, ty: &Type, sizes: &[&Dim]) -> Result<(), TypeError> {
    expect_rank(name, ty, sizes.len())?;
    let axes = ty.shape.iter().zip(sizes).enumerate();
    axes.into_iter().try_for_each(|(axis, (own, want))| {
        expect_equal(&format!("axis {axis} of {name}"), own, want)
    })
}

/// The number of Gaussians, after checking that the operands match.
fn expect_scene(operands: &[&Type]) -> Result<Dim, TypeError> {
    const NAMES: [&str; 6] = [
        "positions",
        "log_scales",
        "rotations",
        "opacities",
        "colors",
        "camera",
    ];
    let [positions, scales, rotations, opacities, colors, camera] = exactly(operands)?;
    expect_dtype(NAMES[0], positions, DTYPES)?;
    for (ty, name) in operands.iter().zip(NAMES).skip(1) {
        expect_same_dtype(name, ty, positions)?;
    }
    expect_rank("positions", positions, 2)?;
    let n = &positions.shape[0];
    let [three, four] = [3, 4].map(Dim::Known);
    expect_sizes("positions", positions, &[n, &three])?;
    expect_sizes("log_scales", scales, &[n, &three])?;
    expect_sizes("rotations", rotations, &[n, &four])?;
    expect_sizes("opacities", opacities, &[n])?;
    expect_sizes("camera", camera, &[&Dim::Known(CAMERA_LEN)])?;
    match &colors.shape[..] {
        [_, _] => expect_sizes("colors", colors, &[n, &three])?,
        [_, count, _] => {
            expect_sizes("colors", colors, &[n, count, &three])?;
            if !matches!(count.known(), Some(1 | 4 | 9 | 16)) {
                let reason = format!(
                    "{count} spherical harmonics for each colour; 1, 4, 9 or 16 are those of degree 0 to 3"
                );
                return Err(TypeError::Other(reason));
            }
        }
        _ => {
            return Err(TypeError::Rank {
                operand: "colors",
                found: colors.clone(),
                expected: "rank 2, or rank 3 for spherical harmonics".to_string(),
            });
        }
    }
    Ok(n.clone())
}

/// The types of an image and of its transmittance.
fn image_types(like: &Type, [width, height]: [usize; 2]) -> Vec<Type> {
    let of = |shape: Vec<Dim>| like.with_shape(shape);
    vec![
        of(vec![height.into(), width.into(), 3.into()]),
        of(vec![height.into(), width.into()]),
    ]
}

/// Projects all Gaussians to splats and footprints.
pub fn prepare(operands: &[&Tensor], image: ProjectionImage) -> (Vec<f64>, Vec<i64>) {
    let [positions, scales, rotations, opacities, colors, camera] =
        [0, 1, 2, 3, 4, 5].map(|i| operands[i].to_f64s());
    let camera = PinholeCamera::from_block(&camera);
    let harmonics = operands[4].shape().len() == 3;
    let per_color: usize = operands[4].shape()[1..].iter().product();
    let (mut splats, mut footprints) = (Vec::new(), Vec::new());
    for (i, &opacity) in opacities.iter().enumerate() {
        let three = |x: &[f64]| [x[3 * i], x[3 * i + 1], x[3 * i + 2]];
        let own = Gaussian {
            position: three(&positions),
            log_scales: three(&scales),
            rotation: [0, 1, 2, 3].map(|k| rotations[4 * i + k]),
            opacity,
            colors: &colors[i * per_color..][..per_color],
            harmonics,
        };
        let own = own.project(&camera, &image);
        let own = own.unwrap_or_else(ProjectedGaussian::culled);
        splats.extend(own.splat);
        footprints.extend(own.footprint.map(i64::from));
    }
    (splats, footprints)
}

fn images(
    (image, left): (Vec<f64>, Vec<f64>),
    results: &[TensorType],
) -> Result<Vec<Tensor>, EvalError> {
    Ok(vec![
        Tensor::from_f64s(results[0].clone(), &image)?,
        Tensor::from_f64s(results[1].clone(), &left)?,
    ])
}

impl OpSpec for GaussianSplatPrepare {
    const DOC: OpDoc = OpDoc {
        name: "gaussian_splat_prepare",
        text: "Projection of 3-D Gaussians for a `camera [25]` (view matrix, focal lengths, \
               principal point, near, far, background): `splats [N,10]` (position in pixels, \
               conic, opacity, colour, depth) and `footprints` `i32[N,5]` (first and end tile, \
               radius of `radius_scale` standard deviations, 3 if absent). Tiles have a side of \
               `tile_size` pixels, 16 if absent. `colors` are `[N,3]` or spherical harmonics `[N,K,3]` of \
               degree 0 to 3. Invisible or non-finite Gaussians are culled: zeros.",
        operands: &[
            "positions",
            "log_scales",
            "rotations",
            "opacities",
            "colors",
            "camera",
        ],
        dtypes: DTYPES,
        accuracy: Accuracy::Contraction,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::splat::prepare);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let n = expect_scene(operands)?;
        self.check()?;
        let of = |len: usize| -> Shape { vec![n.clone(), len.into()].into() };
        Ok(vec![
            operands[0].with_shape(of(SPLAT_LEN)),
            Type::new(DType::I32, of(FOOTPRINT_LEN)),
        ])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let (splats, footprints) = prepare(operands, self.image());
        Ok(vec![
            Tensor::from_f64s(results[0].clone(), &splats)?,
            Tensor::from_i64s(results[1].clone(), &footprints)?,
        ])
    }
}

impl OpSpec for GaussianSplatRasterize {
    const DOC: OpDoc = OpDoc {
        name: "gaussian_splat_rasterize",
        text: "Rasterization of `splats` and `footprints` of `gaussian_splat_prepare` over a \
               `background [3]`: the image `[height, width, 3]` and the transmittance `[height, \
               width]`. Blends by depth, ties by index, with `alpha = min(opacity exp(-d^T conic d \
               / 2), 0.99)`. Skips alphas below `alpha_cutoff` (1/255), and stops at \
               `transmittance_threshold` (1e-4), after `max_splat_steps` blended splats and after \
               `max_list_entries` splats of the tile.",
        operands: &["splats", "footprints", "background"],
        dtypes: DTYPES,
        accuracy: Accuracy::Rendering,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::splat::rasterize);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [splats, footprints, background] = exactly(operands)?;
        expect_dtype("splats", splats, DTYPES)?;
        expect_dtype("footprints", footprints, &[DType::I32])?;
        expect_same_dtype("background", background, splats)?;
        self.check()?;
        expect_rank("splats", splats, 2)?;
        let n = &splats.shape[0];
        expect_sizes("splats", splats, &[n, &Dim::Known(SPLAT_LEN)])?;
        expect_sizes("footprints", footprints, &[n, &Dim::Known(FOOTPRINT_LEN)])?;
        expect_sizes("background", background, &[&Dim::Known(3)])?;
        Ok(image_types(splats, [self.width, self.height]))
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let (splats, background) = (operands[0].to_f64s(), operands[2].to_f64s());
        let (size, limits) = ([self.width, self.height], self.limits());
        let footprints = operands[1].to_i64s();
        let done = raster::rasterize(&splats, &footprints, &background, size, &limits);
        images(done, results)
    }
}

impl OpSpec for GaussianSplatRender {
    const DOC: OpDoc = OpDoc {
        name: "gaussian_splat_render",
        text: "The image `[height, width, 3]` of 3-D Gaussians for a `camera [25]`, and the \
               transmittance `[height, width]`: `gaussian_splat_rasterize` of \
               `gaussian_splat_prepare`.",
        operands: GaussianSplatPrepare::DOC.operands,
        dtypes: DTYPES,
        accuracy: Accuracy::Rendering,
        tier: Tier::Composite,
    };

    const GRADIENT: Gradient<Self> = Gradient::Decompose;

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        expect_scene(operands)?;
        expect_image([self.width, self.height])?;
        self.options().check()?;
        Ok(image_types(operands[0], [self.width, self.height]))
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let (size, options) = ([self.width, self.height], self.options());
        let image = GaussianSplatPrepare::new(size, options).image();
        let (splats, footprints) = prepare(operands, image);
        let background = &operands[5].to_f64s()[BACKGROUND_AT..];
        let done = raster::rasterize(&splats, &footprints, background, size, &options.limits());
        images(done, results)
    }
}

/// The operands of a scene of Gaussians.
///
/// ```
/// use tercet_ir::ops::splat::SplatSceneOperands;
/// use tercet_ir::{DType, Graph, Type};
/// # let mut g = Graph::new();
/// # let f32s = |shape: &[usize]| Type::new(DType::F32, shape);
/// let scene = SplatSceneOperands {
///     positions: g.input("positions", f32s(&[9, 3]))?,
///     log_scales: g.input("log_scales", f32s(&[9, 3]))?,
///     rotations: g.input("rotations", f32s(&[9, 4]))?,
///     opacities: g.input("opacities", f32s(&[9]))?,
///     colors: g.input("colors", f32s(&[9, 3]))?,
/// };
/// let camera = g.input("camera", f32s(&[25]))?;
/// let image = g.gaussian_splat_render(&scene, camera, [64, 48])?;
/// assert_eq!(g.ty(image).to_string(), "f32[48, 64, 3]");
/// # Ok::<(), tercet_ir::OpError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct SplatSceneOperands {
    /// Positions `[N,3]`.
    pub positions: Value,
    /// Logarithms of the scales, `[N,3]`.
    pub log_scales: Value,
    /// Quaternions `[N,4]`, `w x y z`.
    pub rotations: Value,
    /// Opacities `[N]`, before the sigmoid.
    pub opacities: Value,
    /// Colours `[N,3]`, or spherical harmonics `[N,K,3]`.
    pub colors: Value,
}

impl SplatSceneOperands {
    fn with(&self, camera: Value) -> [Value; 6] {
        let SplatSceneOperands {
            positions,
            log_scales,
            rotations,
            opacities,
            colors,
        } = *self;
        [positions, log_scales, rotations, opacities, colors, camera]
    }
}

impl Graph {
    /// Splats `[N,10]` (the returned value) and footprints `I32[N,5]` (port 1) of a scene of F32 or
    /// F64, for an image of `[width, height]` pixels; see [`GaussianSplatPrepare`].
    ///
    /// # Errors
    /// [`OpError`] when dtypes or sizes do not match, or a side of the image exceeds [`MAX_SIDE`].
    pub fn gaussian_splat_prepare(
        &mut self,
        scene: &SplatSceneOperands,
        camera: Value,
        image: [usize; 2],
    ) -> Result<Value, OpError> {
        self.gaussian_splat_prepare_with(scene, camera, image, SplatOptions::default())
    }

    /// [`Graph::gaussian_splat_prepare`] with a tile size and a radius.
    ///
    /// # Errors
    /// As [`Graph::gaussian_splat_prepare`], and when an option is out of range.
    pub fn gaussian_splat_prepare_with(
        &mut self,
        scene: &SplatSceneOperands,
        camera: Value,
        image: [usize; 2],
        options: SplatOptions,
    ) -> Result<Value, OpError> {
        let op = GaussianSplatPrepare::new(image, options);
        self.add(op, &scene.with(camera))
    }

    /// The image `[height, width, 3]` of splats over a background `[3]` (the returned value), and
    /// the transmittance `[height, width]` (port 1); see [`GaussianSplatRasterize`].
    ///
    /// # Errors
    /// As [`Graph::gaussian_splat_prepare`].
    pub fn gaussian_splat_rasterize(
        &mut self,
        splats: Value,
        footprints: Value,
        background: Value,
        image: [usize; 2],
    ) -> Result<Value, OpError> {
        let op = GaussianSplatRasterize::new(image, SplatOptions::default());
        self.add(op, &[splats, footprints, background])
    }

    /// [`Graph::gaussian_splat_rasterize`] with options; the tile size must be that of the
    /// projection.
    ///
    /// # Errors
    /// As [`Graph::gaussian_splat_prepare`], and when an option is out of range.
    pub fn gaussian_splat_rasterize_with(
        &mut self,
        [splats, footprints, background]: [Value; 3],
        image: [usize; 2],
        options: SplatOptions,
    ) -> Result<Value, OpError> {
        let op = GaussianSplatRasterize::new(image, options);
        self.add(op, &[splats, footprints, background])
    }

    /// The image `[height, width, 3]` of a scene (the returned value), and the transmittance of the
    /// background, `[height, width]` (port 1); see [`GaussianSplatRender`].
    ///
    /// # Errors
    /// As [`Graph::gaussian_splat_prepare`].
    pub fn gaussian_splat_render(
        &mut self,
        scene: &SplatSceneOperands,
        camera: Value,
        image: [usize; 2],
    ) -> Result<Value, OpError> {
        self.gaussian_splat_render_with(scene, camera, image, SplatOptions::default())
    }

    /// [`Graph::gaussian_splat_render`] with options.
    ///
    /// # Errors
    /// As [`Graph::gaussian_splat_prepare`], and when an option is out of range.
    pub fn gaussian_splat_render_with(
        &mut self,
        scene: &SplatSceneOperands,
        camera: Value,
        image: [usize; 2],
        options: SplatOptions,
    ) -> Result<Value, OpError> {
        let op = GaussianSplatRender::new(image, options);
        self.add(op, &scene.with(camera))
    }
}
