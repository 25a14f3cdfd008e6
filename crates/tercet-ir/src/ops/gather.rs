//! Selection of slices by index.

use crate::accuracy::Accuracy;
use crate::attrs;
use crate::case::{InputFill, OpCase, RejectCase};
use crate::dtype::DType;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{
    AxisView, INDEX_DTYPES, counted, exactly, expect_axis, expect_dtype, reject, resolve_index,
};
use crate::tensor::Tensor;
use crate::types::{TensorType, Type};

attrs! {
    /// The slices of `data` along an axis at the indices in `idx` (NumPy `take`). The result has
    /// the shape of `data` with the axis replaced by the axes of `idx`. Negative indices count from
    /// the end.
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use tercet_ir::{EvalCtx, Graph, Tensor, evaluate};
    /// let mut g = Graph::new();
    /// let data = g.constant(Tensor::from_slice(&[3], &[10f32, 20.0, 30.0])?)?;
    /// let idx = g.constant(Tensor::from_slice(&[2], &[2i32, -3])?)?;
    /// let y = g.gather(data, idx, 0)?;
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// assert_eq!(done.get(y).as_slice::<f32>()?, [30.0, 10.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct Gather {
        /// The indexed axis of `data`.
        pub axis: usize,
    }
}

/// Six operands of different lengths with separate indices, which devices check together; one index
/// may be invalid.
fn by_several(name: &str, message: Option<&'static str>) -> OpCase {
    OpCase::new(name, move |c| {
        for (n, len) in ["a", "b", "c", "d", "e", "f"].into_iter().zip(2usize..) {
            let x = c.input(n, [len, 2], InputFill::Normal)?;
            let list = match message.is_some() && len == 4 {
                true => InputFill::Values(vec![0.0, 3.0, 9.0]),
                false => InputFill::Index(len),
            };
            let idx = c.input_of(&format!("{n}_idx"), Type::new(DType::I32, [3]), list)?;
            let y = c.graph.gather(x, idx, 0)?;
            c.output(y)?;
        }
        if let Some(message) = message {
            c.expect_fault(message);
        }
        Ok(())
    })
}

