//! Updates to slices by coordinates.

use super::{ScatterReduce, accepted, expect_updates, scatter};
use crate::accuracy::Accuracy;
use crate::attrs;
use crate::case::{Case, Fill, Reject};
use crate::dtype::DType;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{Doc, EvalCtx, OpSpec, Tier};
use crate::ops::gather_nd::{coordinates, slices};
use crate::ops::util::{counted, exactly, expect_equal, expect_rank, reject};
use crate::tensor::Tensor;
use crate::types::{TensorType, Type};

attrs! {
    /// `data` with each slice of `updates` taken to the slice that its row of coordinates, in the
    /// last axis of `idx`, leads to (ONNX `ScatterND`): `y[idx[i, 0], idx[i, 1], ..] = updates[i, ..]`.
    /// Negative coordinates count from the end.
    pub struct ScatterNd {
        /// What becomes of an element and its updates.
        pub reduce: ScatterReduce,
    }
}

impl OpSpec for ScatterNd {
    const DOC: Doc = Doc {
        name: "scatter_nd",
        text: "`data` with each slice of `updates` taken to the slice its row of coordinates, in the \
               last axis of `idx`, leads to: `y[idx[i, 0], idx[i, 1], ..] = updates[i, ..]`. Updates \
               to one element are taken in row-major order: the last stays, or with `reduce` they \
               are combined with what the element held. Negative coordinates count from the end; one \
               out of range ends the run.",
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
                &format!("wanted and given sizes of updates along axis {axis}"),
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
        // All rows are of one batch.
        let slices = slices(lens, idx, usize::MAX)?;
        let inner = slice.iter().product();
        Ok(vec![scatter(data, updates, inner, &slices, self.reduce)?])
    }

