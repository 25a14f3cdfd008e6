//! Selection of elements by index along one axis.

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Tensor, TensorType, Type, row_major_strides};

use crate::attrs;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{
    INDEX_DTYPES, exactly, expect_axis, expect_dtype, expect_rank, resolve_index,
};

attrs! {
    /// For each index, an element of `data`: its coordinate along `axis` is the index, and its other
    /// coordinates are those of the index. The operator equals NumPy `take_along_axis`, PyTorch
    /// `gather` and ONNX `GatherElements`: with axis 1, `y[i, j] = data[i, idx[i, j]]`. Negative
    /// indices count from the end.
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use tercet_ir::{EvalCtx, Graph, Tensor, evaluate};
    /// let mut g = Graph::new();
    /// let data = g.constant(Tensor::from_slice(&[2, 2], &[1f32, 2.0, 3.0, 4.0])?)?;
    /// let idx = g.constant(Tensor::from_slice(&[2, 1], &[1i32, 0])?)?;
    /// let y = g.gather_elements(data, idx, 1)?;
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// assert_eq!(done.get(y).as_slice::<f32>()?, [2.0, 3.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct GatherElements {
        /// The indexed axis of `data`.
        pub axis: usize,
    }
}

/// The message for an index tensor that is larger than `data` along another axis.
pub(crate) const TOO_MANY: &str =
    "indices of size {less} on axis {axis} of size {more}; at most its size";

/// The error for an index tensor of size `idx` on an axis of size `n`.
pub(crate) fn too_many(
    axis: usize,
    idx: &dyn std::fmt::Display,
    n: &dyn std::fmt::Display,
) -> String {
    let text = TOO_MANY.replace("{axis}", &axis.to_string());
    text.replace("{less}", &idx.to_string())
        .replace("{more}", &n.to_string())
}

/// Checks that the index tensor has the rank of `data` and is not known to be larger along another
/// axis.
pub(crate) fn expect_within(axis: usize, data: &Type, idx: &Type) -> Result<(), TypeError> {
    expect_dtype("idx", idx, INDEX_DTYPES)?;
    expect_axis(axis, data.rank())?;
    expect_rank("idx", idx, data.rank())?;
    for (a, (m, n)) in idx.shape.iter().zip(data.shape.iter()).enumerate() {
        let (Some(known_m), Some(known_n)) = (m.known(), n.known()) else {
            continue;
        };
        if a != axis && known_m > known_n {
            return Err(TypeError::Other(too_many(a, m, n)));
        }
    }
    Ok(())
}

/// For each index in order, the flat position of its element in a tensor of sizes `data`.
pub(crate) fn places(axis: usize, data: &[usize], idx: &Tensor) -> Result<Vec<usize>, EvalError> {
    for (a, (m, n)) in idx.shape().iter().zip(data).enumerate() {
        if a != axis && m > n {
            return Err(EvalError::Data(too_many(a, m, n)));
        }
    }
    let strides = row_major_strides(data);
    let own = row_major_strides(idx.shape());
    let place = |(i, index): (usize, i64)| {
        let along = resolve_index(index, data[axis])?;
        let at = |a: usize| match a == axis {
            true => along,
            false => i / own[a] % idx.shape()[a],
        };
        Ok((0..data.len()).map(|a| at(a) * strides[a]).sum())
    };
    idx.to_i64s().into_iter().enumerate().map(place).collect()
}

impl OpSpec for GatherElements {
    const DOC: OpDoc = OpDoc {
        name: "gather_elements",
        text: "For each index, the element of `data` at the same position, except that the index \
               replaces the position along the axis: `y[i, j] = data[i, idx[i, j]]` for axis 1. \
               `idx` is at most as large as `data` on the other axes. Negative indices count from \
               the end. A run with an out-of-range index fails.",
        operands: &["data", "idx"],
        dtypes: DType::ALL,
        accuracy: Accuracy::Exact,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::index::gather_elements);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [data, idx] = exactly(operands)?;
        expect_within(self.axis, data, idx)?;
        Ok(vec![data.with_shape(idx.shape.clone())])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let [data, idx] = [operands[0], operands[1]];
        let size = data.dtype().size_bytes();
        let mut y = Tensor::zeros(results[0].clone())?;
        let places = places(self.axis, data.shape(), idx)?;
        for (to, at) in y.bytes_mut().chunks_exact_mut(size).zip(places) {
            to.copy_from_slice(&data.bytes()[at * size..][..size]);
        }
        Ok(vec![y])
    }
}

impl Graph {
    /// For each index (`I32` or `I64`, with the rank of `data`), an element of `data`, of any
    /// dtype. Along `axis`, the index is the element's position; along the other axes, the position
    /// is that of the index.
    ///
    /// # Errors
    /// [`OpError`] when `axis` is out of range. [`OpError`] also when `idx` has another dtype or
    /// rank, or is larger than `data` along another axis. A run fails if an index is outside
    /// `-n..n`.
    pub fn gather_elements(
        &mut self,
        data: Value,
        idx: Value,
        axis: usize,
    ) -> Result<Value, OpError> {
        self.add(GatherElements { axis }, &[data, idx])
    }
}
