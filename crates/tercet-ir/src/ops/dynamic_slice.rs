//! Reading and writing of windows whose start indices are data.
//!
//! A negative start counts from the end. Every start is then clamped so that the window fits.

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
    INDEX_DTYPES, counted, exactly, expect_dtype, expect_equal, expect_rank, expect_same_dtype,
    for_each_index, pick, reject,
};
use crate::tensor::Tensor;
use crate::types::{Shape, TensorType, Type, row_major_strides};

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

    fn cases() -> Vec<OpCase> {
        let line = |name: &str, of: DType, start: f64, expected: &'static [f64]| {
            OpCase::new(name, move |c| {
                let x = c.input("x", [5], counted(&[5]))?;
                let starts =
                    c.input_of("starts", Type::new(of, [1]), InputFill::Values(vec![start]))?;
                let y = c.graph.dynamic_slice(x, starts, [2])?;
                c.output_expect(y, expected)
            })
        };
        let block = |name: &str,
                     shape: &'static [usize],
                     sizes: &'static [usize],
                     starts: &'static [f64]| {
            OpCase::new(name, move |c| {
                let x = c.input("x", shape, InputFill::Special)?;
                let at = Type::new(DType::I32, [starts.len()]);
                let at = c.input_of("starts", at, InputFill::Values(starts.to_vec()))?;
                let y = c.graph.dynamic_slice(x, at, sizes)?;
                c.output(y)
            })
        };
        vec![
            line("inside", DType::I32, 1.0, &[1.0, 2.0]),
            line("inside_by_i64", DType::I64, 1.0, &[1.0, 2.0]),
            line("clamped_at_the_end", DType::I32, 4.0, &[3.0, 4.0]),
            line("clamped_far_out", DType::I32, 2_147_483_647.0, &[3.0, 4.0]),
            line("from_the_end", DType::I32, -3.0, &[2.0, 3.0]),
            line("from_the_end_clamped", DType::I32, -1.0, &[3.0, 4.0]),
            line("clamped_at_the_start", DType::I32, -9.0, &[0.0, 1.0]),
            line("least_i64", DType::I64, -9.3e18, &[0.0, 1.0]),
            block("odd_block", &[17, 33], &[5, 7], &[3.0, 30.0]),
            block("whole", &[3, 4], &[3, 4], &[1.0, -1.0]),
            block("nothing", &[3, 4], &[0, 4], &[7.0, 0.0]),
            block("of_nothing", &[0], &[0], &[1.0]),
            block("rank_0", &[], &[], &[]),
            OpCase::new("symbolic_window", |c| {
                let s = c.sym("s", 3, 4);
                c.input("rows", [s.clone()], InputFill::Normal)?;
                let x = c.input("x", [8, 2], InputFill::Normal)?;
                let at = Type::new(DType::I32, [2]);
                let at = c.input_of("starts", at, InputFill::Values(vec![6.0, 0.0]))?;
                let y = c.graph.dynamic_slice(x, at, [s, 2.into()])?;
                c.output(y)
            }),
            OpCase::new("symbolic_window_too_large", |c| {
                let s = c.sym("s", 3, 4);
                c.input("rows", [s.clone()], InputFill::Normal)?;
                let x = c.input("x", [2], InputFill::Normal)?;
                let at = c.input_of(
                    "starts",
                    Type::new(DType::I32, [1]),
                    InputFill::Values(vec![0.0]),
                )?;
                let y = c.graph.dynamic_slice(x, at, [s])?;
                c.expect_fault("a window of 3 does not fit axis 0 of size 2");
                c.output(y)
            }),
        ]
    }

    fn rejects() -> Vec<RejectCase> {
        fn build(g: &mut Graph, starts: Type, sizes: &[usize]) -> Result<Value, OpError> {
            let x = g.input("x", Type::new(DType::F32, [3, 2]))?;
            let starts = g.input("starts", starts)?;
            g.dynamic_slice(x, starts, sizes)
        }
        vec![
            reject(
                "too_large",
                "a window of 4 does not fit axis 0 of size 3",
                |g| build(g, Type::new(DType::I32, [2]), &[4, 2]),
            ),
            reject("sizes", "1 sizes for 2 axes", |g| {
                build(g, Type::new(DType::I32, [2]), &[1])
            }),
            reject("starts", "number of starts and axes: 3 and 2 differ", |g| {
                build(g, Type::new(DType::I32, [3]), &[1, 1])
            }),
            reject("float_starts", "operand starts is f32", |g| {
                build(g, Type::new(DType::F32, [2]), &[1, 1])
            }),
            reject("starts_of_rank_2", "expected rank 1", |g| {
                build(g, Type::new(DType::I32, [2, 1]), &[1, 1])
            }),
        ]
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

    fn cases() -> Vec<OpCase> {
        // Long: this function is a table of test cases, one per row.
        let line = |name: &str, of: DType, start: f64, expected: &'static [f64]| {
            OpCase::new(name, move |c| {
                let x = c.input("x", [4], InputFill::Values(vec![0.0; 4]))?;
                let update = c.input("update", [2], InputFill::Values(vec![5.0, 6.0]))?;
                let starts =
                    c.input_of("starts", Type::new(of, [1]), InputFill::Values(vec![start]))?;
                let y = c.graph.dynamic_update_slice(x, update, starts)?;
                c.output_expect(y, expected)
            })
        };
        let block = |name: &str,
                     shape: &'static [usize],
                     update: &'static [usize],
                     starts: &'static [f64]| {
            OpCase::new(name, move |c| {
                let x = c.input("x", shape, InputFill::Special)?;
                let update = c.input("update", update, InputFill::Normal)?;
                let at = Type::new(DType::I32, [starts.len()]);
                let at = c.input_of("starts", at, InputFill::Values(starts.to_vec()))?;
                let y = c.graph.dynamic_update_slice(x, update, at)?;
                c.output(y)?;
                // Checks that the operand is unchanged.
                c.output(x)
            })
        };
        let cache = |name: &str,
                     shape: &'static [usize],
                     update: &'static [usize],
                     starts: &'static [f64]| {
            OpCase::new(name, move |c| {
                let cache = c.state_of("cache", Type::new(c.dtype, shape), InputFill::Normal)?;
                let update = c.input("update", update, InputFill::Special)?;
                let at = Type::new(DType::I32, [starts.len()]);
                let at = c.input_of("at", at, InputFill::Values(starts.to_vec()))?;
                let y = c.graph.dynamic_update_slice(cache, update, at)?;
                c.graph.assign(cache, y)?;
                c.runs = 2;
                c.output(y)
            })
        };
        vec![
            line("inside", DType::I32, 1.0, &[0.0, 5.0, 6.0, 0.0]),
            line("inside_by_i64", DType::I64, 0.0, &[5.0, 6.0, 0.0, 0.0]),
            line("clamped_at_the_end", DType::I32, 3.0, &[0.0, 0.0, 5.0, 6.0]),
            line("from_the_end", DType::I32, -3.0, &[0.0, 5.0, 6.0, 0.0]),
            line(
                "clamped_at_the_start",
                DType::I32,
                -9.0,
                &[5.0, 6.0, 0.0, 0.0],
            ),
            block("odd_block", &[17, 33], &[5, 7], &[3.0, 30.0]),
            block("whole", &[3, 4], &[3, 4], &[1.0, 1.0]),
            block("nothing", &[3, 4], &[0, 4], &[7.0, 0.0]),
            block("rank_0", &[], &[], &[]),
            OpCase::new("state_cache", |c| {
                let ty = Type::new(c.dtype, [3, 2]);
                let cache = c.state_of("cache", ty, InputFill::Values(vec![0.0; 6]))?;
                let row = c.input("row", [1, 2], InputFill::Values(vec![1.0, 2.0]))?;
                let at = Type::new(DType::I32, [2]);
                let at = c.input_of("at", at, InputFill::Values(vec![1.0, 0.0]))?;
                let y = c.graph.dynamic_update_slice(cache, row, at)?;
                c.graph.assign(cache, y)?;
                c.runs = 2;
                c.output_expect(cache, &[0.0, 0.0, 1.0, 2.0, 0.0, 0.0])
            })
            .only(&[DType::F32, DType::F16, DType::BF16]),
            cache("state_odd_window", &[5, 7], &[3, 4], &[1.0, 2.0]),
            cache("state_odd_rows", &[3, 4, 5], &[2, 3, 5], &[1.0, 1.0, 0.0]),
            cache("state_narrow_rows", &[9, 3], &[7, 1], &[1.0, 1.0]),
            cache("state_heads", &[2, 5, 8], &[2, 1, 8], &[0.0, 3.0, 0.0]),
            cache("state_whole", &[3, 5], &[3, 5], &[2.0, -1.0]),
            cache("state_rank_0", &[], &[], &[]),
            OpCase::new("state_of_a_turned_update", |c| {
                let cache = c.state_of("cache", Type::new(c.dtype, [5, 7]), InputFill::Normal)?;
                let x = c.input("x", [3, 2], InputFill::Special)?;
                let update = c.graph.transpose(x, &[1, 0])?;
                let at = Type::new(DType::I32, [2]);
                let at = c.input_of("at", at, InputFill::Values(vec![1.0, 3.0]))?;
                let y = c.graph.dynamic_update_slice(cache, update, at)?;
                c.graph.assign(cache, y)?;
                c.output(y)
            }),
            OpCase::new("state_kept_by_a_fault", |c| {
                let cache = c.state_of("cache", Type::new(c.dtype, [4, 3]), InputFill::Normal)?;
                let x = c.input("x", [2, 3], InputFill::Normal)?;
                let idx = Type::new(DType::I32, [1]);
                let idx = c.input_of("idx", idx, InputFill::Values(vec![5.0]))?;
                let row = c.graph.gather(x, idx, 0)?;
                let at = Type::new(DType::I32, [2]);
                let at = c.input_of("at", at, InputFill::Values(vec![1.0, 0.0]))?;
                let y = c.graph.dynamic_update_slice(cache, row, at)?;
                c.graph.assign(cache, y)?;
                c.expect_fault("index 5 is out of range for axis of 2");
                c.output(y)
            }),
            OpCase::new("symbolic_rows", |c| {
                let s = c.sym("s", 3, 4);
                let x = c.input("x", [8, 2], InputFill::Normal)?;
                let update = c.input("update", [s, 2.into()], InputFill::Normal)?;
                let at = Type::new(DType::I32, [2]);
                let at = c.input_of("starts", at, InputFill::Values(vec![4.0, 0.0]))?;
                let y = c.graph.dynamic_update_slice(x, update, at)?;
                c.output(y)
            }),
            OpCase::new("symbolic_update_too_large", |c| {
                let s = c.sym("s", 3, 4);
                let x = c.input("x", [2], InputFill::Normal)?;
                let update = c.input("update", [s], InputFill::Normal)?;
                let at = c.input_of(
                    "starts",
                    Type::new(DType::I32, [1]),
                    InputFill::Values(vec![0.0]),
                )?;
                let y = c.graph.dynamic_update_slice(x, update, at)?;
                c.expect_fault("a window of 3 does not fit axis 0 of size 2");
                c.output(y)
            }),
        ]
    }

    fn rejects() -> Vec<RejectCase> {
        fn build(g: &mut Graph, update: Type, starts: Type) -> Result<Value, OpError> {
            let x = g.input("x", Type::new(DType::F32, [3, 2]))?;
            let update = g.input("update", update)?;
            let starts = g.input("starts", starts)?;
            g.dynamic_update_slice(x, update, starts)
        }
        vec![
            reject(
                "too_large",
                "a window of 3 does not fit axis 1 of size 2",
                |g| build(g, Type::new(DType::F32, [1, 3]), Type::new(DType::I32, [2])),
            ),
            reject("dtype", "operand update is f16", |g| {
                build(g, Type::new(DType::F16, [1, 2]), Type::new(DType::I32, [2]))
            }),
            reject("rank", "expected rank 2", |g| {
                build(g, Type::new(DType::F32, [2]), Type::new(DType::I32, [2]))
            }),
            reject("unsigned_starts", "operand starts is u32", |g| {
                build(g, Type::new(DType::F32, [1, 2]), Type::new(DType::U32, [2]))
            }),
        ]
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
