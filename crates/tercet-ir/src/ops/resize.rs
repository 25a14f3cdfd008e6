//! Resizing by interpolation.
//!
//! Source positions are computed with exact integer arithmetic (`table`), so every executor reads
//! the same elements.

pub(crate) mod table;

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Dim, Shape, Tensor, TensorType, Type, row_major_strides};

use crate::attr::FloatAttr;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{exactly, expect_dtype, for_each_index, from_scalars, pick, scalars};
use crate::scalar::Scalar;
use crate::{attrs, spelled};

pub use table::{ResizePositions, ResizeTaps};

spelled! {
    /// The interpolation between elements.
    ///
    /// ```
    /// use tercet_ir::{DType, Graph, Type, ops::ResizeMode};
    /// let mut g = Graph::new();
    /// let x = g.input("x", Type::new(DType::F32, [1, 3, 8, 8]))?;
    /// let y = g.resize(x, [1usize, 3, 16, 12], ResizeMode::Linear)?;
    /// assert_eq!(g.ty(y).to_string(), "f32[1, 3, 16, 12]");
    /// # Ok::<(), tercet_ir::OpError>(())
    /// ```
    pub enum ResizeMode {
        /// The element at the rounded position.
        Nearest "nearest",
        /// Linear interpolation of two neighbours along each axis.
        Linear "linear",
        /// Cubic convolution of four neighbours along each axis (Keys 1981).
        Cubic "cubic",
    }
}

spelled! {
    /// The source position `x` of result `o` along an axis of `n` elements and `m` results, with
    /// scale `s`.
    ///
    /// ```
    /// use tercet_ir::ops::{Coordinates, Resize, ResizeMode};
    /// let resize = Resize {
    ///     coordinates: Coordinates::AlignCorners,
    ///     ..Resize::to_sizes([5usize], ResizeMode::Linear)
    /// };
    /// // The last of 5 results is the last of 3 elements.
    /// let taps = resize.taps(0, 3, 5);
    /// assert_eq!((taps.index(4, 0), taps.weight(4, 0)), (2, 1.0));
    /// ```
    pub enum Coordinates {
        /// `(o + 1/2) / s - 1/2`
        HalfPixel "half_pixel",
        /// As `half_pixel`, but symmetric about the centre if `s n` is not an integer: `n/2 (1 - m
        /// / (s n)) + (o + 1/2) / s - 1/2`
        HalfPixelSymmetric "half_pixel_symmetric",
        /// As `half_pixel`; 0 if there is one result.
        PytorchHalfPixel "pytorch_half_pixel",
        /// `o (n - 1) / (m - 1)`; 0 if there is one result.
        AlignCorners "align_corners",
        /// `o / s`
        Asymmetric "asymmetric",
    }
}

spelled! {
    /// How positions are rounded to indices.
    ///
    /// ```
    /// use tercet_ir::ops::{Coordinates, NearestRounding, Resize, ResizeMode};
    /// let resize = |rounding| Resize {
    ///     coordinates: Coordinates::Asymmetric,
    ///     rounding,
    ///     ..Resize::to_sizes([4usize], ResizeMode::Nearest)
    /// };
    /// assert_eq!(resize(NearestRounding::Floor).taps(0, 2, 4).indices, [0, 0, 1, 1]);
    /// assert_eq!(resize(NearestRounding::Ceil).taps(0, 2, 4).indices, [0, 1, 1, 1]);
    /// ```
    pub enum NearestRounding {
        /// To the nearest index, halves down.
        RoundPreferFloor "round_prefer_floor",
        /// To the nearest index, halves up.
        RoundPreferCeil "round_prefer_ceil",
        /// Down to the next index.
        Floor "floor",
        /// Up to the next index.
        Ceil "ceil",
    }
}

/// Maximum number of axes that may change.
pub const MAX_RESIZED: usize = 3;

/// Maximum number of elements of an axis that changes. Executors store up to four neighbours with
/// weights for each element of the longer axis.
pub const MAX_RESIZED_LEN: usize = 1 << 26;