    fn cases() -> Vec<Case> {
        let mut cases: Vec<Case> = ScatterReduce::ALL
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

    fn rejects() -> Vec<Reject> {
        fn of(g: &mut Graph, idx: Type, updates: Type) -> Result<Value, OpError> {
            let x = g.input("x", Type::new(DType::F32, [3, 2]))?;
            let idx = g.input("idx", idx)?;
            let updates = g.input("updates", updates)?;
            g.scatter_nd(x, idx, updates, ScatterReduce::Add)
        }
        vec![
            reject("float_indices", "operand idx is f32", |g| {
                of(
                    g,
                    Type::new(DType::F32, [4, 1]),
                    Type::new(DType::F32, [4, 2]),
                )
            }),
            reject("other_updates", "operand updates is i32", |g| {
                of(
                    g,
                    Type::new(DType::I32, [4, 1]),
                    Type::new(DType::I32, [4, 2]),
                )
            }),
            reject("coordinates", "3 coordinates for data of 2 axes", |g| {
                of(g, Type::new(DType::I32, [4, 3]), Type::new(DType::F32, [4]))
            }),
            reject("rank", "rank 2", |g| {
                of(g, Type::new(DType::I32, [4, 1]), Type::new(DType::F32, [4]))
            }),
            reject("sizes", "along axis 1: 2 and 3 differ", |g| {
                of(
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
) -> Case {
    Case::new(format!("{}_{name}", reduce.name()), move |c| {
        let x = c.input("data", data, Fill::Normal)?;
        // Indices that suit every axis are those of the shortest.
        let least = data[..idx[idx.len() - 1]].iter().min().copied();
        let fill = Fill::Index(least.unwrap_or(1));
        let at = c.input_of("idx", Type::new(DType::I32, idx), fill)?;
        let updates = c.input("updates", updates, Fill::Normal)?;
        let y = c.graph.scatter_nd(x, at, updates, reduce)?;
        c.output(y)
    })
    .only(accepted(reduce))
}

/// Slices of a state that is assigned what comes out; the last two go to one of them.
fn into_state(name: &str, shape: [usize; 3], rows: usize) -> Case {
    Case::new(name, move |c| {
        let cache = c.state_of("cache", Type::new(c.dtype, shape), Fill::Normal)?;
        let places = (0..rows).flat_map(|row| {
            let slice = (row * 5).min((rows - 2) * 5) % (shape[0] * shape[1]);
            [slice / shape[1], slice % shape[1]]
        });
        let places = Fill::Values(places.map(|i| i as f64).collect());
        let idx = c.input_of("idx", Type::new(DType::I32, [rows, 2]), places)?;
        let updates = c.input("updates", [rows, shape[2]], Fill::Normal)?;
        let y = c
            .graph
            .scatter_nd(cache, idx, updates, ScatterReduce::Replace)?;
        c.graph.assign(cache, y)?;
        c.runs = 2;
        c.output(y)
    })
}

/// A state that a run which fails later must not change.
fn kept_by_a_fault() -> Case {
    Case::new("state_kept_by_a_fault", |c| {
        let cache = c.state_of("cache", Type::new(c.dtype, [4, 3]), Fill::Normal)?;
        let x = c.input("x", [2, 3], Fill::Normal)?;
        let ty = Type::new(DType::I32, [1]);
        let idx = c.input_of("idx", ty, Fill::Values(vec![5.0]))?;
        let rows = c.graph.gather(x, idx, 0)?;
        let at = c.input_of("at", Type::new(DType::I32, [1, 1]), Fill::Values(vec![2.0]))?;
        let y = c
            .graph
            .scatter_nd(cache, at, rows, ScatterReduce::Replace)?;
        c.graph.assign(cache, y)?;
        c.expect_fault("index 5 is out of range for axis of 2");
        c.output(y)
    })
}

fn value_cases() -> Vec<Case> {
    // Long: a table, one row a case.
    let fault = |name: &str, index: [f64; 4], message: &'static str| {
        Case::new(name, move |c| {
            let x = c.input("data", [2, 3, 2], Fill::Normal)?;
            let idx = Type::new(DType::I32, [2, 2]);
            let idx = c.input_of("idx", idx, Fill::Values(index.to_vec()))?;
            let updates = c.input("updates", [2, 2], Fill::Normal)?;
            let y = c
                .graph
                .scatter_nd(x, idx, updates, ScatterReduce::Replace)?;
            c.expect_fault(message);
            c.output(y)
        })
    };
    let pinned = |name: &str, reduce, y: [f64; 6]| {
        Case::new(name, move |c| {
            let x = c.input("data", [3, 2], counted(&[3, 2]))?;
            let ty = Type::new(DType::I32, [3, 1]);
            let idx = c.input_of("idx", ty, Fill::Values(vec![2.0, 0.0, -1.0]))?;
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
        Case::new("of_views", |c| {
            let x = c.input("data", [3, 5, 7], Fill::Special)?;
            let x = c.graph.transpose(x, &[2, 0, 1])?;
            let idx = c.input_of("idx", Type::new(DType::I32, [2, 6]), Fill::Index(3))?;
            let idx = c.graph.transpose(idx, &[1, 0])?;
            let updates = c.input("updates", [5, 6], Fill::Normal)?;
            let updates = c.graph.transpose(updates, &[1, 0])?;
            let y = c
                .graph
                .scatter_nd(x, idx, updates, ScatterReduce::Replace)?;
            c.output(y)
        }),
        Case::new("symbolic", |c| {
            let s = c.sym("s", 5, 9);
            let x = c.input("data", [7, 3], Fill::Normal)?;
            let ty = Type::new(DType::I32, [s.clone(), 1.into()]);
            let idx = c.input_of("idx", ty, Fill::Index(7))?;
            let updates = c.input("updates", [s, 3.into()], Fill::Normal)?;
            let y = c.graph.scatter_nd(x, idx, updates, ScatterReduce::Mul)?;
            c.output(y)
        })
        .only(DType::NUMBERS),
    ]
}

impl Graph {
    /// `data`, of any dtype, with each slice of `updates` taken to where its row of coordinates, in
    /// the last axis of `idx` (`I32` or `I64`), leads. Updates to one element are taken in row-major
    /// order.
    ///
    /// # Errors
    /// [`OpError`] when dtypes or sizes do not fit, the last axis of `idx` is not of a known size, or
    /// truth values would be combined. A coordinate outside `-n..n` ends the run.
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
