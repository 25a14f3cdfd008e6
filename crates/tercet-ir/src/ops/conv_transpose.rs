//! Transposed convolution.

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Dim, Tensor, TensorType, Type};

use crate::attrs;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::conv::{expect_bias, per_group};
use crate::ops::util::{
    expect_dtype, expect_equal, expect_rank, expect_same_dtype, for_each_index, from_scalars,
    overflow, scalars, with_optional,
};
use crate::ops::window::{Window, check_list, kernel_sizes, spatial_axes, three};
use crate::scalar::Scalar;

attrs! {
    /// Transposed convolution: `y[n, o, i stride + t dilation - pad] += w[c, o, t] x[n, c, i]`,
    /// plus `bias[o]`. A transposed convolution is the gradient of a convolution with respect to
    /// its operand.
    ///
    /// ```
    /// use tercet_ir::{DType, Graph, Type, ops::Window};
    /// let mut g = Graph::new();
    /// let x = g.input("x", Type::new(DType::F32, [1, 8, 5, 5]))?;
    /// let w = g.param("w", Type::new(DType::F32, [8, 4, 2, 2]))?;
    /// let window = Window::new(2).with_stride(&[2, 2]);
    /// let y = g.conv_transpose(x, w, None, window, &[0, 0], 1)?;
    /// assert_eq!(g.ty(y).to_string(), "f32[1, 4, 10, 10]");
    /// # Ok::<(), tercet_ir::OpError>(())
    /// ```
    pub struct ConvTranspose {
        /// Distance in the result between the windows of neighbouring elements.
        pub stride: Vec<usize>,
        /// Number of results cropped at the start of each spatial axis.
        pub pad_before: Vec<usize>,
        /// Number of results cropped at the end of each spatial axis.
        pub pad_after: Vec<usize>,
        /// Distance between neighbouring taps.
        pub dilation: Vec<usize>,
        /// Number of results added at the end of each spatial axis.
        pub output_padding: Vec<usize>,
        /// Number of channel groups; each group of input channels contributes to its group of
        /// output channels.
        pub groups: usize,
    }
}

impl ConvTranspose {
    /// The operator for these windows on the result.
    pub fn new(window: Window, output_padding: &[usize], groups: usize) -> ConvTranspose {
        let Window {
            stride,
            pad_before,
            pad_after,
            dilation,
        } = window;
        ConvTranspose {
            stride,
            pad_before,
            pad_after,
            dilation,
            output_padding: output_padding.to_vec(),
            groups,
        }
    }

    /// The windows on the result.
    pub fn window(&self) -> Window {
        Window {
            stride: self.stride.clone(),
            pad_before: self.pad_before.clone(),
            pad_after: self.pad_after.clone(),
            dilation: self.dilation.clone(),
        }
    }

    /// The number of results along a spatial axis of `n` elements: `(n - 1) stride + (kernel - 1)
    /// dilation + 1 + output_padding - pad_before - pad_after`.
    fn count(&self, axis: usize, n: &Dim, kernel: usize) -> Result<Dim, TypeError> {
        let stride = self.stride[axis];
        let none = || {
            TypeError::Other(format!(
                "spatial axis {axis} of size {n} has no result: {kernel} taps, {} before and {} after \
                 left out",
                self.pad_before[axis], self.pad_after[axis]
            ))
        };
        let reach = (kernel - 1).checked_mul(self.dilation[axis]);
        let added = reach.and_then(|r| r.checked_add(1 + self.output_padding[axis]));
        let left_out = stride + self.pad_before[axis] + self.pad_after[axis];
        let all = n
            .checked_mul(&Dim::Known(stride))
            .zip(added)
            .and_then(|(n, added)| n.checked_add(&Dim::Known(added)));
        let count = all.and_then(|all| all.checked_sub(&Dim::Known(left_out)));
        count.filter(|n| *n != Dim::Known(0)).ok_or_else(none)
    }
}

