//! The index of the maximum or minimum along an axis.

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Dim, Tensor, TensorType, Type};

use crate::attrs;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::Gradient;
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{AxisView, exactly, expect_axis, extreme_order, scalars};

attrs! {
    /// The `I32` index of the maximum along an axis. NaN counts as the maximum; ties go to the
    /// lower index.
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use tercet_ir::{EvalCtx, Graph, Tensor, evaluate};
    /// let mut g = Graph::new();
    /// let x = g.constant(Tensor::from_slice(&[3], &[1f32, 5.0, 5.0])?)?;
    /// let y = g.arg_max(x, 0, false)?;
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// assert_eq!(done.get(y).as_slice::<i32>()?, [1]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct ArgMax {
        /// The reduced axis, which must not be empty.
        pub axis: usize,
        /// Keeps the axis with size 1 if true, else removes it.
        pub keep_dim: bool,
    }
}

attrs! {
    /// The `I32` index of the minimum along an axis. NaN counts as the minimum; ties go to the
    /// lower index.
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use tercet_ir::{EvalCtx, Graph, Tensor, evaluate};
    /// let mut g = Graph::new();
    /// let x = g.constant(Tensor::from_slice(&[2, 2], &[1f32, 5.0, 3.0, 2.0])?)?;
    /// let y = g.arg_min(x, 1, true)?;
    /// assert_eq!(g.ty(y).to_string(), "i32[2, 1]");
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// assert_eq!(done.get(y).as_slice::<i32>()?, [0, 1]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct ArgMin {
        /// The reduced axis, which must not be empty.
        pub axis: usize,
        /// Keeps the axis with size 1 if true, else removes it.
        pub keep_dim: bool,
    }
}

const fn doc(name: &'static str, text: &'static str) -> OpDoc {
    OpDoc {
        name,
        text,
        operands: &["x"],
        dtypes: DType::ALL,
        accuracy: Accuracy::Exact,
        tier: Tier::Core,
    }
}

const EMPTY: &str = "an axis of size 0 has no extreme element";

fn infer(operands: &[&Type], axis: usize, keep_dim: bool) -> Result<Vec<Type>, TypeError> {
    let [x] = exactly(operands)?;
    expect_axis(axis, x.rank())?;
    let mut dims = x.shape.to_vec();
    let size = dims.remove(axis);
    if size == Dim::Known(0) && !dims.contains(&Dim::Known(0)) {
        return Err(TypeError::Other(EMPTY.to_string()));
    }
    if keep_dim {
        dims.insert(axis, Dim::Known(1));
    }
    Ok(vec![Type::new(DType::I32, dims)])
}

fn eval(x: &Tensor, axis: usize, largest: bool, ty: &TensorType) -> Result<Vec<Tensor>, EvalError> {
    let data = scalars(x);
    let view = AxisView::new(x.shape(), axis);
    let lines = view.outer * view.inner;
    if view.len == 0 && lines > 0 {
        return Err(EvalError::Data(EMPTY.to_string()));
    }
    let mut indices = Vec::with_capacity(lines);
    view.for_each_line(|start| {
        let at = |i: usize| data[start + i * view.inner];
        let first = |best: usize, i: usize| match extreme_order(at(i), at(best), largest) {
            std::cmp::Ordering::Less => i,
            std::cmp::Ordering::Equal | std::cmp::Ordering::Greater => best,
        };
        indices.push((1..view.len).fold(0, first) as i64);
    });
    Ok(vec![Tensor::from_i64s(ty.clone(), &indices)?])
}

impl OpSpec for ArgMax {
    const DOC: OpDoc = doc(
        "arg_max",
        "The `i32` index of the maximum along an axis. NaN counts as the maximum; ties go to the \
         lower index.",
    );

    const GRADIENT: Gradient<Self> = Gradient::Zero("indices are integers");

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        infer(operands, self.axis, self.keep_dim)
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        eval(operands[0], self.axis, true, &results[0])
    }
}

impl OpSpec for ArgMin {
    const DOC: OpDoc = doc(
        "arg_min",
        "The `i32` index of the minimum along an axis. NaN counts as the minimum; ties go to the \
         lower index.",
    );

    const GRADIENT: Gradient<Self> = Gradient::Zero("indices are integers");

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        infer(operands, self.axis, self.keep_dim)
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        eval(operands[0], self.axis, false, &results[0])
    }
}

impl Graph {
    /// The `I32` index of the maximum of `x`, of any dtype, along `axis`. `keep_dim` keeps the axis
    /// with size 1. NaN counts as the maximum; ties go to the lower index.
    ///
    /// # Errors
    /// [`OpError`] when `axis` is out of range or of size 0.
    pub fn arg_max(&mut self, x: Value, axis: usize, keep_dim: bool) -> Result<Value, OpError> {
        self.add(ArgMax { axis, keep_dim }, &[x])
    }

    /// The `I32` index of the minimum of `x`, of any dtype, along `axis`. `keep_dim` keeps the axis
    /// with size 1. NaN counts as the minimum; ties go to the lower index.
    ///
    /// # Errors
    /// [`OpError`] when `axis` is out of range or of size 0.
    pub fn arg_min(&mut self, x: Value, axis: usize, keep_dim: bool) -> Result<Value, OpError> {
        self.add(ArgMin { axis, keep_dim }, &[x])
    }
}
