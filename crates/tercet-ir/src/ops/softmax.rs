//! Softmax along one axis, and its logarithm.

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Tensor, TensorType, Type};

use crate::attrs;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{AxisView, exactly, expect_axis, expect_dtype};
use crate::scalar::maximum;

attrs! {
    /// `y = exp(x - max) / sum(exp(x - max))` along one axis; a line of only `-inf` gives zeros.
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use tercet_ir::{EvalCtx, Graph, Tensor, evaluate};
    /// let mut g = Graph::new();
    /// let x = g.constant(Tensor::from_slice(&[2], &[0f32, 0.0])?)?;
    /// let y = g.softmax(x, 0)?;
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// assert_eq!(done.get(y).as_slice::<f32>()?, [0.5, 0.5]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct Softmax {
        /// The normalized axis.
        pub axis: usize,
    }
}

attrs! {
    /// `y = x - max - ln(sum(exp(x - max)))` along one axis. A line of only `-inf` stays `-inf`,
    /// the logarithm of the zeros that softmax gives.
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use tercet_ir::{EvalCtx, Graph, Tensor, evaluate};
    /// let mut g = Graph::new();
    /// let x = g.constant(Tensor::from_slice(&[1], &[7f32])?)?;
    /// let y = g.log_softmax(x, 0)?;
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// assert_eq!(done.get(y).as_slice::<f32>()?, [0.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct LogSoftmax {
        /// The normalized axis.
        pub axis: usize,
    }
}

const INF: f64 = f64::INFINITY;

const fn doc(name: &'static str, text: &'static str) -> OpDoc {
    OpDoc {
        name,
        text,
        operands: &["x"],
        dtypes: DType::FLOATS,
        accuracy: Accuracy::Reduction,
        tier: Tier::Composite,
    }
}

fn infer(operands: &[&Type], axis: usize) -> Result<Vec<Type>, TypeError> {
    let [x] = exactly(operands)?;
    expect_dtype("x", x, DType::FLOATS)?;
    expect_axis(axis, x.rank())?;
    Ok(vec![x.clone()])
}

/// `finish(x - max, sum)` of each element; lines of only `-inf` are set to a fixed value.
fn eval(
    x: &Tensor,
    axis: usize,
    ty: &TensorType,
    fill: f64,
    finish: fn(f64, f64) -> f64,
) -> Result<Vec<Tensor>, EvalError> {
    let view = AxisView::new(x.shape(), axis);
    let x = x.to_f64s();
    let mut y = vec![fill; x.len()];
    view.for_each_line(|start| {
        let line = view.line(start);
        let max = line.clone().map(|i| x[i]).fold(f64::NEG_INFINITY, maximum);
        if max == f64::NEG_INFINITY {
            return;
        }
        let sum: f64 = line.clone().map(|i| (x[i] - max).exp()).sum();
        line.for_each(|i| y[i] = finish(x[i] - max, sum));
    });
    Ok(vec![Tensor::from_f64s(ty.clone(), &y)?])
}

impl OpSpec for Softmax {
    const DOC: OpDoc = doc(
        "softmax",
        "`exp(x - max) / sum(exp(x - max))` along an axis; a line of only `-inf` gives zeros.",
    );

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::reduce::softmax);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        infer(operands, self.axis)
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        eval(operands[0], self.axis, &results[0], 0.0, |x, sum| {
            x.exp() / sum
        })
    }
}

impl OpSpec for LogSoftmax {
    const DOC: OpDoc = doc(
        "log_softmax",
        "`x - max - ln(sum(exp(x - max)))` along an axis; a line of only `-inf` stays `-inf`.",
    );

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::reduce::log_softmax);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        infer(operands, self.axis)
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        eval(operands[0], self.axis, &results[0], -INF, |x, sum| {
            x - sum.ln()
        })
    }
}

impl Graph {
    /// Softmax of floats along `axis`; the shape does not change.
    ///
    /// # Errors
    /// [`OpError`] when `x` is not a float or `axis` is out of range.
    pub fn softmax(&mut self, x: Value, axis: usize) -> Result<Value, OpError> {
        self.add(Softmax { axis }, &[x])
    }

    /// The logarithm of softmax of floats along `axis`; the shape does not change.
    ///
    /// # Errors
    /// [`OpError`] when `x` is not a float or `axis` is out of range.
    pub fn log_softmax(&mut self, x: Value, axis: usize) -> Result<Value, OpError> {
        self.add(LogSoftmax { axis }, &[x])
    }
}
