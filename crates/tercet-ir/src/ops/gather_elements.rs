//! Elements by index along one axis.

use crate::accuracy::Accuracy;
use crate::attrs;
use crate::case::{Case, Fill, Reject};
use crate::dtype::DType;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{Doc, EvalCtx, OpSpec, Tier};
use crate::ops::util::{
    INDEX_DTYPES, counted, exactly, expect_axis, expect_dtype, expect_rank, reject, resolve_index,
};
use crate::tensor::Tensor;
use crate::types::{TensorType, Type, row_major_strides};

attrs! {
    /// For each index the element of `data` at the place of the index, but where the index says
    /// along one axis (NumPy `take_along_axis`, PyTorch `gather`, ONNX `GatherElements`): with
    /// axis 1, `y[i, j] = data[i, idx[i, j]]`. Negative indices count from the end.
    pub struct GatherElements {
        /// The axis of `data`.
        pub axis: usize,
    }
}

/// What is said of indices that are more than the elements beside them.
pub(crate) const TOO_MANY: &str =
    "indices of size {less} on axis {axis} of size {more}; at most its size";

/// The error for indices of size `idx` on an axis of size `n`.
pub(crate) fn too_many(
    axis: usize,
    idx: &dyn std::fmt::Display,
    n: &dyn std::fmt::Display,
) -> String {
    let text = TOO_MANY.replace("{axis}", &axis.to_string());
    text.replace("{less}", &idx.to_string())
        .replace("{more}", &n.to_string())
}

/// Refuses indices that are not of the rank of `data`, or known to reach beyond it on another axis.
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

