//! Pooling.

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Tensor, TensorType, Type};

use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::reduce::ReduceFn;
use crate::ops::util::{exactly, expect_dtype, for_each_index, from_scalars, scalars};
use crate::ops::window::{Window, check_list, spatial_axes, three, windowed};
use crate::scalar::Scalar;
use crate::{attrs, spelled};

spelled! {
    /// The function of the elements of a window.
    ///
    /// ```
    /// use tercet_ir::ops::{PoolFn, Window};
    /// use tercet_ir::{DType, Graph, Type};
    /// let mut g = Graph::new();
    /// let x = g.input("x", Type::new(DType::F32, [1, 3, 8, 8]))?;
    /// let y = g.pool(x, PoolFn::Max, &[2, 2], Window::new(2).with_stride(&[2, 2]))?;
    /// assert_eq!(g.ty(y).to_string(), "f32[1, 3, 4, 4]");
    /// # Ok::<(), tercet_ir::OpError>(())
    /// ```
    pub enum PoolFn {
        /// The maximum; NaN if any element is NaN; for an empty window `-inf` or the minimum
        /// integer.
        Max "max",
        /// The sum divided by the number of elements; NaN for an empty window.
        Mean "mean",
        /// The sum; integers wrap; 0 for an empty window.
        Sum "sum",
        /// The minimum; NaN if any element is NaN; for an empty window `inf` or the maximum
        /// integer.
        Min "min",
        /// The product; integers wrap; 1 for an empty window.
        Prod "prod",
    }
}

impl PoolFn {
    /// The reduction of the elements of a window.
    pub fn reduction(self) -> ReduceFn {
        match self {
            PoolFn::Max => ReduceFn::Max,
            PoolFn::Mean => ReduceFn::Mean,
            PoolFn::Sum => ReduceFn::Sum,
            PoolFn::Min => ReduceFn::Min,
            PoolFn::Prod => ReduceFn::Prod,
        }
    }
}

attrs! {
    /// A function of the elements that each window covers; padding is excluded.
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use tercet_ir::{EvalCtx, Graph, Tensor, evaluate, ops::{PoolFn, Window}};
    /// let mut g = Graph::new();
    /// let x = g.constant(Tensor::from_slice(&[1, 1, 4], &[1f32, 5.0, 2.0, 4.0])?)?;
    /// let y = g.pool(x, PoolFn::Mean, &[2], Window::new(1).with_stride(&[2]))?;
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// assert_eq!(done.get(y).as_slice::<f32>()?, [3.0, 3.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct Pool {
        /// The pooling function.
        pub f: PoolFn,
        /// Number of taps of a window along each spatial axis.
        pub kernel: Vec<usize>,
        /// Distance between neighbouring windows.
        pub stride: Vec<usize>,
        /// Padding before each spatial axis.
        pub pad_before: Vec<usize>,
        /// Padding after each spatial axis.
        pub pad_after: Vec<usize>,
        /// Distance between neighbouring taps.
        pub dilation: Vec<usize>,
        /// Whether a last window may extend beyond the padding after an axis. That window must
        /// begin inside the operand or the padding before it.
        pub ceil: bool,
        /// Whether a mean counts taps on padding; taps beyond the padding never count.
        pub count_include_pad: bool,
    }
}

impl Pool {
    /// The operator for windows with these numbers of taps.
    pub fn new(f: PoolFn, kernel: &[usize], window: Window) -> Pool {
        let Window {
            stride,
            pad_before,
            pad_after,
            dilation,
        } = window;
        Pool {
            f,
            kernel: kernel.to_vec(),
            stride,
            pad_before,
            pad_after,
            dilation,
            ceil: false,
            count_include_pad: false,
        }
    }

    /// Permits a last window that extends beyond the padding.
    pub fn with_ceil(mut self) -> Pool {
        self.ceil = true;
        self
    }

    /// Makes a mean count taps on padding.
    pub fn counting_pad(mut self) -> Pool {
        self.count_include_pad = true;
        self
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

impl OpSpec for Pool {
    const DOC: OpDoc = OpDoc {
        name: "pool",
        text: "Max, mean, sum, min or product of `x [N, C, ..]` over the elements of each window, \
               in one to three dimensions. Max and min propagate NaN, integers wrap. A mean divides by the \
               number of covered elements; with `count_include_pad`, taps on padding count too.",
        operands: &["x"],
        dtypes: DType::NUMBERS,
        accuracy: Accuracy::Reduction,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::pool::pool);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [x] = exactly(operands)?;
        let accepted = match self.f {
            PoolFn::Mean => DType::FLOATS,
            PoolFn::Max | PoolFn::Sum | PoolFn::Min | PoolFn::Prod => DType::NUMBERS,
        };
        expect_dtype("x", x, accepted)?;
        let axes = spatial_axes("x", x)?;
        check_list("kernel", &self.kernel, axes, 1)?;
        let window = self.window();
        window.check(axes)?;
        if self.count_include_pad && self.f != PoolFn::Mean {
            let reason = format!("{} does not use a count; expected false", self.f.name());
            return Err(TypeError::Attr {
                name: "count_include_pad",
                reason,
            });
        }
        let channels = x.shape[1].clone();
        Ok(vec![windowed(
            x,
            channels,
            &window,
            &self.kernel,
            self.ceil,
        )?])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let x = operands[0];
        let window = self.window().on_three_axes();
        let (sizes, kernel) = (three(&x.shape()[2..]), three(&self.kernel));
        let [p0, p1, p2] = three(&results[0].shape[2..]);
        let d = results[0].dtype;
        let f = self.f.reduction();
        let xs = scalars(x);
        let mut y = Vec::with_capacity(results[0].numel());
        for_each_index(&[x.shape()[0] * x.shape()[1], p0, p1, p2], |at| {
            let (mut all, mut count) = (f.identity(d), 0usize);
            for_each_index(&kernel, |tap| {
                let source = (0..3).try_fold(at[0], |flat, axis| {
                    let n = sizes[axis];
                    Some(flat * n + window.source(axis, at[1 + axis], tap[axis], n)?)
                });
                let on_pad = (0..3).all(|axis| {
                    let end = sizes[axis] + window.pad_before[axis] + window.pad_after[axis];
                    at[1 + axis] * window.stride[axis] + tap[axis] * window.dilation[axis] < end
                });
                count += usize::from(source.is_some() || (self.count_include_pad && on_pad));
                if let Some(source) = source {
                    all = f.combine(d, all, xs[source]);
                }
            });
            y.push(match self.f {
                PoolFn::Mean => Scalar::F(all.as_f64() / count as f64),
                PoolFn::Max | PoolFn::Sum | PoolFn::Min | PoolFn::Prod => all,
            });
        });
        Ok(vec![from_scalars(results[0].clone(), &y)?])
    }
}

impl Graph {
    /// Pooling of `x [N, C, ..]` over windows of `kernel` taps, in one to three dimensions. Means
    /// need floats and count elements only; for other options, add a [`Pool`].
    ///
    /// # Errors
    /// [`OpError`] when the dtype is not supported, a list does not have one value for each spatial
    /// axis, or no window fits.
    pub fn pool(
        &mut self,
        x: Value,
        f: PoolFn,
        kernel: &[usize],
        window: Window,
    ) -> Result<Value, OpError> {
        self.add(Pool::new(f, kernel, window), &[x])
    }
}
