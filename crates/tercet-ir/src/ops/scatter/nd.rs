//! Updates of slices by coordinates.

use super::{ScatterReduce, accepted, expect_updates, scatter};
use crate::accuracy::Accuracy;
use crate::attrs;
use crate::case::{InputFill, OpCase, RejectCase};
use crate::dtype::DType;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::gather_nd::{coordinates, slices};
use crate::ops::util::{counted, exactly, expect_equal, expect_rank, reject};
use crate::tensor::Tensor;
use crate::types::{TensorType, Type};

attrs! {
    /// `data` with each slice of `updates` written at its row of coordinates in the last axis of
    /// `idx` (ONNX `ScatterND`): `y[idx[i, 0], idx[i, 1], ..] = updates[i, ..]`. Negative
    /// coordinates count from the end.
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use tercet_ir::{EvalCtx, Graph, Tensor, evaluate, ops::ScatterReduce};
    /// let mut g = Graph::new();
    /// let data = g.constant(Tensor::from_slice(&[2, 2], &[1f32, 2.0, 3.0, 4.0])?)?;
    /// let idx = g.constant(Tensor::from_slice(&[1, 2], &[1i32, 0])?)?;
    /// let updates = g.constant(Tensor::from_slice(&[1], &[10f32])?)?;
    /// let y = g.scatter_nd(data, idx, updates, ScatterReduce::Add)?;
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// assert_eq!(done.get(y).as_slice::<f32>()?, [1.0, 2.0, 13.0, 4.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct ScatterNd {
        /// How updates are combined with an element.
        pub reduce: ScatterReduce,
    }
}

impl OpSpec for ScatterNd {
    const DOC: OpDoc = OpDoc {
        name: "scatter_nd",
        text: "`data` with each slice of `updates` written at its row of coordinates in the last \
               axis of `idx`: `y[idx[i, 0], idx[i, 1], ..] = updates[i, ..]`. Updates of one \
               element are applied in row-major order: the last one remains, or with `reduce` they \
               are combined with the old element. Negative coordinates count from the end. A run \
               with an out-of-range coordinate fails.",
        operands: &["data", "idx", "updates"],
        dtypes: DType::ALL,
        accuracy: Accuracy::Reduction,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::scatter::nd);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [data, idx, updates] = exactly(operands)?;
        expect_updates(self.reduce, data, updates)?;
        let k = coordinates(idx)?;
        if k > data.rank() {
            let reason = format!("{k} coordinates for data of {} axes", data.rank());
            return Err(TypeError::Other(reason));
        }
        let rows = &idx.shape[..idx.rank() - 1];
        expect_rank("updates", updates, rows.len() + data.rank() - k)?;
        let wanted = rows.iter().chain(&data.shape[k..]);
        for (axis, (m, n)) in wanted.zip(updates.shape.iter()).enumerate() {
            expect_equal(
                &format!("expected and actual sizes of updates along axis {axis}"),
                m,
                n,
            )?;
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
        let k = idx.shape()[idx.shape().len() - 1];
        let (lens, slice) = data.shape().split_at(k);
        // All rows belong to one batch.
        let slices = slices(lens, idx, usize::MAX)?;
        let inner = slice.iter().product();
        Ok(vec![scatter(data, updates, inner, &slices, self.reduce)?])
    }

    fn cases() -> Vec<OpCase> {
        let mut cases: Vec<OpCase> = ScatterReduce::ALL
            .iter()
            .flat_map(|&reduce| {
                [
                    shaped("elements_5x7", &[5, 7], &[33, 2], &[33], reduce),
                    shaped("rows_9x5", &[9, 5], &[21, 1], &[21, 5], reduce),
                    shaped("wide_9x37", &[9, 37], &[12, 1], &[12, 37], reduce),
                    shaped("matrices", &[3, 2, 3], &[2, 4, 1], &[2, 4, 2, 3], reduce),
                ]
            })
            .collect();
        cases.extend(value_cases());
        cases
    }