/// Why an axis of `n` elements cannot be resized to `m`.
fn unfit(axis: usize, n: usize, m: usize) -> Option<String> {
    let fits = n <= MAX_RESIZED_LEN && m <= MAX_RESIZED_LEN && (n > 0 || m == 0);
    (!fits).then(|| {
        format!(
            "axis {axis} has no or too many elements to resize: {n} to {m}; \
             from at least 1, both at most {MAX_RESIZED_LEN}"
        )
    })
}

attrs! {
    /// The operand resampled along some axes. Positions outside the operand read its edge.
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use tercet_ir::ops::{Coordinates, Resize, ResizeMode};
    /// use tercet_ir::{EvalCtx, Graph, Tensor, evaluate};
    /// let mut g = Graph::new();
    /// let x = g.constant(Tensor::from_slice(&[2], &[1f32, 3.0])?)?;
    /// let op = Resize {
    ///     coordinates: Coordinates::AlignCorners,
    ///     ..Resize::to_sizes([3usize], ResizeMode::Linear)
    /// };
    /// let y = g.add(op, &[x])?;
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// assert_eq!(done.get(y).as_slice::<f32>()?, [1.0, 2.0, 3.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct Resize {
        /// The sizes of the result.
        pub sizes: Shape,
        /// The scale of each axis. A result size is the operand's size times the scale, rounded
        /// down; the product is exact, or that of F32 ([`Resize::f32_size`]). If empty, scales are
        /// the quotients of the sizes.
        pub scales: Vec<FloatAttr>,
        /// The interpolation mode.
        pub mode: ResizeMode,
        /// How source positions are computed.
        pub coordinates: Coordinates,
        /// How positions are rounded to indices, for `nearest`.
        pub rounding: NearestRounding,
        /// The parameter of the cubic, usually `-0.75` or `-0.5`.
        pub cubic_a: FloatAttr,
        /// Excludes elements outside the operand and renormalizes the other weights, instead of
        /// repeating the edge.
        pub exclude_outside: bool,
    }
}

impl Resize {
    /// Resizing to these sizes.
    pub fn to_sizes(sizes: impl Into<Shape>, mode: ResizeMode) -> Resize {
        Resize {
            sizes: sizes.into(),
            scales: Vec::new(),
            mode,
            coordinates: Coordinates::HalfPixel,
            rounding: NearestRounding::RoundPreferFloor,
            cubic_a: FloatAttr(-0.75),
            exclude_outside: false,
        }
    }

    /// The result size of an axis of `n` elements if the product with the scale is rounded to F32.
    ///
    /// ```
    /// use tercet_ir::ops::Resize;
    /// // 1.4 in F32 is less than 1.4, so the exact product is less than 28.
    /// assert_eq!(Resize::f32_size(20, f64::from(1.4f32)), 28);
    /// assert_eq!(Resize::f32_size(3, 0.5), 1);
    /// ```
    pub fn f32_size(n: usize, scale: f64) -> usize {
        (n as f32 * scale as f32) as usize
    }

    /// The axes that change, ascending.
    pub fn axes(&self, x: &Shape) -> Vec<usize> {
        let scaled = |axis: usize| self.scales.get(axis).is_some_and(|s| s.0 != 1.0);
        let changed = |axis: &usize| x[*axis] != self.sizes[*axis] || scaled(*axis);
        (0..x.rank()).filter(changed).collect()
    }

    /// The axes that change for the sizes of one run, ascending.
    pub fn axes_in_run(&self, x: &[usize], y: &[usize]) -> Vec<usize> {
        let scaled = |axis: usize| self.scales.get(axis).is_some_and(|s| s.0 != 1.0);
        let changed = |axis: &usize| x[*axis] != y[*axis] || scaled(*axis);
        (0..x.len()).filter(changed).collect()
    }

    /// Checks the sizes of one run.
    ///
    /// # Errors
    /// [`EvalError::Data`] when an axis that changes has no elements, or more than 2^26.
    pub fn check_run(&self, x: &[usize], y: &[usize]) -> Result<(), EvalError> {
        for axis in self.axes_in_run(x, y) {
            if let Some(reason) = unfit(axis, x[axis], y[axis]) {
                return Err(EvalError::Data(reason));
            }
        }
        Ok(())
    }

