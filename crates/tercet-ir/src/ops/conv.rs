//! Convolution.

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Dim, Tensor, TensorType, Type};

use crate::attrs;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{
    expect_dtype, expect_equal, expect_rank, expect_same_dtype, for_each_index, from_scalars,
    scalars, with_optional,
};
use crate::ops::window::{Window, kernel_sizes, spatial_axes, three, windowed};
use crate::scalar::{Scalar, ScalarOp, UnaryFn};

attrs! {
    /// Convolution: `y[n, o, p] = f(sum_{c, t} w[o, c, t] x[n, first(o) + c, q] + bias[o])` with
    /// `q = p stride + t dilation - pad`.
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use tercet_ir::{EvalCtx, Graph, Tensor, evaluate, ops::Window};
    /// let mut g = Graph::new();
    /// let x = g.constant(Tensor::from_slice(&[1, 1, 4], &[1f32, 2.0, 3.0, 4.0])?)?;
    /// let w = g.constant(Tensor::from_slice(&[1, 1, 2], &[1f32, 10.0])?)?;
    /// let y = g.conv(x, w, None, Window::new(1), 1)?;
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// assert_eq!(done.get(y).as_slice::<f32>()?, [21.0, 32.0, 43.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct Conv {
        /// Distance between neighbouring windows.
        pub stride: Vec<usize>,
        /// Zeros before each spatial axis.
        pub pad_before: Vec<usize>,
        /// Zeros after each spatial axis.
        pub pad_after: Vec<usize>,
        /// Distance between neighbouring taps.
        pub dilation: Vec<usize>,
        /// Number of channel groups; each group of input channels contributes to its group of
        /// output channels.
        pub groups: usize,
        /// The activation `f`, which must preserve the dtype; `None` for the identity.
        pub activation: Option<UnaryFn>,
    }
}

impl Conv {
    /// The operator for these windows.
    pub fn new(window: Window, groups: usize, activation: Option<UnaryFn>) -> Conv {
        let Window {
            stride,
            pad_before,
            pad_after,
            dilation,
        } = window;
        Conv {
            stride,
            pad_before,
            pad_after,
            dilation,
            groups,
            activation,
        }
    }

    /// The windows of the operator.
    pub fn window(&self) -> Window {
        Window {
            stride: self.stride.clone(),
            pad_before: self.pad_before.clone(),
            pad_after: self.pad_after.clone(),
            dilation: self.dilation.clone(),
        }
    }
}

/// Checks that an activation preserves the dtype.
fn expect_activation(activation: Option<UnaryFn>, dtype: DType) -> Result<(), TypeError> {
    let Some(f) = activation else { return Ok(()) };
    let to = ScalarOp::Unary(f).infer(&[dtype])?;
    if to == dtype {
        return Ok(());
    }
    Err(TypeError::Attr {
        name: "activation",
        reason: format!("{} gives {to}; apply it to the result instead", f.name()),
    })
}

/// Checks that a bias has one number for each channel of the result.
pub(crate) fn expect_bias(bias: Option<&Type>, x: &Type, channels: &Dim) -> Result<(), TypeError> {
    let Some(bias) = bias else { return Ok(()) };
    expect_same_dtype("bias", bias, x)?;
    expect_rank("bias", bias, 1)?;
    expect_equal("bias and channels of the result", &bias.shape[0], channels)
}

/// The channels per group; an error if the number of groups does not divide the number of channels.
pub(crate) fn per_group(channels: &Dim, groups: usize) -> Result<Dim, TypeError> {
    let each = channels.div_exact(&Dim::Known(groups));
    each.filter(|_| groups > 0).ok_or_else(|| TypeError::Attr {
        name: "groups",
        reason: format!("{groups} does not divide {channels} channels"),
    })
}

