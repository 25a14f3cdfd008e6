//! Reading and writing of windows whose start indices are data.
//!
//! A negative start counts from the end. Every start is then clamped so that the window fits.

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Dim, Shape, Tensor, TensorType, Type, row_major_strides};

use crate::attrs;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{
    INDEX_DTYPES, exactly, expect_dtype, expect_equal, expect_rank, expect_same_dtype,
    for_each_index, pick,
};

attrs! {
    /// The window of `sizes` at `starts`, clamped so that it fits.
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use tercet_ir::{EvalCtx, Graph, Tensor, evaluate};
    /// let mut g = Graph::new();
    /// let x = g.constant(Tensor::from_slice(&[4], &[1f32, 2.0, 3.0, 4.0])?)?;
    /// let starts = g.constant(Tensor::from_slice(&[1], &[3i32])?)?;
    /// // The window of 2 elements begins at 2, so that it fits.
    /// let y = g.dynamic_slice(x, starts, [2usize])?;
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// assert_eq!(done.get(y).as_slice::<f32>()?, [3.0, 4.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct DynamicSlice {
        /// The shape of the window.
        pub sizes: Shape,
    }
}

attrs! {
    /// `x` with the window at `starts` replaced by `update`; the starts are clamped so that it
    /// fits.
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use tercet_ir::{EvalCtx, Graph, Tensor, evaluate};
    /// let mut g = Graph::new();
    /// let x = g.constant(Tensor::from_slice(&[4], &[1f32, 2.0, 3.0, 4.0])?)?;
    /// let update = g.constant(Tensor::from_slice(&[2], &[10f32, 20.0])?)?;
    /// let starts = g.constant(Tensor::from_slice(&[1], &[1i32])?)?;
    /// let y = g.dynamic_update_slice(x, update, starts)?;
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// assert_eq!(done.get(y).as_slice::<f32>()?, [1.0, 10.0, 20.0, 4.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct DynamicUpdateSlice {}
}

/// Checks that the window is not larger than the operand, and that there is one start for each
/// axis.
fn check_window(x: &Type, window: &[Dim], starts: &Type) -> Result<(), TypeError> {
    expect_dtype("starts", starts, INDEX_DTYPES)?;
    expect_rank("starts", starts, 1)?;
    expect_equal(
        "number of starts and axes",
        &starts.shape[0],
        &Dim::Known(x.rank()),
    )?;
    for (axis, (w, n)) in window.iter().zip(x.shape.iter()).enumerate() {
        if w.known().zip(n.known()).is_some_and(|(w, n)| w > n) {
            let reason = format!("a window of {w} does not fit axis {axis} of size {n}");
            return Err(TypeError::Other(reason));
        }
    }
    Ok(())
}

/// The clamped start of the window, for the sizes of one run.
fn window_starts(starts: &Tensor, x: &[usize], window: &[usize]) -> Result<Vec<usize>, EvalError> {
    let along = starts.to_i64s().into_iter().zip(x).zip(window).enumerate();
    along
        .map(|(axis, ((start, &n), &w))| {
            let Some(last) = n.checked_sub(w) else {
                let reason = format!("a window of {w} does not fit axis {axis} of size {n}");
                return Err(EvalError::Data(reason));
            };
            let start = if start < 0 {
                start.saturating_add(n as i64)
            } else {
                start
            };
            Ok(start.clamp(0, last as i64) as usize)
        })
        .collect()
}

/// The flat index of an element of the window.
fn flat(index: &[usize], starts: &[usize], strides: &[usize]) -> usize {
    let own = index.iter().zip(starts).zip(strides);
    own.map(|((i, start), stride)| (i + start) * stride).sum()
}

impl OpSpec for DynamicSlice {
    const DOC: OpDoc = OpDoc {
        name: "dynamic_slice",
        text: "The window of `sizes` at `starts` (one for each axis). Negative starts count from \
               the end; then starts are clamped so that the window fits.",
        operands: &["x", "starts"],
        dtypes: DType::ALL,
        accuracy: Accuracy::Exact,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::index::dynamic_slice);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [x, starts] = exactly(operands)?;
        if self.sizes.rank() != x.rank() {
            let reason = format!("{} sizes for {} axes", self.sizes.rank(), x.rank());
            return Err(TypeError::Attr {
                name: "sizes",
                reason,
            });
        }
        check_window(x, &self.sizes, starts)?;
        Ok(vec![x.with_shape(self.sizes.clone())])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let x = operands[0];
        let starts = window_starts(operands[1], x.shape(), &results[0].shape)?;
        let strides = row_major_strides(x.shape());
        let y = pick(x, &results[0], |index| flat(index, &starts, &strides))?;
        Ok(vec![y])
    }
}

impl OpSpec for DynamicUpdateSlice {
    const DOC: OpDoc = OpDoc {
        name: "dynamic_update_slice",
        text: "`x` with the window at `starts` (one for each axis) replaced by `update`. Negative \
               starts count from the end; then starts are clamped so that the window fits.",
        operands: &["x", "update", "starts"],
        dtypes: DType::ALL,
        accuracy: Accuracy::Exact,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::index::dynamic_update_slice);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [x, update, starts] = exactly(operands)?;
        expect_same_dtype("update", update, x)?;
        expect_rank("update", update, x.rank())?;
        check_window(x, &update.shape, starts)?;
        Ok(vec![x.clone()])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        _: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let (mut y, update) = (operands[0].clone(), operands[1]);
        let starts = window_starts(operands[2], y.shape(), update.shape())?;
        let strides = row_major_strides(y.shape());
        let size = y.dtype().size_bytes();
        let to = y.bytes_mut();
        let mut from = update.bytes().chunks_exact(size);
        for_each_index(update.shape(), |index| {
            if let Some(element) = from.next() {
                let at = flat(index, &starts, &strides) * size;
                to[at..at + size].copy_from_slice(element);
            }
        });
        Ok(vec![y])
    }
}

impl Graph {
    /// The window of `sizes` of `x`, of any dtype, at `starts` (`I32` or `I64`, one for each axis).
    /// The starts are clamped so that the window fits; negative starts count from the end.
    ///
    /// # Errors
    /// [`OpError`] when there is not one size and one start for each axis, or the window is larger
    /// than `x`. If sizes are symbolic, a run with a window that is too large fails.
    pub fn dynamic_slice(
        &mut self,
        x: Value,
        starts: Value,
        sizes: impl Into<Shape>,
    ) -> Result<Value, OpError> {
        let sizes = sizes.into();
        self.add(DynamicSlice { sizes }, &[x, starts])
    }

    /// `x` with the window at `starts` (`I32` or `I64`, one for each axis) replaced by `update`, of
    /// the same dtype and rank. The starts are clamped so that `update` fits; negative starts count
    /// from the end.
    ///
    /// # Errors
    /// [`OpError`] when dtypes or ranks differ or `update` is larger than `x`. If sizes are
    /// symbolic, a run with an update that is too large fails.
    pub fn dynamic_update_slice(
        &mut self,
        x: Value,
        update: Value,
        starts: Value,
    ) -> Result<Value, OpError> {
        self.add(DynamicUpdateSlice {}, &[x, update, starts])
    }
}