    fn rejects() -> Vec<RejectCase> {
        fn build(g: &mut Graph, idx: Type, updates: Type) -> Result<Value, OpError> {
            let x = g.input("x", Type::new(DType::F32, [3, 2]))?;
            let idx = g.input("idx", idx)?;
            let updates = g.input("updates", updates)?;
            g.scatter_nd(x, idx, updates, ScatterReduce::Add)
        }
        vec![
            reject("float_indices", "operand idx is f32", |g| {
                build(
                    g,
                    Type::new(DType::F32, [4, 1]),
                    Type::new(DType::F32, [4, 2]),
                )
            }),
            reject("other_updates", "operand updates is i32", |g| {
                build(
                    g,
                    Type::new(DType::I32, [4, 1]),
                    Type::new(DType::I32, [4, 2]),
                )
            }),
            reject("coordinates", "3 coordinates for data of 2 axes", |g| {
                build(g, Type::new(DType::I32, [4, 3]), Type::new(DType::F32, [4]))
            }),
            reject("rank", "rank 2", |g| {
                build(g, Type::new(DType::I32, [4, 1]), Type::new(DType::F32, [4]))
            }),
            reject("sizes", "along axis 1: 2 and 3 differ", |g| {
                build(
                    g,
                    Type::new(DType::I32, [4, 1]),
                    Type::new(DType::F32, [4, 3]),
                )
            }),
        ]
    }
}

fn shaped(
    name: &str,
    data: &'static [usize],
    idx: &'static [usize],
    updates: &'static [usize],
    reduce: ScatterReduce,
) -> OpCase {
    OpCase::new(format!("{}_{name}", reduce.name()), move |c| {
        let x = c.input("data", data, InputFill::Normal)?;
        // Valid indices of the shortest axis are valid for every axis.
        let least = data[..idx[idx.len() - 1]].iter().min().copied();
        let fill = InputFill::Index(least.unwrap_or(1));
        let at = c.input_of("idx", Type::new(DType::I32, idx), fill)?;
        let updates = c.input("updates", updates, InputFill::Normal)?;
        let y = c.graph.scatter_nd(x, at, updates, reduce)?;
        c.output(y)
    })
    .only(accepted(reduce))
}

/// Updates slices of a state that is assigned the result; the last two updates have the same slice.
fn into_state(name: &str, shape: [usize; 3], rows: usize) -> OpCase {
    OpCase::new(name, move |c| {
        let cache = c.state_of("cache", Type::new(c.dtype, shape), InputFill::Normal)?;
        let places = (0..rows).flat_map(|row| {
            let slice = (row * 5).min((rows - 2) * 5) % (shape[0] * shape[1]);
            [slice / shape[1], slice % shape[1]]
        });
        let places = InputFill::Values(places.map(|i| i as f64).collect());
        let idx = c.input_of("idx", Type::new(DType::I32, [rows, 2]), places)?;
        let updates = c.input("updates", [rows, shape[2]], InputFill::Normal)?;
        let y = c
            .graph
            .scatter_nd(cache, idx, updates, ScatterReduce::Replace)?;
        c.graph.assign(cache, y)?;
        c.runs = 2;
        c.output(y)
    })
}

/// A state that must not change in a run that fails later.
fn kept_by_a_fault() -> OpCase {
    OpCase::new("state_kept_by_a_fault", |c| {
        let cache = c.state_of("cache", Type::new(c.dtype, [4, 3]), InputFill::Normal)?;
        let x = c.input("x", [2, 3], InputFill::Normal)?;
        let ty = Type::new(DType::I32, [1]);
        let idx = c.input_of("idx", ty, InputFill::Values(vec![5.0]))?;
        let rows = c.graph.gather(x, idx, 0)?;
        let at = c.input_of(
            "at",
            Type::new(DType::I32, [1, 1]),
            InputFill::Values(vec![2.0]),
        )?;
        let y = c
            .graph
            .scatter_nd(cache, at, rows, ScatterReduce::Replace)?;
        c.graph.assign(cache, y)?;
        c.expect_fault("index 5 is out of range for axis of 2");
        c.output(y)
    })
}

