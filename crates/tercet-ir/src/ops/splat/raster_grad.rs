//! `GaussianSplatRasterizeGrad`: the gradient of rasterization.
//!
//! In a pixel, splats have alphas `a_i` and transmittances `T_i = prod_(j < i) (1 - a_j)`, and the
//! colour is `C = sum_i c_i a_i T_i + T b`. For cotangents `g` of the image and `h` of the final
//! transmittance:
//!
//! ```text
//! dL/dc_i = a_i T_i g
//! dL/da_i = T_i g c_i - (g C + h T - sum_(j <= i) a_j T_j g c_j) / (1 - a_i)
//! ```
//!
//! These formulas are those of Kerbl et al. 2023, appendix C, evaluated front to back. The
//! contribution behind a splat is the pixel's colour minus the contributions up to the splat. The
//! splats and their order are those of the forward pass. `a = min(o exp(p), 0.99)` passes its
//! cotangent at its bound but not beyond. Skipped splats have no cotangent. The depth determines
//! only the order, so its cotangent is 0.

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Dim, Tensor, TensorType, Type};

use super::raster::{GREATEST_ALPHA, drawn, for_each_covering_splat};
use super::{DTYPES, FOOTPRINT_LEN, RasterLimits, SPLAT_LEN, expect_sizes};
use crate::attr::FloatAttr;
use crate::attrs;
use crate::error::{EvalError, TypeError};
use crate::grad::Gradient;
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{exactly, expect_dtype, expect_rank, expect_same_dtype};

attrs! {
    /// The cotangent of `splats [N,10]` of `GaussianSplatRasterize`, from its results `image
    /// [height, width, 3]` and `transmittance [height, width]` and their cotangents. The cotangents
    /// of depths and of splats that are not drawn are 0.
    ///
    /// ```
    /// use tercet_ir::ops::{GaussianSplatRasterizeGrad, splat::SplatOptions};
    /// use tercet_ir::{DType, Graph, Type};
    /// let mut g = Graph::new();
    /// let splats = g.input("splats", Type::new(DType::F32, [9, 10]))?;
    /// let footprints = g.input("footprints", Type::new(DType::I32, [9, 5]))?;
    /// let image = g.input("image", Type::new(DType::F32, [48, 64, 3]))?;
    /// let light = g.input("light", Type::new(DType::F32, [48, 64]))?;
    /// let op = GaussianSplatRasterizeGrad::new([64, 48], SplatOptions::default());
    /// let grad = g.add(op, &[splats, footprints, image, light, image, light])?;
    /// assert_eq!(g.ty(grad), g.ty(splats));
    /// # Ok::<(), tercet_ir::OpError>(())
    /// ```
    pub struct GaussianSplatRasterizeGrad {
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

/// The results of rasterization and their cotangents.
struct RasterGradPixels {
    image: Vec<f64>,
    transmittance: Vec<f64>,
    d_image: Vec<f64>,
    d_transmittance: Vec<f64>,
}

fn gradient(
    splats: &[f64],
    footprints: &[i64],
    pixels: &RasterGradPixels,
    [width, height]: [usize; 2],
    limits: &RasterLimits,
) -> Vec<f64> {
    let order = drawn(splats);
    let mut sums = vec![0.0; splats.len()];
    for (x, y) in (0..height).flat_map(|y| (0..width).map(move |x| (x, y))) {
        let at = y * width + x;
        let g = &pixels.d_image[3 * at..][..3];
        let dot = |c: &[f64]| -> f64 { g.iter().zip(c).map(|(g, c)| g * c).sum() };
        let mut rest =
            dot(&pixels.image[3 * at..]) + pixels.d_transmittance[at] * pixels.transmittance[at];
        let scene = (splats, footprints, &order[..]);
        for_each_covering_splat(scene, [x, y], limits, |i, alpha, light| {
            let (own, sum) = (&splats[i * SPLAT_LEN..], &mut sums[i * SPLAT_LEN..]);
            let weight = alpha * light;
            for (sum, g) in sum[6..9].iter_mut().zip(g) {
                *sum += weight * g;
            }
            let shown = dot(&own[6..9]);
            rest -= weight * shown;
            let d_alpha = light * shown - rest / (1.0 - alpha);
            let (dx, dy) = (x as f64 + 0.5 - own[0], y as f64 + 0.5 - own[1]);
            let along = own[2] * dx * dx + own[4] * dy * dy;
            let bell = (-0.5 * along - own[3] * dx * dy).exp();
            if own[5] * bell > GREATEST_ALPHA {
                return;
            }
            let d_power = own[5] * bell * d_alpha;
            sum[0] += d_power * (own[2] * dx + own[3] * dy);
            sum[1] += d_power * (own[4] * dy + own[3] * dx);
            sum[2] -= 0.5 * d_power * dx * dx;
            sum[3] -= d_power * dx * dy;
            sum[4] -= 0.5 * d_power * dy * dy;
            sum[5] += bell * d_alpha;
        });
    }
    sums
}

impl OpSpec for GaussianSplatRasterizeGrad {
    const DOC: OpDoc = OpDoc {
        name: "gaussian_splat_rasterize_grad",
        text: "The cotangent of the `splats` of `gaussian_splat_rasterize`, from its results and \
               their cotangents. It is 0 for depths and for splats that are not drawn.",
        operands: &[
            "splats",
            "footprints",
            "image",
            "transmittance",
            "d_image",
            "d_transmittance",
        ],
        dtypes: DTYPES,
        accuracy: Accuracy::Rendering,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> =
        Gradient::None("second derivatives of rasterization are not implemented");

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [splats, footprints, image, left, d_image, d_left] = exactly(operands)?;
        expect_dtype("splats", splats, DTYPES)?;
        expect_dtype("footprints", footprints, &[DType::I32])?;
        self.check()?;
        expect_rank("splats", splats, 2)?;
        let n = &splats.shape[0];
        expect_sizes("splats", splats, &[n, &Dim::Known(SPLAT_LEN)])?;
        expect_sizes("footprints", footprints, &[n, &Dim::Known(FOOTPRINT_LEN)])?;
        let [height, width, three] = [self.height, self.width, 3].map(Dim::Known);
        for (name, ty) in [("image", image), ("d_image", d_image)] {
            expect_same_dtype(name, ty, splats)?;
            expect_sizes(name, ty, &[&height, &width, &three])?;
        }
        for (name, ty) in [("transmittance", left), ("d_transmittance", d_left)] {
            expect_same_dtype(name, ty, splats)?;
            expect_sizes(name, ty, &[&height, &width])?;
        }
        Ok(vec![splats.clone()])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let [image, left, d_image, d_left] = [2, 3, 4, 5].map(|i| operands[i].to_f64s());
        let pixels = RasterGradPixels {
            image,
            transmittance: left,
            d_image,
            d_transmittance: d_left,
        };
        let (splats, footprints) = (operands[0].to_f64s(), operands[1].to_i64s());
        let size = [self.width, self.height];
        let sums = gradient(&splats, &footprints, &pixels, size, &self.limits());
        Ok(vec![Tensor::from_f64s(results[0].clone(), &sums)?])
    }
}
