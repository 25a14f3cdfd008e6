//! Selection of slices by coordinates.

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Dim, Tensor, TensorType, Type};

use crate::attrs;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{
    INDEX_DTYPES, exactly, expect_dtype, expect_equal, expect_rank_at_least, resolve_index,
};

attrs! {
    /// For each row of coordinates in the last axis of `idx`, the slice of `data` at those
    /// coordinates (ONNX `GatherND`): `y[i, ..] = data[idx[i, 0], idx[i, 1], ..]`. Negative
    /// coordinates count from the end.
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use tercet_ir::{EvalCtx, Graph, Tensor, evaluate};
    /// let mut g = Graph::new();
    /// let data = g.constant(Tensor::from_slice(&[2, 2], &[1f32, 2.0, 3.0, 4.0])?)?;
    /// // The elements at (0, 1) and (1, 0).
    /// let idx = g.constant(Tensor::from_slice(&[2, 2], &[0i32, 1, 1, 0])?)?;
    /// let y = g.gather_nd(data, idx, 0)?;
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// assert_eq!(done.get(y).as_slice::<f32>()?, [2.0, 3.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct GatherNd {
        /// Number of leading batch axes that `data` and `idx` share; coordinates apply to the axes
        /// after them.
        pub batch_dims: usize,
    }
}

/// The number of coordinates in each row of `idx`, which must be known.
pub(crate) fn coordinates(idx: &Type) -> Result<usize, TypeError> {
    expect_dtype("idx", idx, INDEX_DTYPES)?;
    expect_rank_at_least("idx", idx, 1)?;
    let last = &idx.shape[idx.rank() - 1];
    last.known().ok_or_else(|| {
        let reason =
            format!("the last axis of idx, {last}, must be known: it is the number of coordinates");
        TypeError::Other(reason)
    })
}

/// For each row of coordinates in order, the number of the slice that it selects. `lens` are the
/// sizes of the indexed axes, and `rows` is the number of rows in each batch.
pub(crate) fn slices(lens: &[usize], idx: &Tensor, rows: usize) -> Result<Vec<usize>, EvalError> {
    let within: usize = lens.iter().product();
    let values = idx.to_i64s();
    let count = idx.shape()[..idx.shape().len() - 1].iter().product();
    let slice = |row: usize| {
        let own = values[row * lens.len()..][..lens.len()].iter().zip(lens);
        let at = own.map(|(&i, &n)| Ok((resolve_index(i, n)?, n)));
        let at = at.collect::<Result<Vec<_>, EvalError>>()?;
        let at = at.into_iter().fold(0, |at, (i, n)| at * n + i);
        Ok(row / rows.max(1) * within + at)
    };
    (0..count).map(slice).collect()
}

impl OpSpec for GatherNd {
    const DOC: OpDoc = OpDoc {
        name: "gather_nd",
        text: "For each row of coordinates in the last axis of `idx`, the slice of `data` at those \
               coordinates. Both operands share the first `batch_dims` axes: `y[i, ..] = \
               data[idx[i, 0], idx[i, 1], ..]`. Negative coordinates count from the end. A run \
               with an out-of-range coordinate fails.",
        operands: &["data", "idx"],
        dtypes: DType::ALL,
        accuracy: Accuracy::Exact,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::index::gather_nd);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [data, idx] = exactly(operands)?;
        let (k, batch) = (coordinates(idx)?, self.batch_dims);
        let most = data.rank().saturating_sub(k).min(idx.rank() - 1);
        if k > data.rank() || batch > most {
            let reason = format!(
                "{batch} shared axes and {k} coordinates for data of {} axes and indices of {}",
                data.rank(),
                idx.rank()
            );
            return Err(TypeError::Attr {
                name: "batch_dims",
                reason,
            });
        }
        for axis in 0..batch {
            let what = format!("sizes of axis {axis}");
            expect_equal(&what, &data.shape[axis], &idx.shape[axis])?;
        }
        let rows = idx.shape[..idx.rank() - 1].iter();
        let dims: Vec<Dim> = rows.chain(&data.shape[batch + k..]).cloned().collect();
        Ok(vec![data.with_shape(dims)])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let [data, idx] = [operands[0], operands[1]];
        let (batch, last) = (self.batch_dims, idx.shape().len() - 1);
        let k = idx.shape()[last];
        let rows = idx.shape()[batch..last].iter().product();
        let slices = slices(&data.shape()[batch..batch + k], idx, rows)?;
        let inner: usize = data.shape()[batch + k..].iter().product();
        let bytes = inner * data.dtype().size_bytes();
        let mut y = Tensor::zeros(results[0].clone())?;
        if bytes > 0 {
            for (to, at) in y.bytes_mut().chunks_exact_mut(bytes).zip(slices) {
                to.copy_from_slice(&data.bytes()[at * bytes..][..bytes]);
            }
        }
        Ok(vec![y])
    }
}

impl Graph {
    /// For each row of coordinates in the last axis of `idx` (`I32` or `I64`), the slice of `data`,
    /// of any dtype, at those coordinates. Both operands share the first `batch_dims` axes.
    ///
    /// # Errors
    /// [`OpError`] when the dtype of `idx` is not an index dtype, its last axis is not of known
    /// size, or the axes do not match. A run fails if a coordinate is outside `-n..n`.
    pub fn gather_nd(
        &mut self,
        data: Value,
        idx: Value,
        batch_dims: usize,
    ) -> Result<Value, OpError> {
        self.add(GatherNd { batch_dims }, &[data, idx])
    }
}