impl OpSpec for ConvTranspose {
    const DOC: OpDoc = OpDoc {
        name: "conv_transpose",
        text: "Transposed convolution in one to three dimensions: each element `i` of `x [N, C, \
               ..]` times `w [C, O / groups, ..]` is added to the results at `i stride + t \
               dilation - pad_before`, plus `bias [O]`; rounded once.",
        operands: &["x", "w", "bias?"],
        dtypes: DType::NUMBERS,
        accuracy: Accuracy::Contraction,
        tier: Tier::Composite,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::conv::conv_transpose);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let ([x, w], [bias]) = with_optional(operands)?;
        expect_dtype("x", x, DType::NUMBERS)?;
        expect_same_dtype("w", w, x)?;
        let axes = spatial_axes("x", x)?;
        expect_rank("w", w, axes + 2)?;
        self.window().check(axes)?;
        check_list("output_padding", &self.output_padding, axes, 0)?;
        for axis in 0..axes {
            let most = self.stride[axis].max(self.dilation[axis]);
            let own = self.output_padding[axis];
            if own >= most {
                let reason = format!(
                    "{own} is out of range; expected less than the stride or the dilation, {most}"
                );
                return Err(TypeError::Attr {
                    name: "output_padding",
                    reason,
                });
            }
        }
        let kernel = kernel_sizes(w)?;
        expect_equal("channels of x and of w", &x.shape[1], &w.shape[0])?;
        per_group(&x.shape[1], self.groups)?;
        let channels = w.shape[1].checked_mul(&Dim::Known(self.groups));
        let channels = channels.ok_or_else(|| overflow(w))?;
        expect_bias(bias, x, &channels)?;
        let mut dims = vec![x.shape[0].clone(), channels];
        for (axis, &taps) in kernel.iter().enumerate() {
            dims.push(self.count(axis, &x.shape[2 + axis], taps)?);
        }
        let ty = x.with_shape(dims);
        match ty.shape.numel() {
            Some(_) => Ok(vec![ty]),
            None => Err(overflow(&ty)),
        }
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let (x, w) = (operands[0], operands[1]);
        let window = self.window().on_three_axes();
        let (sizes, kernel) = (three(&x.shape()[2..]), three(&w.shape()[2..]));
        let out = three(&results[0].shape[2..]);
        let channels = x.shape()[1];
        let (own, of_group) = (w.shape()[1], (channels / self.groups).max(1));
        let d = results[0].dtype;
        let (xs, ws) = (scalars(x), scalars(w));
        let plane: usize = out.iter().product();
        let zero = match d.is_float() {
            true => Scalar::F(0.0),
            false => Scalar::I(0),
        };
        let mut y = vec![zero; results[0].numel()];
        let add = |y: &mut Scalar, more: Scalar| {
            *y = match (*y, more) {
                (Scalar::I(a), Scalar::I(b)) => Scalar::I(a.wrapping_add(b)),
                (a, b) => Scalar::F(a.as_f64() + b.as_f64()),
            }
        };
        let [s0, s1, s2] = sizes;
        let mut elements = xs.iter();
        for_each_index(&[x.shape()[0], channels, s0, s1, s2], |at| {
            let Some(x) = elements.next() else { return };
            let (n, c) = (at[0], at[1]);
            let first = n * self.groups * own + c / of_group * own;
            for_each_index(&[own, kernel[0], kernel[1], kernel[2]], |tap| {
                // The window of element `i` on the result covers the same positions as in the
                // convolution.
                let to = (0..3).try_fold(first + tap[0], |flat, axis| {
                    let n = out[axis];
                    Some(flat * n + window.source(axis, at[2 + axis], tap[1 + axis], n)?)
                });
                let weight = (0..4).zip([own, kernel[0], kernel[1], kernel[2]]);
                let weight = weight.fold(c, |flat, (axis, n)| flat * n + tap[axis]);
                let more = match (*x, ws[weight]) {
                    (Scalar::I(a), Scalar::I(b)) => Scalar::I(a.wrapping_mul(b)),
                    (a, b) => Scalar::F(a.as_f64() * b.as_f64()),
                };
                if let Some(to) = to {
                    add(&mut y[to], more);
                }
            });
        });
        if let Some(bias) = operands.get(2).map(|b| scalars(b)) {
            for (i, y) in y.iter_mut().enumerate() {
                add(y, bias[i / plane % bias.len()]);
            }
        }
        for y in &mut y {
            if let Scalar::I(i) = y {
                *i = d.wrap_i64(*i);
            }
        }
        Ok(vec![from_scalars(results[0].clone(), &y)?])
    }
}

impl Graph {
    /// The transposed convolution of `x [N, C, ..]` with `w [C, O / groups, ..]` in one to three
    /// dimensions, plus `bias [O]`, rounded once; integers wrap. `window` moves over the result. An
    /// axis of `n` elements has `(n - 1) stride + (kernel - 1) dilation + 1 + output_padding`
    /// results, minus the pads.
    ///
    /// # Errors
    /// [`OpError`] when shapes, dtypes or lists do not match, or the result has no elements.
    pub fn conv_transpose(
        &mut self,
        x: Value,
        w: Value,
        bias: Option<Value>,
        window: Window,
        output_padding: &[usize],
        groups: usize,
    ) -> Result<Value, OpError> {
        let operands: Vec<Value> = [x, w].into_iter().chain(bias).collect();
        self.add(
            ConvTranspose::new(window, output_padding, groups),
            &operands,
        )
    }
}
