//! Updates of elements by index along one axis.

use super::{ScatterReduce, accepted, expect_updates, scatter};
use crate::accuracy::Accuracy;
use crate::attrs;
use crate::case::{InputFill, OpCase, RejectCase};
use crate::dtype::DType;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::gather_elements::{expect_within, places};
use crate::ops::util::{exactly, expect_equal, expect_rank, reject};
use crate::tensor::Tensor;
use crate::types::{TensorType, Type};

attrs! {
    /// `data` with each update written to its position along all axes but one. Along that axis, its
    /// index is the position. The operator equals ONNX `ScatterElements` and PyTorch `scatter` and
    /// `scatter_reduce`: with axis 1, `y[i, idx[i, j]] = updates[i, j]`. Negative indices count
    /// from the end.
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use tercet_ir::{EvalCtx, Graph, Tensor, evaluate, ops::ScatterReduce};
    /// let mut g = Graph::new();
    /// let data = g.constant(Tensor::from_slice(&[3], &[1f32, 2.0, 3.0])?)?;
    /// let idx = g.constant(Tensor::from_slice(&[2], &[2i32, 0])?)?;
    /// let updates = g.constant(Tensor::from_slice(&[2], &[10f32, 20.0])?)?;
    /// let y = g.scatter_elements(data, idx, updates, 0, ScatterReduce::Replace)?;
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// assert_eq!(done.get(y).as_slice::<f32>()?, [20.0, 2.0, 10.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct ScatterElements {
        /// The indexed axis of `data`.
        pub axis: usize,
        /// How updates are combined with an element.
        pub reduce: ScatterReduce,
    }
}

impl OpSpec for ScatterElements {
    const DOC: OpDoc = OpDoc {
        name: "scatter_elements",
        text: "`data` with each update written at its position, except that its index replaces the \
               position along the axis: `y[i, idx[i, j]] = updates[i, j]` for axis 1. Updates of \
               one element are applied in row-major order: the last one remains, or with `reduce` \
               they are combined with the old element. Negative indices count from the end. A run \
               with an out-of-range index fails.",
        operands: &["data", "idx", "updates"],
        dtypes: DType::ALL,
        accuracy: Accuracy::Reduction,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::scatter::elements);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [data, idx, updates] = exactly(operands)?;
        expect_updates(self.reduce, data, updates)?;
        expect_within(self.axis, data, idx)?;
        expect_rank("updates", updates, data.rank())?;
        for (axis, (m, n)) in idx.shape.iter().zip(updates.shape.iter()).enumerate() {
            expect_equal(&format!("sizes of idx and updates along axis {axis}"), m, n)?;
        }
        Ok(vec![data.clone()])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        _: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let [data, idx, updates] = [operands[0], operands[1], operands[2]];
        let places = places(self.axis, data.shape(), idx)?;
        Ok(vec![scatter(data, updates, 1, &places, self.reduce)?])
    }

    fn cases() -> Vec<OpCase> {
        let mut cases: Vec<OpCase> = ScatterReduce::ALL
            .iter()
            .flat_map(|&reduce| shaped_cases(reduce))
            .collect();
        cases.extend(value_cases());
        cases
    }

    fn rejects() -> Vec<RejectCase> {
        fn build(g: &mut Graph, idx: Type, updates: Type, axis: usize) -> Result<Value, OpError> {
            let x = g.input("x", Type::new(DType::F32, [3, 2]))?;
            let idx = g.input("idx", idx)?;
            let updates = g.input("updates", updates)?;
            g.scatter_elements(x, idx, updates, axis, ScatterReduce::Add)
        }
        vec![
            reject("float_indices", "operand idx is f32", |g| {
                let ty = Type::new(DType::F32, [3, 2]);
                build(g, ty.clone(), ty, 0)
            }),
            reject("other_updates", "operand updates is i32", |g| {
                let ty = Type::new(DType::I32, [3, 2]);
                build(g, ty.clone(), ty, 0)
            }),
            reject("axis", "axis 2 is out of range for rank 2", |g| {
                build(
                    g,
                    Type::new(DType::I32, [3, 2]),
                    Type::new(DType::F32, [3, 2]),
                    2,
                )
            }),
            reject("too_many", "indices of size 3 on axis 1 of size 2", |g| {
                build(
                    g,
                    Type::new(DType::I32, [3, 3]),
                    Type::new(DType::F32, [3, 3]),
                    0,
                )
            }),
            reject(
                "other_sizes",
                "sizes of idx and updates along axis 0: 3 and 2",
                |g| {
                    build(
                        g,
                        Type::new(DType::I32, [3, 2]),
                        Type::new(DType::F32, [2, 2]),
                        0,
                    )
                },
            ),
            reject("sums_of_truth_values", "operand data is bool", |g| {
                let x = g.input("x", Type::new(DType::Bool, [3]))?;
                let idx = g.input("idx", Type::new(DType::I32, [3]))?;
                g.scatter_elements(x, idx, x, 0, ScatterReduce::Max)
            }),
        ]
    }
}

