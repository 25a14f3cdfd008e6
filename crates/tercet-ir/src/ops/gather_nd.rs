//! Selection of slices by coordinates.

use crate::accuracy::Accuracy;
use crate::attrs;
use crate::case::{InputFill, OpCase, RejectCase};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{
    INDEX_DTYPES, counted, exactly, expect_dtype, expect_equal, expect_rank_at_least, reject,
    resolve_index,
};
use crate::tensor::Tensor;
use crate::types::{TensorType, Type};

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

    fn cases() -> Vec<OpCase> {
        // Long: this function is a table of test cases, one per row.
        // Indices of the shortest axis are valid for every axis.
        let taken =
            |name: &str, data: &'static [usize], idx: &'static [usize], batch: usize, of: DType| {
                OpCase::new(name, move |c| {
                    let x = c.input("data", data, InputFill::Special)?;
                    let k = idx[idx.len() - 1];
                    let least = data[batch..batch + k].iter().min().copied().unwrap_or(1);
                    let idx = c.input_of("idx", Type::new(of, idx), InputFill::Index(least))?;
                    let y = c.graph.gather_nd(x, idx, batch)?;
                    c.output(y)
                })
            };
        let fault = |name: &str, index: [f64; 4], message: &'static str| {
            OpCase::new(name, move |c| {
                let x = c.input("data", [2, 3, 2], InputFill::Normal)?;
                let idx = Type::new(DType::I32, [2, 2]);
                let idx = c.input_of("idx", idx, InputFill::Values(index.to_vec()))?;
                let y = c.graph.gather_nd(x, idx, 0)?;
                c.expect_fault(message);
                c.output(y)
            })
        };
        vec![
            taken("elements_7x33", &[7, 33], &[17, 2], 0, DType::I32),
            taken("rows_33x7", &[33, 7], &[17, 1], 0, DType::I32),
            taken("rows_of_words", &[9, 2, 4], &[6, 1], 0, DType::I32),
            taken("by_i64", &[7, 33], &[17, 2], 0, DType::I64),
            taken("one_element", &[5, 3], &[2], 0, DType::I32),
            taken("no_coordinates", &[5, 3], &[4, 0], 0, DType::I32),
            taken("rank_0", &[], &[3, 0], 0, DType::I32),
            taken("rank_1", &[13], &[5, 1], 0, DType::I32),
            taken(
                "rank_4_of_batches",
                &[2, 3, 4, 5],
                &[2, 3, 6, 1],
                2,
                DType::I32,
            ),
            taken("one_of_each_batch", &[4, 5, 3], &[4, 1], 1, DType::I32),
            taken("elements_of_batches", &[3, 4, 5], &[3, 7, 2], 1, DType::I32),
            taken("rank_5", &[2, 3, 2, 2, 3], &[2, 4, 1, 3], 1, DType::I32),
            taken("rank_6", &[2, 1, 3, 2, 2, 3], &[5, 4], 0, DType::I32),
            taken("no_rows", &[5, 3], &[0, 2], 0, DType::I32),
            taken("no_rows_of_nothing", &[0, 3], &[0, 1], 0, DType::I32),
            taken("empty_slices", &[5, 0], &[2, 1], 0, DType::I32),
            taken("no_batches", &[0, 5, 3], &[0, 2, 1], 1, DType::I32),
            OpCase::new("pinned", |c| {
                let x = c.input("data", [2, 2, 2], counted(&[2, 2, 2]))?;
                let idx = Type::new(DType::I32, [2, 2]);
                let idx = c.input_of("idx", idx, InputFill::Values(vec![0.0, 1.0, -1.0, 0.0]))?;
                let y = c.graph.gather_nd(x, idx, 0)?;
                c.output_expect(y, &[2.0, 3.0, 4.0, 5.0])
            })
            .only(DType::NUMBERS),
            OpCase::new("pinned_batches", |c| {
                let x = c.input("data", [2, 2, 2], counted(&[2, 2, 2]))?;
                let idx = Type::new(DType::I32, [2, 1]);
                let idx = c.input_of("idx", idx, InputFill::Values(vec![1.0, 0.0]))?;
                let y = c.graph.gather_nd(x, idx, 1)?;
                c.output_expect(y, &[2.0, 3.0, 4.0, 5.0])
            })
            .only(DType::NUMBERS),
            OpCase::new("of_views", |c| {
                let x = c.input("data", [3, 5, 7], InputFill::Special)?;
                let x = c.graph.transpose(x, &[2, 0, 1])?;
                let idx = c.input_of("idx", Type::new(DType::I32, [2, 6]), InputFill::Index(3))?;
                let idx = c.graph.transpose(idx, &[1, 0])?;
                let y = c.graph.gather_nd(x, idx, 0)?;
                c.output(y)
            }),
            fault(
                "second_coordinate_at_the_end",
                [0.0, 2.0, 1.0, 3.0],
                "index 3 is out of range for axis of 3",
            ),
            fault(
                "first_coordinate_below",
                [-3.0, 4.0, 1.0, 0.0],
                "index -3 is out of range for axis of 2",
            ),
            OpCase::new("symbolic", |c| {
                let s = c.sym("s", 5, 9);
                let x = c.input("data", [s.clone(), 7.into(), 2.into()], InputFill::Normal)?;
                let ty = Type::new(DType::I32, [s, 3.into(), 1.into()]);
                let idx = c.input_of("idx", ty, InputFill::Index(7))?;
                let y = c.graph.gather_nd(x, idx, 1)?;
                c.output(y)
            }),
        ]
    }

    fn rejects() -> Vec<RejectCase> {
        fn build(g: &mut Graph, idx: Type, batch: usize) -> Result<Value, OpError> {
            let x = g.input("x", Type::new(DType::F32, [3, 2]))?;
            let idx = g.input("idx", idx)?;
            g.gather_nd(x, idx, batch)
        }
        vec![
            reject("float_indices", "operand idx is f32", |g| {
                build(g, Type::new(DType::F32, [3, 2]), 0)
            }),
            reject("rank_0", "rank 1 or more", |g| {
                build(g, Type::new(DType::I32, [0usize; 0]), 0)
            }),
            reject("coordinates", "3 coordinates for data of 2 axes", |g| {
                build(g, Type::new(DType::I32, [4, 3]), 0)
            }),
            reject("batches", "1 shared axes and 2 coordinates", |g| {
                build(g, Type::new(DType::I32, [3, 2]), 1)
            }),
            reject("other_batches", "3 and 4 differ", |g| {
                build(g, Type::new(DType::I32, [4, 1]), 1)
            }),
            reject("symbolic_coordinates", "the last axis of idx, s,", |g| {
                build(g, Type::new(DType::I32, [Dim::sym("s")]), 0)
            }),
        ]
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
