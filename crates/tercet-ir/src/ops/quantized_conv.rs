//! Convolution of int8 values with int8 results.

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Tensor, TensorType, Type};

use crate::attrs;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::Gradient;
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::conv::{Conv, expect_bias, per_group};
use crate::ops::util::{expect_dtype, expect_equal, expect_rank, from_scalars, scalars};
use crate::ops::window::{Window, kernel_sizes, spatial_axes, windowed};
use crate::scalar::Scalar;

attrs! {
    /// `y[n, o, p] = clamp(round(s scale[o] + bias[o]) + y_zero, lo, hi)` with `s = sum_{c, t}
    /// (w[o, c, t] - w_zero) (x[n, first(o) + c, p stride + t dilation - pad] - x_zero)`. `s` is
    /// computed in I32, which wraps, and converted to F32.
    ///
    /// ```
    /// use tercet_ir::{DType, Graph, Type, ops::QuantizedConv};
    /// let mut g = Graph::new();
    /// let x = g.input("x", Type::new(DType::U8, [1, 3, 8, 8]))?;
    /// let w = g.param("w", Type::new(DType::I8, [4, 3, 1, 1]))?;
    /// let scale = g.param("scale", Type::new(DType::F32, [4]))?;
    /// let bias = g.param("bias", Type::new(DType::F32, [4]))?;
    /// let op = QuantizedConv {
    ///     stride: vec![1, 1], pad_before: vec![0, 0], pad_after: vec![0, 0], dilation: vec![1, 1],
    ///     groups: 1, x_zero: 128, w_zero: 0, y_zero: 128, lo: 0, hi: 255, to: DType::U8,
    /// };
    /// let y = g.quantized_conv(op, [x, w, scale, bias])?;
    /// assert_eq!(g.ty(y).to_string(), "u8[1, 4, 8, 8]");
    /// # Ok::<(), tercet_ir::OpError>(())
    /// ```
    pub struct QuantizedConv {
        /// Distance between neighbouring windows.
        pub stride: Vec<usize>,
        /// Padding before each spatial axis, with the value `x_zero`.
        pub pad_before: Vec<usize>,
        /// Padding after each spatial axis, with the value `x_zero`.
        pub pad_after: Vec<usize>,
        /// Distance between neighbouring taps.
        pub dilation: Vec<usize>,
        /// Number of channel groups; each group of input channels contributes to its group of
        /// output channels.
        pub groups: usize,
        /// The zero point of `x`.
        pub x_zero: i64,
        /// The zero point of `w`.
        pub w_zero: i64,
        /// The zero point of the result.
        pub y_zero: i64,
        /// The minimum of the result.
        pub lo: i64,
        /// The maximum of the result.
        pub hi: i64,
        /// The dtype of the result, U8 or I8.
        pub to: DType,
    }
}

/// The dtypes of quantized values.
const CODES: &[DType] = &[DType::U8, DType::I8];

impl QuantizedConv {
    /// The windows of the operator.
    pub fn window(&self) -> Window {
        Window {
            stride: self.stride.clone(),
            pad_before: self.pad_before.clone(),
            pad_after: self.pad_after.clone(),
            dilation: self.dilation.clone(),
        }
    }

    /// Checks that the zero points and bounds fit their dtypes and that `lo <= hi`.
    fn check_codes(&self, x: DType, w: DType) -> Result<(), TypeError> {
        let bad = |name: &'static str, reason: String| Err(TypeError::Attr { name, reason });
        if !CODES.contains(&self.to) {
            return bad("to", format!("{} is neither u8 nor i8", self.to));
        }
        let listed = [
            ("x_zero", self.x_zero, x),
            ("w_zero", self.w_zero, w),
            ("y_zero", self.y_zero, self.to),
            ("lo", self.lo, self.to),
            ("hi", self.hi, self.to),
        ];
        for (name, code, dtype) in listed {
            let range = dtype.int_range();
            if !range.is_some_and(|(least, greatest)| (least..=greatest).contains(&code)) {
                return bad(name, format!("{code} does not fit {dtype}"));
            }
        }
        match self.lo <= self.hi {
            true => Ok(()),
            false => bad("lo", format!("{} is above hi, {}", self.lo, self.hi)),
        }
    }
}

