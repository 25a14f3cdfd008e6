//! Selection of elements by index along one axis.

use crate::accuracy::Accuracy;
use crate::attrs;
use crate::case::{InputFill, OpCase, RejectCase};
use crate::dtype::DType;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{
    INDEX_DTYPES, counted, exactly, expect_axis, expect_dtype, expect_rank, reject, resolve_index,
};
use crate::tensor::Tensor;
use crate::types::{TensorType, Type, row_major_strides};

attrs! {
    /// For each index, the element of `data` at the same position along all axes but one. Along
    /// that axis, the index is the position. The operator equals NumPy `take_along_axis`, PyTorch
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

    fn cases() -> Vec<OpCase> {
        // Long: this function is a table of test cases, one per row.
        let taken =
            |name: &str, data: &'static [usize], idx: &'static [usize], axis: usize, of: DType| {
                OpCase::new(name, move |c| {
                    let x = c.input("data", data, InputFill::Special)?;
                    let idx =
                        c.input_of("idx", Type::new(of, idx), InputFill::Index(data[axis]))?;
                    let y = c.graph.gather_elements(x, idx, axis)?;
                    c.output(y)
                })
            };
        let fault = |name: &str, index: f64, message: &'static str| {
            OpCase::new(name, move |c| {
                let x = c.input("data", [2, 3], InputFill::Normal)?;
                let idx = Type::new(DType::I32, [2, 2]);
                let idx = c.input_of("idx", idx, InputFill::Values(vec![0.0, 1.0, index, 9.0]))?;
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
            OpCase::new("pinned", |c| {
                let x = c.input("data", [3, 2], counted(&[3, 2]))?;
                let idx = Type::new(DType::I32, [2, 2]);
                let idx = c.input_of("idx", idx, InputFill::Values(vec![-1.0, 0.0, 1.0, -2.0]))?;
                let y = c.graph.gather_elements(x, idx, 0)?;
                c.output_expect(y, &[4.0, 1.0, 2.0, 3.0])
            })
            .only(DType::NUMBERS),
            OpCase::new("of_views", |c| {
                let x = c.input("data", [3, 5, 7], InputFill::Special)?;
                let x = c.graph.transpose(x, &[2, 0, 1])?;
                let idx =
                    c.input_of("idx", Type::new(DType::I32, [4, 7, 3]), InputFill::Index(5))?;
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
            OpCase::new("symbolic", |c| {
                let s = c.sym("s", 5, 9);
                let x = c.input("data", [s.clone(), 7.into()], InputFill::Normal)?;
                let idx = c.input_of(
                    "idx",
                    Type::new(DType::I32, [s, 3.into()]),
                    InputFill::Index(7),
                )?;
                let y = c.graph.gather_elements(x, idx, 1)?;
                c.output(y)
            }),
            OpCase::new("symbolic_indices_too_many", |c| {
                let s = c.sym("s", 5, 9);
                let x = c.input("data", [4, 7], InputFill::Normal)?;
                let idx = c.input_of(
                    "idx",
                    Type::new(DType::I32, [s, 3.into()]),
                    InputFill::Index(7),
                )?;
                let y = c.graph.gather_elements(x, idx, 1)?;
                c.expect_fault("indices of size 5 on axis 0 of size 4");
                c.output(y)
            }),
        ]
    }

    fn rejects() -> Vec<RejectCase> {
        fn build(g: &mut Graph, idx: Type, axis: usize) -> Result<Value, OpError> {
            let x = g.input("x", Type::new(DType::F32, [3, 2]))?;
            let idx = g.input("idx", idx)?;
            g.gather_elements(x, idx, axis)
        }
        vec![
            reject("float_indices", "operand idx is f32", |g| {
                build(g, Type::new(DType::F32, [3, 2]), 0)
            }),
            reject("axis", "axis 2 is out of range for rank 2", |g| {
                build(g, Type::new(DType::I32, [3, 2]), 2)
            }),
            reject("rank", "rank 2", |g| {
                build(g, Type::new(DType::I32, [3]), 0)
            }),
            reject("too_many", "indices of size 3 on axis 1 of size 2", |g| {
                build(g, Type::new(DType::I32, [3, 3]), 0)
            }),
        ]
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
