//! 3-D Gaussian splatting (Kerbl et al. 2023, "3D Gaussian Splatting for Real-Time Radiance Field
//! Rendering"; EWA splatting, Zwicker et al. 2001), forward: `GaussianSplatPrepare` projects,
//! `GaussianSplatRasterize` draws, `GaussianSplatRender` does both.
//!
//! **Fixed sizes.** Which splats a tile has depends on data, and so would lists of pairs of tile and splat.
//! Here no list has a place of its own: splats are put in order once, by depth, and each tile walks that
//! order and takes what reaches it. Order within a tile is the same (by depth, equal ones by index), results
//! depend on nothing else, and every size is known when a graph is compiled.
//!
//! **Borders.** A splat counts in whole tiles, in pixels where it covers 1/255 or more, and a pixel ends
//! before 1e-4 of its light is left: an image is not continuous in its scene. Executors compute these
//! borders in F32, so where a number falls on a border within its roundings, a splat may be drawn by one
//! executor and not by another: a difference of up to about a step of an 8-bit image at 1/255, and of what a
//! splat has beyond three standard deviations (at most 1.1 %) at a tile. The cases keep away from borders,
//! which a test measures; away from them the tolerance class holds.

mod cases;
mod cases_grad;
mod flat;
mod project;
mod raster;
mod raster_grad;
#[cfg(test)]
mod tests;

pub use project::{
    BACKGROUND_AT, CAMERA_LEN, Camera, DEPTH_AT, DILATION, FAR_OUT, FOOTPRINT_LEN, Float, Gaussian,
    LEAST_DEPTH, LEAST_TURN, Projected, SPLAT_LEN, TILE,
};
pub use raster::{GREATEST_ALPHA, LEAST_ALPHA, LEAST_TRANSMITTANCE};
pub use raster_grad::GaussianSplatRasterizeGrad;

use crate::accuracy::Accuracy;
use crate::attrs;
use crate::case::{Case, Reject};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{Doc, EvalCtx, OpSpec, Tier};
use crate::ops::util::{exactly, expect_dtype, expect_equal, expect_rank, expect_same_dtype};
use crate::tensor::Tensor;
use crate::types::{Shape, TensorType, Type};

/// The greatest width and height of an image: numbers of tiles fit 16 bits, centres of pixels an F32.
pub const MAX_SIDE: usize = 1 << 15;

/// Narrower floats do not hold a place in pixels.
const DTYPES: &[DType] = &[DType::F32, DType::F64];

attrs! {
    /// Gaussians as a camera sees them: `positions [N,3]`, `log_scales [N,3]`, quaternions
    /// `rotations [N,4]` (`w x y z`, of any length; one of zeros turns nothing), `opacities [N]` before
    /// their sigmoid, and `colors`, `[N,3]` or coefficients `[N,K,3]` of real spherical harmonics of
    /// degree 0 to 3 (`K` of 1, 4, 9, 16), which give `max(sum + 0.5, 0)`.
    ///
    /// A `camera [25]` has a view matrix from the world to the camera (four rows; x right, y down, z
    /// ahead; a rotation and a shift; the last row is not read), focal lengths and principal point in
    /// pixels (pixel `i` has its centre at `i + 0.5`), the near and the far depth, and the background.
    ///
    /// Results: `splats [N,10]` (place in pixels, conic `xx xy yy` of the variance in pixels with 0.3
    /// added to both axes, opacity, colour, depth) and `footprints I32[N,5]` (first tile of 16 x 16
    /// pixels in x and y, tile past the last in x and y, radius of three standard deviations in pixels).
    ///
    /// Culled are Gaussians that are not strictly between the near depth (at least 1e-6) and the far
    /// one, reach no tile, have a number that is not finite, or go beyond 2^40 pixels: zeros, the depth
    /// infinite.
    pub struct GaussianSplatPrepare {
        /// The width of the image in pixels.
        pub width: usize,
        /// The height of the image in pixels.
        pub height: usize,
    }
}

attrs! {
    /// An image `[height, width, 3]` of `splats` and `footprints` as `GaussianSplatPrepare` gives them,
    /// over a `background [3]`, and what it lets through of that, `[height, width]`.
    ///
    /// Each pixel walks the splats of its tile by depth, equal ones by index, with
    /// `alpha = min(opacity exp(-d^T conic d / 2), 0.99)`; those with less than 1/255 are left out, and it
    /// ends before the one that would leave less than 1e-4. Splats whose place, conic or opacity is not
    /// finite are not drawn.
    pub struct GaussianSplatRasterize {
        /// The width of the image in pixels.
        pub width: usize,
        /// The height of the image in pixels.
        pub height: usize,
    }
}

attrs! {
    /// `GaussianSplatRasterize` of `GaussianSplatPrepare`, over the background of the camera.
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
    let reason = format!("{side} pixels; at most {MAX_SIDE}");
    Err(TypeError::Attr { name, reason })
}

fn expect_image([width, height]: [usize; 2]) -> Result<(), TypeError> {
    expect_side("width", width)?;
    expect_side("height", height)
}