impl OpSpec for Gather {
    const DOC: OpDoc = OpDoc {
        name: "gather",
        text: "The slices of `data` along an axis at the indices in `idx`, whose axes replace that \
               axis. Negative indices count from the end. A run with an out-of-range index fails.",
        operands: &["data", "idx"],
        dtypes: DType::ALL,
        accuracy: Accuracy::Exact,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::index::gather);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [data, idx] = exactly(operands)?;
        expect_dtype("idx", idx, INDEX_DTYPES)?;
        expect_axis(self.axis, data.rank())?;
        let mut dims = data.shape.to_vec();
        dims.splice(self.axis..=self.axis, idx.shape.iter().cloned());
        Ok(vec![data.with_shape(dims)])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let data = operands[0];
        let view = AxisView::new(data.shape(), self.axis);
        let at: Result<Vec<usize>, EvalError> = (operands[1].to_i64s().into_iter())
            .map(|i| resolve_index(i, view.len))
            .collect();
        let at = at?;
        let mut y = Tensor::zeros(results[0].clone())?;
        let row = view.inner * data.dtype().size_bytes();
        if row > 0 {
            let mut to = y.bytes_mut().chunks_exact_mut(row);
            for block in 0..view.outer {
                for (&i, slot) in at.iter().zip(&mut to) {
                    slot.copy_from_slice(&data.bytes()[(block * view.len + i) * row..][..row]);
                }
            }
        }
        Ok(vec![y])
    }

    fn cases() -> Vec<OpCase> {
        let taken =
            |name: &str, data: &'static [usize], idx: &'static [usize], axis: usize, of: DType| {
                OpCase::new(name, move |c| {
                    let x = c.input("data", data, InputFill::Special)?;
                    let idx =
                        c.input_of("idx", Type::new(of, idx), InputFill::Index(data[axis]))?;
                    let y = c.graph.gather(x, idx, axis)?;
                    c.output(y)
                })
            };
        let fault = |name: &str, index: f64, len: usize, message: &'static str| {
            OpCase::new(name, move |c| {
                let x = c.input("data", [len, 2], InputFill::Normal)?;
                let idx = Type::new(DType::I32, [3]);
                let idx = c.input_of("idx", idx, InputFill::Values(vec![0.0, index, 0.0]))?;
                let y = c.graph.gather(x, idx, 0)?;
                c.expect_fault(message);
                c.output(y)
            })
        };
        vec![
            taken("rows_33x7", &[33, 7], &[17], 0, DType::I32),
            taken("rows_by_i64", &[33, 7], &[17], 0, DType::I64),
            taken("rows_of_batches", &[11, 5], &[2, 3], 0, DType::I32),
            taken("rows_of_words", &[9, 2, 4], &[6], 0, DType::I32),
            taken("columns", &[3, 9], &[5], 1, DType::I32),
            taken("middle", &[2, 5, 3], &[4, 1], 1, DType::I32),
            taken("one_index", &[5, 3], &[], 0, DType::I32),
            taken("rank_1", &[5], &[], 0, DType::I32),
            taken("no_indices", &[5, 3], &[0], 0, DType::I32),
            taken("no_indices_of_nothing", &[0, 3], &[0], 0, DType::I32),
            taken("empty_rows", &[5, 0], &[2], 0, DType::I32),
            OpCase::new("negative_and_repeated", |c| {
                let x = c.input("data", [3, 2], counted(&[3, 2]))?;
                let idx = Type::new(DType::I32, [4]);
                let idx = c.input_of("idx", idx, InputFill::Values(vec![-1.0, 0.0, -3.0, 2.0]))?;
                let y = c.graph.gather(x, idx, 0)?;
                c.output_expect(y, &[4.0, 5.0, 0.0, 1.0, 0.0, 1.0, 4.0, 5.0])
            }),
            OpCase::new("rows_of_a_view", |c| {
                let x = c.input("data", [3, 5, 7], InputFill::Special)?;
                let x = c.graph.transpose(x, &[2, 0, 1])?;
                let idx = c.input_of("idx", Type::new(DType::I32, [4]), InputFill::Index(3))?;
                let y = c.graph.gather(x, idx, 1)?;
                c.output(y)
            }),
            fault(
                "index_at_the_end",
                3.0,
                3,
                "index 3 is out of range for axis of 3",
            ),
            fault(
                "index_below_the_start",
                -4.0,
                3,
                "index -4 is out of range for axis of 3",
            ),
            fault(
                "index_far_out",
                2_147_483_647.0,
                3,
                "index 2147483647 is out of range",
            ),
            by_several(
                "one_of_several_is_bad",
                Some("index 9 is out of range for axis of 4"),
            ),
            by_several("several_index_lists", None),
            OpCase::new("symbolic_tokens", |c| {
                let s = c.sym("s", 5, 9);
                let x = c.input("data", [7, 3], InputFill::Normal)?;
                let idx = c.input_of("idx", Type::new(DType::I32, [s]), InputFill::Index(7))?;
                let y = c.graph.gather(x, idx, 0)?;
                c.output(y)
            }),
        ]
    }

    fn rejects() -> Vec<RejectCase> {
        fn build(g: &mut Graph, idx: DType, axis: usize) -> Result<Value, OpError> {
            let x = g.input("x", Type::new(DType::F32, [3, 2]))?;
            let idx = g.input("idx", Type::new(idx, [2]))?;
            g.gather(x, idx, axis)
        }
        vec![
            reject("float_indices", "operand idx is f32", |g| {
                build(g, DType::F32, 0)
            }),
            reject("unsigned_indices", "operand idx is u32", |g| {
                build(g, DType::U32, 0)
            }),
            reject("axis", "axis 2 is out of range for rank 2", |g| {
                build(g, DType::I32, 2)
            }),
            reject("rank_0", "axis 0 is out of range for rank 0", |g| {
                let x = g.input("x", Type::new(DType::I32, [0usize; 0]))?;
                g.gather(x, x, 0)
            }),
        ]
    }
}

impl Graph {
    /// The slices of `data`, of any dtype, along `axis` at the indices in `idx` (`I32` or `I64`,
    /// any shape). The axes of `idx` replace `axis`.
    ///
    /// # Errors
    /// [`OpError`] when the dtype of `idx` is not an index dtype or `axis` is out of range. A run
    /// fails if an index is outside `-n..n`.
    pub fn gather(&mut self, data: Value, idx: Value, axis: usize) -> Result<Value, OpError> {
        self.add(Gather { axis }, &[data, idx])
    }
}