impl OpSpec for QuantizedConv {
    const DOC: OpDoc = OpDoc {
        name: "quantized_conv",
        text: "Convolution of int8 values `x [N, C, ..]` and `w [O, C / groups, ..]` minus their \
               zero points, in I32: `clamp(round(sum scale[o] + bias[o]) + y_zero, lo, hi)` with \
               `scale [O]` and `bias [O]` in F32.",
        operands: &["x", "w", "scale", "bias"],
        dtypes: CODES,
        accuracy: Accuracy::Exact,
        tier: Tier::Composite,
    };

    const GRADIENT: Gradient<Self> = Gradient::None("int8 values are discrete");

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let &[x, w, scale, bias] = operands else {
            return Err(TypeError::Arity {
                expected: "4".into(),
                given: operands.len(),
            });
        };
        expect_dtype("x", x, CODES)?;
        expect_dtype("w", w, CODES)?;
        self.check_codes(x.dtype, w.dtype)?;
        let axes = spatial_axes("x", x)?;
        expect_rank("w", w, axes + 2)?;
        self.window().check(axes)?;
        let kernel = kernel_sizes(w)?;
        per_group(&w.shape[0], self.groups)?;
        let channels = per_group(&x.shape[1], self.groups)?;
        expect_equal("channels of a group and of w", &channels, &w.shape[1])?;
        let float = Type::new(DType::F32, [0usize; 0]);
        for (name, ty) in [("scale", scale), ("bias", bias)] {
            expect_dtype(name, ty, &[DType::F32])?;
            expect_bias(Some(ty), &float, &w.shape[0])?;
        }
        let mut y = windowed(x, w.shape[0].clone(), &self.window(), &kernel, false)?;
        y.dtype = self.to;
        Ok(vec![y])
    }

    fn eval(
        &self,
        ctx: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let less = |t: &Tensor, zero: i64| {
            let list: Vec<Scalar> = scalars(t)
                .into_iter()
                .map(|code| Scalar::I(code.as_i64() - zero))
                .collect();
            from_scalars(TensorType::new(DType::I32, t.shape()), &list)
        };
        let x = less(operands[0], self.x_zero)?;
        let w = less(operands[1], self.w_zero)?;
        let of_sums = TensorType::new(DType::I32, &results[0].shape);
        let conv = Conv::new(self.window(), self.groups, None);
        let sums = conv.eval(ctx, &[&x, &w], &[of_sums])?;
        let (scale, bias) = (scalars(operands[2]), scalars(operands[3]));
        let plane: usize = results[0].shape[2..].iter().product();
        let codes: Vec<Scalar> = scalars(&sums[0])
            .iter()
            .enumerate()
            .map(|(i, sum)| {
                let o = i / plane.max(1) % scale.len().max(1);
                let (scale, bias) = (scale[o].as_f64() as f32, bias[o].as_f64() as f32);
                // Each operation rounds to F32, as in executors.
                let scaled = sum.as_i64() as f32 * scale + bias;
                let code = scaled.round_ties_even() + self.y_zero as f32;
                Scalar::I((code as i64).clamp(self.lo, self.hi))
            })
            .collect();
        Ok(vec![from_scalars(results[0].clone(), &codes)?])
    }
}

impl Graph {
    /// The convolution of int8 values `x [N, C, ..]` with `w [O, C / groups, ..]`, each U8 or I8.
    /// The sums are scaled by `scale [O]`, `bias [O]` is added in F32, and the result is rounded to
    /// `op.to`. See [`QuantizedConv`].
    ///
    /// # Errors
    /// [`OpError`] when dtypes or sizes do not match, or a zero point or bound does not fit its
    /// dtype.
    pub fn quantized_conv(
        &mut self,
        op: QuantizedConv,
        [x, w, scale, bias]: [Value; 4],
    ) -> Result<Value, OpError> {
        self.add(op, &[x, w, scale, bias])
    }
}
