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
//! - A splat contributes to pixels that it covers with an alpha of at least 1/255.
//! - A pixel stops before its transmittance falls below 1e-4.
//!
//! Executors compute these thresholds in F32. If a number is within rounding error of a threshold,
//! one executor may draw a splat that another omits. The difference at the alpha threshold is up to
//! about one step of an 8-bit image. At a tile boundary the difference is the part of a splat
//! beyond three standard deviations (at most 1.1 %). The test cases keep a distance from
//! thresholds, which a test measures. Away from thresholds the tolerance class holds.

mod project;
mod raster;
mod raster_grad;
#[cfg(test)]
mod tests;

pub use project::{
    BACKGROUND_AT, CAMERA_LEN, DEPTH_AT, DILATION, FAR_OUT, FOOTPRINT_LEN, Gaussian, MIN_DEPTH,
    MIN_ROTATION_NORM, PinholeCamera, ProjectedGaussian, ProjectionFloat, SPLAT_LEN, TILE,
};
pub use raster::{GREATEST_ALPHA, MIN_ALPHA, MIN_TRANSMITTANCE};
pub use raster_grad::GaussianSplatRasterizeGrad;

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Dim, Shape, Tensor, TensorType, Type};

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
    /// square pixels, with 0.3 added to both axes. A footprint has the first tile of 16 x 16 pixels
    /// and the tile after the last one, each in x and y. Its last element is the radius of three
    /// standard deviations in pixels.
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
    }
}

attrs! {
    /// Rasterization: an image `[height, width, 3]` of `splats` and `footprints` from
    /// `GaussianSplatPrepare` over a `background [3]`, and the transmittance `[height, width]`.
    ///
    /// Each pixel blends the splats of its tile by depth, ties by index, with `alpha = min(opacity
    /// exp(-d^T conic d / 2), 0.99)`. Splats with an alpha below 1/255 are skipped. The pixel stops
    /// before the splat that would reduce the transmittance below 1e-4. Splats with a non-finite
    /// position, conic or opacity are not drawn.
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
fn prepare(operands: &[&Tensor], image: [usize; 2]) -> (Vec<f64>, Vec<i64>) {
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
        let own = own.project(&camera, image);
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
               conic, opacity, colour, depth) and `footprints` `i32[N,5]` (first and end tile of \
               16 x 16 pixels, radius). `colors` are `[N,3]` or spherical harmonics `[N,K,3]` of \
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
        expect_image([self.width, self.height])?;
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
        let (splats, footprints) = prepare(operands, [self.width, self.height]);
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
               / 2), 0.99)`. Skips alphas below 1/255 and stops at transmittance 1e-4.",
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
        expect_image([self.width, self.height])?;
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
        let size = [self.width, self.height];
        let done = raster::rasterize(&splats, &operands[1].to_i64s(), &background, size);
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
        Ok(image_types(operands[0], [self.width, self.height]))
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let size = [self.width, self.height];
        let (splats, footprints) = prepare(operands, size);
        let background = &operands[5].to_f64s()[BACKGROUND_AT..];
        let done = raster::rasterize(&splats, &footprints, background, size);
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
        [width, height]: [usize; 2],
    ) -> Result<Value, OpError> {
        self.add(GaussianSplatPrepare { width, height }, &scene.with(camera))
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
        [width, height]: [usize; 2],
    ) -> Result<Value, OpError> {
        let op = GaussianSplatRasterize { width, height };
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
        [width, height]: [usize; 2],
    ) -> Result<Value, OpError> {
        self.add(GaussianSplatRender { width, height }, &scene.with(camera))
    }
}