    /// The number `k` for which result `o` of an axis of `n` elements and `m` results reads element
    /// `o >> k`, for all sizes. `None` for other results, or if they are sums of elements.
    ///
    /// ```
    /// use tercet_ir::{Dim, ops::{Resize, ResizeMode}};
    /// let s = Dim::sym("s");
    /// let twice = s.checked_mul(&Dim::Known(2)).unwrap();
    /// let resize = Resize::to_sizes([twice.clone()], ResizeMode::Nearest);
    /// assert_eq!(resize.index_shift(0, &s, &twice), Some(1));
    /// assert_eq!(resize.index_shift(0, &s, &s), Some(0));
    /// assert_eq!(resize.index_shift(0, &twice, &s), None);
    /// ```
    pub fn index_shift(&self, axis: usize, n: &Dim, m: &Dim) -> Option<u8> {
        /// The largest factor is 64.
        const MAX_SHIFT: u8 = 6;
        if self.mode != ResizeMode::Nearest {
            return None;
        }
        let scale = self.scales.get(axis).map(|s| s.0);
        if n == m && scale.is_none_or(|s| s == 1.0) {
            return Some(0);
        }
        (1..=MAX_SHIFT).find(|&k| {
            let factor = 1usize << k;
            let rounds_down = match (self.coordinates, self.rounding) {
                (
                    Coordinates::HalfPixel
                    | Coordinates::HalfPixelSymmetric
                    | Coordinates::PytorchHalfPixel,
                    NearestRounding::RoundPreferFloor | NearestRounding::RoundPreferCeil,
                )
                | (Coordinates::Asymmetric, NearestRounding::Floor) => true,
                (Coordinates::Asymmetric, NearestRounding::RoundPreferFloor) => k == 1,
                (_, _) => false,
            };
            rounds_down
                && scale.is_none_or(|s| s == factor as f64)
                && n.checked_mul(&Dim::Known(factor)).as_ref() == Some(m)
        })
    }

    /// The function that gives the source positions along an axis, for any sizes.
    pub fn positions(&self, axis: usize) -> ResizePositions {
        ResizePositions::new(self.coordinates, self.scales.get(axis).map(|s| s.0))
    }

    /// The source elements of the results along an axis, with weights.
    pub fn taps(&self, axis: usize, n: usize, m: usize) -> ResizeTaps {
        ResizeTaps::new(self, self.scales.get(axis).map(|s| s.0), n, m)
    }

    fn check_scales(&self, x: &Type) -> Result<(), TypeError> {
        let bad = |reason| {
            Err(TypeError::Attr {
                name: "scales",
                reason,
            })
        };
        if !self.scales.is_empty() && self.scales.len() != x.rank() {
            let reason = format!("{} values for {} axes", self.scales.len(), x.rank());
            return bad(reason);
        }
        for (axis, scale) in self.scales.iter().enumerate() {
            let s = scale.0;
            // The bounds keep integer positions within 128 bits.
            if !(1e-6..=1e6).contains(&s) {
                return bad(format!("{s} is not between 1e-6 and 1e6"));
            }
            let (n, m) = (&x.shape[axis], &self.sizes[axis]);
            let in_f32 = n.known().map(|n| Dim::Known(Resize::f32_size(n, s)));
            if table::scaled_dim(n, s).as_ref() != Some(m) && in_f32.as_ref() != Some(m) {
                return bad(format!(
                    "scale {s} of axis {axis} does not give size {m} from size {n}"
                ));
            }
        }
        Ok(())
    }
}