impl OpSpec for Conv {
    const DOC: OpDoc = OpDoc {
        name: "conv",
        text: "Convolution (cross-correlation) in one to three dimensions: `x [N, C, ..]`, \
               `w [O, C / groups, ..]`, `bias [O]`; then `activation`, rounded once.",
        operands: &["x", "w", "bias?"],
        dtypes: DType::NUMBERS,
        accuracy: Accuracy::Contraction,
        tier: Tier::Composite,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::conv::conv);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let ([x, w], [bias]) = with_optional(operands)?;
        expect_dtype("x", x, DType::NUMBERS)?;
        expect_same_dtype("w", w, x)?;
        let axes = spatial_axes("x", x)?;
        expect_rank("w", w, axes + 2)?;
        self.window().check(axes)?;
        let kernel = kernel_sizes(w)?;
        per_group(&w.shape[0], self.groups)?;
        let channels = per_group(&x.shape[1], self.groups)?;
        expect_equal("channels of a group and of w", &channels, &w.shape[1])?;
        expect_bias(bias, x, &w.shape[0])?;
        expect_activation(self.activation, x.dtype)?;
        let window = self.window();
        Ok(vec![windowed(
            x,
            w.shape[0].clone(),
            &window,
            &kernel,
            false,
        )?])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let (x, w) = (operands[0], operands[1]);
        let bias = operands.get(2).map(|b| scalars(b));
        let window = self.window().on_three_axes();
        let (sizes, kernel) = (three(&x.shape()[2..]), three(&w.shape()[2..]));
        let windows = three(&results[0].shape[2..]);
        let (channels, own) = (x.shape()[1], w.shape()[1]);
        let of_group = (w.shape()[0] / self.groups).max(1);
        let d = results[0].dtype;
        let (xs, ws) = (scalars(x), scalars(w));
        let mut y = Vec::with_capacity(results[0].numel());
        let [p0, p1, p2] = windows;
        for_each_index(&[x.shape()[0], w.shape()[0], p0, p1, p2], |at| {
            let (n, o) = (at[0], at[1]);
            let first = n * channels + o / of_group * own;
            let (mut float, mut int) = (0.0, 0i64);
            for_each_index(&[own, kernel[0], kernel[1], kernel[2]], |tap| {
                let source = (0..3).try_fold(first + tap[0], |flat, axis| {
                    let n = sizes[axis];
                    Some(flat * n + window.source(axis, at[2 + axis], tap[1 + axis], n)?)
                });
                let Some(source) = source else { return };
                let weight = (0..4).zip([own, kernel[0], kernel[1], kernel[2]]);
                let weight = weight.fold(o, |flat, (axis, n)| flat * n + tap[axis]);
                match (xs[source], ws[weight]) {
                    (Scalar::I(a), Scalar::I(b)) => int = int.wrapping_add(a.wrapping_mul(b)),
                    (a, b) => float += a.as_f64() * b.as_f64(),
                }
            });
            let sum = match (d.is_float(), bias.as_ref().map(|b| b[o])) {
                (true, b) => Scalar::F(float + b.map_or(0.0, |b| b.as_f64())),
                (false, b) => {
                    let b = b.map_or(0, |b| b.as_i64());
                    Scalar::I(d.wrap_i64(int.wrapping_add(b)))
                }
            };
            y.push(self.activation.map_or(sum, |f| f.eval(d, sum)));
        });
        Ok(vec![from_scalars(results[0].clone(), &y)?])
    }
}

impl Graph {
    /// Convolution of `x [N, C, ..]` with `w [O, C / groups, ..]` in one to three dimensions, plus
    /// `bias [O]`. The result `[N, O, ..]` is rounded once; integers wrap. Padding is zeros; kernel
    /// sizes are known.
    ///
    /// # Errors
    /// [`OpError`] when shapes, dtypes or lists do not match, or no window fits into the padded
    /// operand.
    pub fn conv(
        &mut self,
        x: Value,
        w: Value,
        bias: Option<Value>,
        window: Window,
        groups: usize,
    ) -> Result<Value, OpError> {
        let operands: Vec<Value> = [x, w].into_iter().chain(bias).collect();
        self.add(Conv::new(window, groups, None), &operands)
    }
}
