//! Sums, means, products and extremes over any set of axes.

mod around;

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Dim, Tensor, TensorType, Type, row_major_strides};

use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{exactly, expect_axis, expect_dtype, for_each_index, from_scalars, scalars};
use crate::scalar::{Scalar, maximum, minimum};
use crate::{attrs, spelled};

spelled! {
    /// The function of a reduction.
    ///
    /// ```
    /// use tercet_ir::{DType, Graph, Type, ops::ReduceFn, scalar::Scalar};
    /// let mut g = Graph::new();
    /// let x = g.input("x", Type::new(DType::F32, [2, 3]))?;
    /// let y = g.reduce(ReduceFn::Max, x, &[1], true)?;
    /// assert_eq!(g.ty(y).to_string(), "f32[2, 1]");
    /// assert_eq!(ReduceFn::Prod.identity(DType::F32), Scalar::F(1.0));
    /// # Ok::<(), tercet_ir::OpError>(())
    /// ```
    pub enum ReduceFn {
        /// The sum; 0 for no elements.
        Sum "sum",
        /// The mean; NaN for no elements. Floats only.
        Mean "mean",
        /// The maximum; NaN if any element is NaN; for no elements `-inf` or the minimum integer.
        Max "max",
        /// The minimum; NaN if any element is NaN; for no elements `inf` or the maximum integer.
        Min "min",
        /// The product; 1 for no elements.
        Prod "prod",
    }
}

impl ReduceFn {
    /// The result for no elements of a dtype, before the division of `Mean`.
    pub fn identity(self, d: DType) -> Scalar {
        const INF: f64 = f64::INFINITY;
        match (self, d.int_range()) {
            (ReduceFn::Sum | ReduceFn::Mean, None) => Scalar::F(0.0),
            (ReduceFn::Sum | ReduceFn::Mean, Some(_)) => Scalar::I(0),
            (ReduceFn::Prod, None) => Scalar::F(1.0),
            (ReduceFn::Prod, Some(_)) => Scalar::I(1),
            (ReduceFn::Max, None) => Scalar::F(-INF),
            (ReduceFn::Max, Some((least, _))) => Scalar::I(least),
            (ReduceFn::Min, None) => Scalar::F(INF),
            (ReduceFn::Min, Some((_, greatest))) => Scalar::I(greatest),
        }
    }

    /// Combines two partial results: floats in `f64`, integers wrapped to `d`.
    pub(crate) fn combine(self, d: DType, a: Scalar, b: Scalar) -> Scalar {
        match (a, b) {
            (Scalar::I(a), Scalar::I(b)) => Scalar::I(d.wrap_i64(match self {
                ReduceFn::Sum | ReduceFn::Mean => a.wrapping_add(b),
                ReduceFn::Prod => a.wrapping_mul(b),
                ReduceFn::Max => a.max(b),
                ReduceFn::Min => a.min(b),
            })),
            (a, b) => Scalar::F(match (self, a.as_f64(), b.as_f64()) {
                (ReduceFn::Sum | ReduceFn::Mean, a, b) => a + b,
                (ReduceFn::Prod, a, b) => a * b,
                (ReduceFn::Max, a, b) => maximum(a, b),
                (ReduceFn::Min, a, b) => minimum(a, b),
            }),
        }
    }
}

attrs! {
    /// `y = f(x along axes)`. Without axes, the result equals the operand.
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use tercet_ir::{EvalCtx, Graph, Tensor, evaluate};
    /// let mut g = Graph::new();
    /// let x = g.constant(Tensor::from_slice(&[2, 2], &[1f32, 2.0, 3.0, 4.0])?)?;
    /// let rows = g.reduce_sum(x, &[1], true)?;
    /// let all = g.reduce_max(x, &[0, 1], false)?;
    /// assert_eq!(g.ty(rows).to_string(), "f32[2, 1]");
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// assert_eq!(done.get(rows).as_slice::<f32>()?, [3.0, 7.0]);
    /// assert_eq!(done.get(all).as_slice::<f32>()?, [4.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct Reduce {
        /// The reduction function.
        pub f: ReduceFn,
        /// The reduced axes, ascending.
        pub axes: Vec<usize>,
        /// Keeps reduced axes with size 1 if true.
        pub keep_dim: bool,
    }
}