/// Refuses an operand that is not of this shape.
fn expect_sizes(name: &'static str, ty: &Type, sizes: &[&Dim]) -> Result<(), TypeError> {
    expect_rank(name, ty, sizes.len())?;
    let axes = ty.shape.iter().zip(sizes).enumerate();
    axes.into_iter().try_for_each(|(axis, (own, want))| {
        expect_equal(&format!("axis {axis} of {name}"), own, want)
    })
}

/// The number of Gaussians of operands that agree.
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

/// The types of an image and of what is left of its background.
fn image_types(like: &Type, [width, height]: [usize; 2]) -> Vec<Type> {
    let of = |shape: Vec<Dim>| like.with_shape(shape);
    vec![
        of(vec![height.into(), width.into(), 3.into()]),
        of(vec![height.into(), width.into()]),
    ]
}

/// All Gaussians as splats and footprints.
fn prepare(operands: &[&Tensor], image: [usize; 2]) -> (Vec<f64>, Vec<i64>) {
    let [positions, scales, rotations, opacities, colors, camera] =
        [0, 1, 2, 3, 4, 5].map(|i| operands[i].to_f64s());
    let camera = Camera::of(&camera);
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
        let own = own.unwrap_or_else(Projected::culled);
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
    const DOC: Doc = Doc {
        name: "gaussian_splat_prepare",
        text: "3-D Gaussians as a `camera [25]` (view matrix, focal lengths, principal point, near, far, \
               background) sees them: `splats [N,10]` (place in pixels, conic, opacity, colour, depth) and \
               `footprints` `i32[N,5]` (tiles of 16 x 16 pixels from and to, radius). `colors` are `[N,3]` or \
               spherical harmonics `[N,K,3]` of degree 0 to 3. What is not seen or not finite is culled: zeros.",
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

    fn cases() -> Vec<Case> {
        cases::of_prepare()
    }

    fn rejects() -> Vec<Reject> {
        cases::rejects_of_prepare()
    }
}

impl OpSpec for GaussianSplatRasterize {
    const DOC: Doc = Doc {
        name: "gaussian_splat_rasterize",
        text: "The image `[height, width, 3]` of `splats` and `footprints` of `gaussian_splat_prepare` over a \
               `background [3]`, and what it lets through, `[height, width]`: by depth, ties by index, \
               `alpha = min(opacity exp(-d^T conic d / 2), 0.99)`, none below 1/255, until 1e-4 is left.",
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

    fn cases() -> Vec<Case> {
        flat::of_rasterize()
    }

    fn rejects() -> Vec<Reject> {
        flat::rejects_of_rasterize()
    }
}

impl OpSpec for GaussianSplatRender {
    const DOC: Doc = Doc {
        name: "gaussian_splat_render",
        text: "The image `[height, width, 3]` of 3-D Gaussians for a `camera [25]`, and what it lets through of \
               the camera's background, `[height, width]`: `gaussian_splat_rasterize` of \
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

    fn cases() -> Vec<Case> {
        cases::of_render()
    }

    fn rejects() -> Vec<Reject> {
        cases::rejects_of_render()
    }
}

/// The operands of a scene of Gaussians.
#[derive(Clone, Copy, Debug)]
pub struct Scene {
    /// `[N,3]`
    pub positions: Value,
    /// `[N,3]`
    pub log_scales: Value,
    /// `[N,4]`, `w x y z`
    pub rotations: Value,
    /// `[N]`, before the sigmoid.
    pub opacities: Value,
    /// `[N,3]`, or spherical harmonics `[N,K,3]`.
    pub colors: Value,
}

impl Scene {
    fn with(&self, camera: Value) -> [Value; 6] {
        let Scene {
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
    /// Splats `[N,10]` (the value returned) and footprints `I32[N,5]` (port 1) of a scene of F32 or F64 on
    /// an image of `[width, height]` pixels; see [`GaussianSplatPrepare`].
    ///
    /// # Errors
    /// [`OpError`] when dtypes or sizes do not agree, or a side of the image is above [`MAX_SIDE`].
    pub fn gaussian_splat_prepare(
        &mut self,
        scene: &Scene,
        camera: Value,
        [width, height]: [usize; 2],
    ) -> Result<Value, OpError> {
        self.add(GaussianSplatPrepare { width, height }, &scene.with(camera))
    }

    /// The image `[height, width, 3]` of splats over a background `[3]` (the value returned), and what it
    /// lets through, `[height, width]` (port 1); see [`GaussianSplatRasterize`].
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

    /// The image `[height, width, 3]` of a scene (the value returned), and what it lets through of the
    /// background, `[height, width]` (port 1); see [`GaussianSplatRender`].
    ///
    /// # Errors
    /// As [`Graph::gaussian_splat_prepare`].
    pub fn gaussian_splat_render(
        &mut self,
        scene: &Scene,
        camera: Value,
        [width, height]: [usize; 2],
    ) -> Result<Value, OpError> {
        self.add(GaussianSplatRender { width, height }, &scene.with(camera))
    }
}
