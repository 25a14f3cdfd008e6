//! The gradient of a convolution with respect to its weights.

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Dim, Tensor, TensorType, Type};

use crate::attrs;
use crate::error::{EvalError, TypeError};
use crate::grad::{Gradient, rules};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::conv::per_group;
use crate::ops::util::{
    exactly, expect_dtype, expect_same_dtype, for_each_index, from_scalars, scalars,
};
use crate::ops::window::{Window, check_list, spatial_axes, three, windowed};
use crate::scalar::Scalar;

attrs! {
    /// `dw[o, c, t] = sum_{n, p} dy[n, o, p] x[n, first(o) + c, p stride + t dilation - pad]`. The
    /// operator multiplies the same pairs as [`Conv`](super::Conv), but sums over the batch and the
    /// windows instead of channels and taps.
    ///
    /// ```
    /// use tercet_ir::{DType, Graph, Type, ops::{ConvWeightGrad, Window}};
    /// let mut g = Graph::new();
    /// let x = g.input("x", Type::new(DType::F32, [2, 8, 6, 6]))?;
    /// let dy = g.input("dy", Type::new(DType::F32, [2, 4, 4, 4]))?;
    /// let dw = g.add(ConvWeightGrad::new(vec![3, 3], Window::new(2), 1), &[x, dy])?;
    /// assert_eq!(g.ty(dw).to_string(), "f32[4, 8, 3, 3]");
    /// # Ok::<(), tercet_ir::OpError>(())
    /// ```
    pub struct ConvWeightGrad {
        /// Number of taps of a window along each spatial axis.
        pub kernel: Vec<usize>,
        /// Distance between neighbouring windows.
        pub stride: Vec<usize>,
        /// Zeros before each spatial axis.
        pub pad_before: Vec<usize>,
        /// Zeros after each spatial axis.
        pub pad_after: Vec<usize>,
        /// Distance between neighbouring taps.
        pub dilation: Vec<usize>,
        /// Number of channel groups of both operands.
        pub groups: usize,
    }
}

impl ConvWeightGrad {
    /// The operator for these windows.
    pub fn new(kernel: Vec<usize>, window: Window, groups: usize) -> ConvWeightGrad {
        let Window {
            stride,
            pad_before,
            pad_after,
            dilation,
        } = window;
        ConvWeightGrad {
            kernel,
            stride,
            pad_before,
            pad_after,
            dilation,
            groups,
        }
    }

    /// The windows of the convolution.
    pub fn window(&self) -> Window {
        Window {
            stride: self.stride.clone(),
            pad_before: self.pad_before.clone(),
            pad_after: self.pad_after.clone(),
            dilation: self.dilation.clone(),
        }
    }
}

impl OpSpec for ConvWeightGrad {
    const DOC: OpDoc = OpDoc {
        name: "conv_weight_grad",
        text: "The cotangent of the weights of `conv`, `[O, C / groups, kernel..]`, from `x [N, C, \
               ..]` and the cotangent `dy [N, O, windows..]` of its result. It sums over the batch \
               and all windows.",
        operands: &["x", "dy"],
        dtypes: DType::FLOATS,
        accuracy: Accuracy::Contraction,
        tier: Tier::Composite,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::conv::conv_weight_grad);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [x, dy] = exactly(operands)?;
        expect_dtype("x", x, DType::FLOATS)?;
        expect_same_dtype("dy", dy, x)?;
        let axes = spatial_axes("x", x)?;
        check_list("kernel", &self.kernel, axes, 1)?;
        self.window().check(axes)?;
        let own = per_group(&x.shape[1], self.groups)?;
        let channels = dy.shape.get(1).cloned().unwrap_or(Dim::Known(0));
        let wanted = windowed(x, channels.clone(), &self.window(), &self.kernel, false)?;
        if *dy != wanted {
            let reason = format!("dy is {dy}; accepted: {wanted} with any number of channels");
            return Err(TypeError::Other(reason));
        }
        per_group(&channels, self.groups)?;
        let taps = self.kernel.iter().map(|k| Dim::Known(*k));
        let shape: Vec<Dim> = [channels, own].into_iter().chain(taps).collect();
        Ok(vec![x.with_shape(shape)])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let (x, dy) = (operands[0], operands[1]);
        let window = self.window().on_three_axes();
        let (sizes, kernel) = (three(&x.shape()[2..]), three(&self.kernel));
        let [p0, p1, p2] = three(&dy.shape()[2..]);
        let (channels, all) = (x.shape()[1], dy.shape()[1]);
        let own = results[0].shape[1];
        let of_group = (all / self.groups).max(1);
        let (xs, dys) = (scalars(x), scalars(dy));
        let mut dw = Vec::with_capacity(results[0].numel());
        let [k0, k1, k2] = kernel;
        for_each_index(&[all, own, k0, k1, k2], |at| {
            let mut sum = 0.0;
            for_each_index(&[x.shape()[0], p0, p1, p2], |from| {
                let first = from[0] * channels + at[0] / of_group * own + at[1];
                let source = (0..3).try_fold(first, |flat, axis| {
                    let n = sizes[axis];
                    Some(flat * n + window.source(axis, from[1 + axis], at[2 + axis], n)?)
                });
                let Some(source) = source else { return };
                let place = (from[0] * all + at[0]) * p0 + from[1];
                let place = (place * p1 + from[2]) * p2 + from[3];
                sum += xs[source].as_f64() * dys[place].as_f64();
            });
            dw.push(Scalar::F(sum));
        });
        Ok(vec![from_scalars(results[0].clone(), &dw)?])
    }
}