impl OpSpec for Reduce {
    const DOC: OpDoc = OpDoc {
        name: "reduce",
        text: "Sum, mean, max, min or product along axes. Reduced axes are removed, or remain with \
               size 1 if `keep_dim`. Integers wrap; max and min propagate NaN.",
        operands: &["x"],
        dtypes: DType::NUMBERS,
        accuracy: Accuracy::Reduction,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::reduce::reduce);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [x] = exactly(operands)?;
        let accepted = match self.f {
            ReduceFn::Mean => DType::FLOATS,
            ReduceFn::Sum | ReduceFn::Max | ReduceFn::Min | ReduceFn::Prod => DType::NUMBERS,
        };
        expect_dtype("x", x, accepted)?;
        self.axes
            .iter()
            .try_for_each(|&a| expect_axis(a, x.rank()))?;
        if let Some(pair) = self.axes.windows(2).find(|p| p[0] >= p[1]) {
            let reason = format!(
                "{} is followed by {}; axes are named once, in ascending order",
                pair[0], pair[1]
            );
            return Err(TypeError::Attr {
                name: "axes",
                reason,
            });
        }
        let dims: Vec<Dim> = x
            .shape
            .iter()
            .enumerate()
            .filter_map(|(a, d)| match (self.axes.contains(&a), self.keep_dim) {
                (false, _) => Some(d.clone()),
                (true, true) => Some(Dim::Known(1)),
                (true, false) => None,
            })
            .collect();
        Ok(vec![x.with_shape(dims)])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let (x, shape, d) = (scalars(operands[0]), operands[0].shape(), results[0].dtype);
        let kept: Vec<usize> = (0..shape.len())
            .map(|a| if self.axes.contains(&a) { 1 } else { shape[a] })
            .collect();
        let strides = row_major_strides(&kept);
        let mut y = vec![self.f.identity(d); kept.iter().product()];
        let mut elements = x.into_iter();
        for_each_index(shape, |index| {
            let own = index.iter().zip(&kept).zip(&strides);
            let to: usize = own
                .map(|((&i, &n), &s)| if n == 1 { 0 } else { i * s })
                .sum();
            let x = elements.next().expect("invariant: one index per element");
            y[to] = self.f.combine(d, y[to], x);
        });
        if self.f == ReduceFn::Mean {
            let n: usize = self.axes.iter().map(|&a| shape[a]).product();
            y.iter_mut()
                .for_each(|y| *y = Scalar::F(y.as_f64() / n as f64));
        }
        Ok(vec![from_scalars(results[0].clone(), &y)?])
    }
}

/// Declares builder methods that apply a [`ReduceFn`].
macro_rules! reduce_methods {
    ($($(#[$doc:meta])* $name:ident => $f:ident),* $(,)?) => { impl Graph { $(
        $(#[$doc])*
        /// Reduces over `axes` (in any order), which remain with size 1 if `keep_dim`.
        ///
        /// # Errors
        /// As [`Graph::reduce`].
        pub fn $name(&mut self, x: Value, axes: &[usize], keep_dim: bool) -> Result<Value, OpError> {
            self.reduce(ReduceFn::$f, x, axes, keep_dim)
        }
    )* } };
}

impl Graph {
    /// Combines the elements of `x` along `axes` (in any order) with `f`, keeping the dtype.
    /// Reduced axes are removed, or remain with size 1 if `keep_dim`. Without axes the result is
    /// `x`.
    ///
    /// # Errors
    /// [`OpError`] when `x` is `Bool`, or an integer for `Mean`, or an axis is out of range or
    /// repeated.
    pub fn reduce(
        &mut self,
        f: ReduceFn,
        x: Value,
        axes: &[usize],
        keep_dim: bool,
    ) -> Result<Value, OpError> {
        let mut axes = axes.to_vec();
        axes.sort_unstable();
        self.add(Reduce { f, axes, keep_dim }, &[x])
    }
}

reduce_methods! {
    /// The sum; 0 for no elements. Integers wrap.
    reduce_sum => Sum,
    /// The mean of floats; NaN for no elements.
    reduce_mean => Mean,
    /// The maximum; NaN if any element is NaN; for no elements `-inf` or the minimum integer.
    reduce_max => Max,
    /// The minimum; NaN if any element is NaN; for no elements `inf` or the maximum integer.
    reduce_min => Min,
    /// The product; 1 for no elements. Integers wrap.
    reduce_prod => Prod,
}