impl OpSpec for Resize {
    const DOC: OpDoc = OpDoc {
        name: "resize",
        text: "The operand resampled along up to three axes, as in ONNX `Resize`: nearest, linear \
               or cubic. Elements with weight 0 are not read. Sizes may be symbols.",
        operands: &["x"],
        dtypes: DType::ALL,
        accuracy: Accuracy::Reduction,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::pool::resize);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [x] = exactly(operands)?;
        if self.mode != ResizeMode::Nearest {
            expect_dtype("x", x, DType::FLOATS)?;
        }
        let bad = |name, reason| Err(TypeError::Attr { name, reason });
        if self.sizes.rank() != x.rank() {
            let reason = format!("{} values for {} axes", self.sizes.rank(), x.rank());
            return bad("sizes", reason);
        }
        self.check_scales(x)?;
        if !self.cubic_a.0.is_finite() {
            return bad("cubic_a", format!("{} is not finite", self.cubic_a.0));
        }
        let axes = self.axes(&x.shape);
        if axes.len() > MAX_RESIZED {
            let reason = format!("{} axes change; expected at most {MAX_RESIZED}", axes.len());
            return bad("sizes", reason);
        }
        for axis in axes {
            // Sizes with symbols are checked in each run.
            let (n, m) = (x.shape[axis].known(), self.sizes[axis].known());
            if let Some(reason) = unfit(axis, n.unwrap_or(1), m.unwrap_or(0)) {
                return bad("sizes", reason);
            }
        }
        Ok(vec![x.with_shape(self.sizes.clone())])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let (x, ty) = (operands[0], &results[0]);
        self.check_run(x.shape(), &ty.shape)?;
        let axes = self.axes_in_run(x.shape(), &ty.shape);
        let taps: Vec<ResizeTaps> = axes
            .iter()
            .map(|&axis| self.taps(axis, x.shape()[axis], ty.shape[axis]))
            .collect();
        let strides = row_major_strides(x.shape());
        let base = |index: &[usize]| -> usize {
            let kept = (0..index.len()).filter(|axis| !axes.contains(axis));
            kept.map(|axis| index[axis] * strides[axis]).sum()
        };
        if self.mode == ResizeMode::Nearest {
            let nearest = pick(x, ty, |index| {
                let own = axes.iter().zip(&taps);
                let own = own.map(|(&axis, t)| t.index(index[axis], 0) * strides[axis]);
                base(index) + own.sum::<usize>()
            });
            return Ok(vec![nearest?]);
        }
        let xs = scalars(x);
        let counts: Vec<usize> = taps.iter().map(|t| t.count).collect();
        let mut y = Vec::with_capacity(ty.numel());
        for_each_index(&ty.shape, |index| {
            let first = base(index);
            let mut sum = 0.0;
            for_each_index(&counts, |tap| {
                let (mut at, mut weight) = (first, 1.0);
                for ((&axis, t), &tap) in axes.iter().zip(&taps).zip(tap) {
                    at += t.index(index[axis], tap) * strides[axis];
                    weight *= t.weight(index[axis], tap);
                }
                if weight != 0.0 {
                    sum += weight * xs[at].as_f64();
                }
            });
            y.push(Scalar::F(sum));
        });
        Ok(vec![from_scalars(ty.clone(), &y)?])
    }
}

impl Graph {
    /// Resizes up to three axes of `x` to `sizes` (one for each axis), with half-pixel coordinates.
    /// For other coordinates or scales, add a [`Resize`]. Nearest supports any dtype.
    ///
    /// # Errors
    /// [`OpError`] when sizes or dtypes do not match.
    pub fn resize(
        &mut self,
        x: Value,
        sizes: impl Into<Shape>,
        mode: ResizeMode,
    ) -> Result<Value, OpError> {
        self.add(Resize::to_sizes(sizes, mode), &[x])
    }

    /// Resizes each axis of `x` by its scale; a size is the product rounded down. All other options
    /// come from `how`.
    ///
    /// # Errors
    /// [`OpError`] as [`Graph::resize`]. [`OpError`] also when the size of a symbolic axis times its
    /// scale is not expressible, because the scale has too many digits.
    pub fn resize_by(&mut self, x: Value, scales: &[f64], how: Resize) -> Result<Value, OpError> {
        let shape = self.ty(x).shape.clone();
        let scaled = |(n, &s): (&Dim, &f64)| table::scaled_dim(n, s).unwrap_or(Dim::Known(0));
        let sizes = shape.iter().zip(scales).map(scaled);
        let resize = Resize {
            sizes: sizes.collect(),
            scales: scales.iter().map(|&s| FloatAttr(s)).collect(),
            ..how
        };
        self.add(resize, &[x])
    }
}