fn value_cases() -> Vec<OpCase> {
    // Long: this function is a table of test cases, one per row.
    let fault = |name: &str, index: [f64; 4], message: &'static str| {
        OpCase::new(name, move |c| {
            let x = c.input("data", [2, 3, 2], InputFill::Normal)?;
            let idx = Type::new(DType::I32, [2, 2]);
            let idx = c.input_of("idx", idx, InputFill::Values(index.to_vec()))?;
            let updates = c.input("updates", [2, 2], InputFill::Normal)?;
            let y = c
                .graph
                .scatter_nd(x, idx, updates, ScatterReduce::Replace)?;
            c.expect_fault(message);
            c.output(y)
        })
    };
    let pinned = |name: &str, reduce, y: [f64; 6]| {
        OpCase::new(name, move |c| {
            let x = c.input("data", [3, 2], counted(&[3, 2]))?;
            let ty = Type::new(DType::I32, [3, 1]);
            let idx = c.input_of("idx", ty, InputFill::Values(vec![2.0, 0.0, -1.0]))?;
            let updates = c.input("updates", [3, 2], counted(&[3, 2]))?;
            let out = c.graph.scatter_nd(x, idx, updates, reduce)?;
            c.output_expect(out, &y)
        })
        .only(DType::NUMBERS)
    };
    let last = ScatterReduce::Replace;
    vec![
        pinned("last_stays", last, [2.0, 3.0, 2.0, 3.0, 4.0, 5.0]),
        pinned("sums", ScatterReduce::Add, [2.0, 4.0, 2.0, 3.0, 8.0, 11.0]),
        into_state("state_rows", [3, 7, 8], 6),
        into_state("state_odd_rows", [2, 5, 3], 4),
        into_state("state_long_rows", [2, 4, 1100], 3),
        kept_by_a_fault(),
        shaped("one_element", &[5, 3], &[2], &[], last),
        shaped("no_coordinates", &[2, 3], &[4, 0], &[4, 2, 3], last),
        shaped("rank_0", &[], &[3, 0], &[3], ScatterReduce::Add),
        shaped("rank_1", &[13], &[5, 1], &[5], last),
        shaped("rank_4", &[2, 3, 2, 3], &[5, 3], &[5, 3], last),
        shaped(
            "rank_5",
            &[2, 3, 2, 2, 3],
            &[2, 2, 2],
            &[2, 2, 2, 2, 3],
            last,
        ),
        shaped("rank_6", &[2, 1, 3, 2, 2, 3], &[7, 4], &[7, 2, 3], last),
        shaped("no_updates", &[5, 3], &[0, 2], &[0], last),
        shaped("no_updates_of_nothing", &[0, 3], &[0, 1], &[0, 3], last),
        shaped("empty_slices", &[5, 0], &[2, 1], &[2, 0], last),
        shaped(
            "many_1500",
            &[31, 3],
            &[1500, 1],
            &[1500, 3],
            ScatterReduce::Add,
        ),
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
        OpCase::new("of_views", |c| {
            let x = c.input("data", [3, 5, 7], InputFill::Special)?;
            let x = c.graph.transpose(x, &[2, 0, 1])?;
            let idx = c.input_of("idx", Type::new(DType::I32, [2, 6]), InputFill::Index(3))?;
            let idx = c.graph.transpose(idx, &[1, 0])?;
            let updates = c.input("updates", [5, 6], InputFill::Normal)?;
            let updates = c.graph.transpose(updates, &[1, 0])?;
            let y = c
                .graph
                .scatter_nd(x, idx, updates, ScatterReduce::Replace)?;
            c.output(y)
        }),
        OpCase::new("symbolic", |c| {
            let s = c.sym("s", 5, 9);
            let x = c.input("data", [7, 3], InputFill::Normal)?;
            let ty = Type::new(DType::I32, [s.clone(), 1.into()]);
            let idx = c.input_of("idx", ty, InputFill::Index(7))?;
            let updates = c.input("updates", [s, 3.into()], InputFill::Normal)?;
            let y = c.graph.scatter_nd(x, idx, updates, ScatterReduce::Mul)?;
            c.output(y)
        })
        .only(DType::NUMBERS),
    ]
}

impl Graph {
    /// `data`, of any dtype, with each slice of `updates` written at its row of coordinates in the
    /// last axis of `idx` (`I32` or `I64`). Updates of one element are applied in row-major order.
    ///
    /// # Errors
    /// [`OpError`] when dtypes or sizes do not match, the last axis of `idx` is not of known size,
    /// or booleans would be combined. A run fails if a coordinate is outside `-n..n`.
    pub fn scatter_nd(
        &mut self,
        data: Value,
        idx: Value,
        updates: Value,
        reduce: ScatterReduce,
    ) -> Result<Value, OpError> {
        self.add(ScatterNd { reduce }, &[data, idx, updates])
    }
}