/// Indices of a short axis, so that several updates have the same element.
fn shaped_cases(reduce: ScatterReduce) -> Vec<OpCase> {
    let shaped = |name: &str, data: &'static [usize], idx: &'static [usize], axis: usize| {
        OpCase::new(format!("{}_{name}", reduce.name()), move |c| {
            let x = c.input("data", data, InputFill::Normal)?;
            let ty = Type::new(DType::I32, idx);
            let at = c.input_of("idx", ty, InputFill::Index(data[axis]))?;
            let updates = c.input("updates", idx, InputFill::Normal)?;
            let y = c.graph.scatter_elements(x, at, updates, axis, reduce)?;
            c.output(y)
        })
        .only(accepted(reduce))
    };
    vec![
        shaped("rows_9x7", &[9, 7], &[33, 7], 0),
        shaped("columns_7x9", &[7, 9], &[7, 21], 1),
        shaped("middle_5x3x6", &[5, 3, 6], &[4, 11, 5], 1),
        shaped("rank_1", &[13], &[40], 0),
    ]
}

fn value_cases() -> Vec<OpCase> {
    // Long: this function is a table of test cases, one per row.
    let shaped =
        |name: &str, data: &'static [usize], idx: &'static [usize], axis: usize, of: DType| {
            OpCase::new(name, move |c| {
                let x = c.input("data", data, InputFill::Special)?;
                let at = c.input_of("idx", Type::new(of, idx), InputFill::Index(data[axis]))?;
                let updates = c.input("updates", idx, InputFill::Normal)?;
                let reduce = ScatterReduce::Replace;
                let y = c.graph.scatter_elements(x, at, updates, axis, reduce)?;
                c.output(y)
            })
        };
    let pinned = |name: &str, reduce, data: &[f64], updates: &[f64], y: &[f64]| {
        let (data, updates, y) = (data.to_vec(), updates.to_vec(), y.to_vec());
        OpCase::new(name, move |c| {
            let x = c.input("data", [data.len()], InputFill::Values(data.clone()))?;
            let ty = Type::new(DType::I32, [4]);
            let idx = c.input_of("idx", ty, InputFill::Values(vec![1.0, -1.0, 1.0, -2.0]))?;
            let updates = c.input("updates", [4], InputFill::Values(updates.clone()))?;
            let out = c.graph.scatter_elements(x, idx, updates, 0, reduce)?;
            c.output_expect(out, &y)
        })
    };
    let fault = |name: &str, index: f64, message: &'static str| {
        OpCase::new(name, move |c| {
            let x = c.input("data", [2, 3], InputFill::Normal)?;
            let idx = Type::new(DType::I32, [2, 2]);
            let idx = c.input_of("idx", idx, InputFill::Values(vec![0.0, 1.0, index, 9.0]))?;
            let updates = c.input("updates", [2, 2], InputFill::Normal)?;
            let reduce = ScatterReduce::Add;
            let y = c.graph.scatter_elements(x, idx, updates, 1, reduce)?;
            c.expect_fault(message);
            c.output(y)
        })
        .only(DType::NUMBERS)
    };
    const NAN: f64 = f64::NAN;
    use ScatterReduce::{Add, Max, Min, Mul, Replace};
    let three = [1.0, 2.0, 3.0];
    let four = [4.0, 5.0, 6.0, 7.0];
    vec![
        shaped("by_i64", &[7, 9], &[7, 5], 1, DType::I64),
        shaped("rank_4", &[2, 3, 4, 3], &[2, 3, 9, 2], 2, DType::I32),
        shaped("rank_5", &[2, 1, 3, 2, 3], &[2, 1, 3, 2, 5], 4, DType::I32),
        shaped(
            "rank_6",
            &[2, 1, 3, 2, 1, 3],
            &[1, 1, 3, 4, 1, 3],
            3,
            DType::I32,
        ),
        shaped("no_updates", &[5, 3], &[0, 3], 0, DType::I32),
        shaped("no_updates_of_nothing", &[0, 3], &[0, 3], 0, DType::I32),
        shaped("no_columns", &[5, 0], &[2, 0], 0, DType::I32),
        shaped("many_1100", &[37], &[1100], 0, DType::I32),
        shaped("very_many_5000", &[3, 150], &[3, 1700], 1, DType::I32),
        pinned("last_stays", Replace, &three, &four, &[1.0, 7.0, 5.0]).only(DType::NUMBERS),
        pinned("sums", Add, &three, &four, &[1.0, 19.0, 8.0]).only(DType::NUMBERS),
        pinned(
            "products",
            Mul,
            &[1.0, 1.0, 3.0],
            &[2.0, 5.0, 3.0, 4.0],
            &[1.0, 24.0, 15.0],
        )
        .only(DType::NUMBERS),
        pinned(
            "greatest",
            Max,
            &three,
            &[1.0, 9.0, 0.0, 3.0],
            &[1.0, 3.0, 9.0],
        )
        .only(DType::NUMBERS),
        pinned(
            "least",
            Min,
            &three,
            &[1.0, 9.0, 0.0, 3.0],
            &[1.0, 0.0, 3.0],
        )
        .only(DType::NUMBERS),
        pinned(
            "nan_is_greatest",
            Max,
            &three,
            &[NAN, 9.0, 0.0, 3.0],
            &[1.0, NAN, 9.0],
        )
        .only(DType::FLOATS),
        pinned(
            "nan_is_least",
            Min,
            &[1.0, NAN, 3.0],
            &[0.0, 9.0, 0.0, 3.0],
            &[1.0, NAN, 3.0],
        )
        .only(DType::FLOATS),
        // 2049 is not an f16; the running sum must not lose the 1.
        pinned(
            "narrow_sums_run_wide",
            Add,
            &[0.0, 2048.0, 0.0],
            &[1.0, 0.0, 1.0, 0.0],
            &[0.0, 2050.0, 0.0],
        )
        .only(&[DType::F16]),
        pinned(
            "sums_of_i8_wrap",
            Add,
            &[0.0, 100.0, 0.0],
            &[100.0, 0.0, 0.0, 0.0],
            &[0.0, -56.0, 0.0],
        )
        .only(&[DType::I8]),
        OpCase::new("ones_to_one_element", |c| {
            let x = c.input("data", [1], InputFill::Values(vec![0.0]))?;
            let idx = c.input_of("idx", Type::new(DType::I32, [2000]), InputFill::Index(1))?;
            let updates = c.input("updates", [2000], InputFill::Values(vec![1.0; 2000]))?;
            let y = c
                .graph
                .scatter_elements(x, idx, updates, 0, ScatterReduce::Add)?;
            c.output_expect(y, &[2000.0])
        })
        .only(&[DType::F32, DType::F16, DType::BF16, DType::I32]),
        OpCase::new("special_values", |c| {
            let x = c.input("data", [5, 9], InputFill::Special)?;
            let idx = c.input_of("idx", Type::new(DType::I32, [5, 20]), InputFill::Index(9))?;
            let updates = c.input("updates", [5, 20], InputFill::Special)?;
            let y = c
                .graph
                .scatter_elements(x, idx, updates, 1, ScatterReduce::Min)?;
            c.output(y)
        })
        .only(DType::NUMBERS),
        OpCase::new("of_views", |c| {
            let x = c.input("data", [3, 5, 7], InputFill::Special)?;
            let x = c.graph.transpose(x, &[2, 0, 1])?;
            let idx = c.input_of("idx", Type::new(DType::I32, [4, 7, 3]), InputFill::Index(5))?;
            let idx = c.graph.transpose(idx, &[1, 2, 0])?;
            let updates = c.input("updates", [7, 4, 3], InputFill::Normal)?;
            let updates = c.graph.transpose(updates, &[0, 2, 1])?;
            let y = c
                .graph
                .scatter_elements(x, idx, updates, 2, ScatterReduce::Replace)?;
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
            let ty = Type::new(DType::I32, [s.clone(), 13.into()]);
            let idx = c.input_of("idx", ty, InputFill::Index(7))?;
            let updates = c.input("updates", [s, 13.into()], InputFill::Normal)?;
            let y = c
                .graph
                .scatter_elements(x, idx, updates, 1, ScatterReduce::Add)?;
            c.output(y)
        })
        .only(DType::NUMBERS),
        OpCase::new("counts_of_a_symbolic_axis", |c| {
            let s = c.sym("s", 5, 3000);
            let x = c.input("data", [7], InputFill::Normal)?;
            let idx = c.input_of(
                "idx",
                Type::new(DType::I32, [s.clone()]),
                InputFill::Index(7),
            )?;
            let updates = c.input("updates", [s], InputFill::Normal)?;
            let y = c
                .graph
                .scatter_elements(x, idx, updates, 0, ScatterReduce::Max)?;
            c.output(y)
        })
        .only(DType::NUMBERS),
    ]
}

impl Graph {
    /// `data`, of any dtype, with the elements of `updates` written to indexed positions. Along
    /// `axis`, the element's index in `idx` (`I32` or `I64`, of the shape of `updates`) is the
    /// position; along the other axes, the position does not change. Updates of one element are
    /// applied in row-major order.
    ///
    /// # Errors
    /// [`OpError`] when dtypes or sizes do not match, `axis` is out of range, or booleans would be
    /// combined. A run fails if an index is outside `-n..n`.
    pub fn scatter_elements(
        &mut self,
        data: Value,
        idx: Value,
        updates: Value,
        axis: usize,
        reduce: ScatterReduce,
    ) -> Result<Value, OpError> {
        self.add(ScatterElements { axis, reduce }, &[data, idx, updates])
    }
}