/// For each index in order, the flat place in a tensor of sizes `data` that it names.
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
    const DOC: Doc = Doc {
        name: "gather_elements",
        text: "For each index the element of `data` at the same place but for the axis, where the \
               index says: `y[i, j] = data[i, idx[i, j]]` for axis 1. `idx` is at most as large as \
               `data` on the other axes. Negative indices count from the end; one out of range ends \
               the run.",
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

    fn cases() -> Vec<Case> {
        // Long: a table, one row a case.
        let taken =
            |name: &str, data: &'static [usize], idx: &'static [usize], axis: usize, of: DType| {
                Case::new(name, move |c| {
                    let x = c.input("data", data, Fill::Special)?;
                    let idx = c.input_of("idx", Type::new(of, idx), Fill::Index(data[axis]))?;
                    let y = c.graph.gather_elements(x, idx, axis)?;
                    c.output(y)
                })
            };
        let fault = |name: &str, index: f64, message: &'static str| {
            Case::new(name, move |c| {
                let x = c.input("data", [2, 3], Fill::Normal)?;
                let idx = Type::new(DType::I32, [2, 2]);
                let idx = c.input_of("idx", idx, Fill::Values(vec![0.0, 1.0, index, 9.0]))?;
                let y = c.graph.gather_elements(x, idx, 1)?;
                c.expect_fault(message);
                c.output(y)
            })
        };
        vec![
            taken("rows_33x7", &[33, 7], &[33, 7], 0, DType::I32),
            taken("columns_7x33", &[7, 33], &[7, 33], 1, DType::I32),
            taken("by_i64", &[7, 33], &[7, 5], 1, DType::I64),
            taken("more_than_there_are", &[3, 4], &[11, 4], 0, DType::I32),
            taken("fewer_beside_the_axis", &[5, 9], &[3, 4], 1, DType::I32),
            taken(
                "fewer_before_and_after",
                &[5, 4, 6],
                &[2, 7, 3],
                1,
                DType::I32,
            ),
            taken("rank_1", &[13], &[5], 0, DType::I32),
            taken("rank_4", &[2, 3, 4, 3], &[2, 3, 2, 3], 2, DType::I32),
            taken("rank_5", &[2, 1, 3, 2, 3], &[2, 1, 3, 2, 5], 4, DType::I32),
            taken(
                "rank_6",
                &[2, 1, 3, 2, 1, 3],
                &[1, 1, 3, 4, 1, 3],
                3,
                DType::I32,
            ),
            taken("no_indices", &[5, 3], &[0, 3], 0, DType::I32),
            taken("no_indices_of_nothing", &[0, 3], &[0, 3], 0, DType::I32),
            taken("no_columns", &[5, 0], &[2, 0], 0, DType::I32),
            Case::new("pinned", |c| {
                let x = c.input("data", [3, 2], counted(&[3, 2]))?;
                let idx = Type::new(DType::I32, [2, 2]);
                let idx = c.input_of("idx", idx, Fill::Values(vec![-1.0, 0.0, 1.0, -2.0]))?;
                let y = c.graph.gather_elements(x, idx, 0)?;
                c.output_expect(y, &[4.0, 1.0, 2.0, 3.0])
            })
            .only(DType::NUMBERS),
            Case::new("of_views", |c| {
                let x = c.input("data", [3, 5, 7], Fill::Special)?;
                let x = c.graph.transpose(x, &[2, 0, 1])?;
                let idx = c.input_of("idx", Type::new(DType::I32, [4, 7, 3]), Fill::Index(5))?;
                let idx = c.graph.transpose(idx, &[1, 2, 0])?;
                let y = c.graph.gather_elements(x, idx, 2)?;
                c.output(y)
            }),
            fault(
                "index_at_the_end",
                3.0,
                "index 3 is out of range for axis of 3",
            ),
            fault(
                "index_below",
                -4.0,
                "index -4 is out of range for axis of 3",
            ),
            Case::new("symbolic", |c| {
                let s = c.sym("s", 5, 9);
                let x = c.input("data", [s.clone(), 7.into()], Fill::Normal)?;
                let idx =
                    c.input_of("idx", Type::new(DType::I32, [s, 3.into()]), Fill::Index(7))?;
                let y = c.graph.gather_elements(x, idx, 1)?;
                c.output(y)
            }),
            Case::new("symbolic_indices_too_many", |c| {
                let s = c.sym("s", 5, 9);
                let x = c.input("data", [4, 7], Fill::Normal)?;
                let idx =
                    c.input_of("idx", Type::new(DType::I32, [s, 3.into()]), Fill::Index(7))?;
                let y = c.graph.gather_elements(x, idx, 1)?;
                c.expect_fault("indices of size 5 on axis 0 of size 4");
                c.output(y)
            }),
        ]
    }

    fn rejects() -> Vec<Reject> {
        fn of(g: &mut Graph, idx: Type, axis: usize) -> Result<Value, OpError> {
            let x = g.input("x", Type::new(DType::F32, [3, 2]))?;
            let idx = g.input("idx", idx)?;
            g.gather_elements(x, idx, axis)
        }
        vec![
            reject("float_indices", "operand idx is f32", |g| {
                of(g, Type::new(DType::F32, [3, 2]), 0)
            }),
            reject("axis", "axis 2 is out of range for rank 2", |g| {
                of(g, Type::new(DType::I32, [3, 2]), 2)
            }),
            reject("rank", "rank 2", |g| of(g, Type::new(DType::I32, [3]), 0)),
            reject("too_many", "indices of size 3 on axis 1 of size 2", |g| {
                of(g, Type::new(DType::I32, [3, 3]), 0)
            }),
        ]
    }
}

impl Graph {
    /// For each index (`I32` or `I64`, as many axes as `data`) the element of `data`, of any dtype,
    /// at the same place but for `axis`, where the index says.
    ///
    /// # Errors
    /// [`OpError`] when `idx` is no index dtype, of another rank or larger than `data` on another
    /// axis, or `axis` is out of range. An index outside `-n..n` ends the run.
    pub fn gather_elements(
        &mut self,
        data: Value,
        idx: Value,
        axis: usize,
    ) -> Result<Value, OpError> {
        self.add(GatherElements { axis }, &[data, idx])
    }
}
