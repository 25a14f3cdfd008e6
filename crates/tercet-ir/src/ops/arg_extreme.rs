//! The index of the maximum or minimum along an axis.

use crate::accuracy::Accuracy;
use crate::attrs;
use crate::case::{InputFill, OpCase, RejectCase};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::Gradient;
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{AxisView, exactly, expect_axis, extreme_order, reject, scalars};
use crate::tensor::Tensor;
use crate::types::{TensorType, Type};

attrs! {
    /// The `I32` index of the maximum along an axis. NaN counts as the maximum; ties go to the
    /// lower index.
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use tercet_ir::{EvalCtx, Graph, Tensor, evaluate};
    /// let mut g = Graph::new();
    /// let x = g.constant(Tensor::from_slice(&[3], &[1f32, 5.0, 5.0])?)?;
    /// let y = g.arg_max(x, 0, false)?;
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// assert_eq!(done.get(y).as_slice::<i32>()?, [1]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct ArgMax {
        /// The reduced axis, which must not be empty.
        pub axis: usize,
        /// Keeps the axis with size 1 if true, else removes it.
        pub keep_dim: bool,
    }
}

attrs! {
    /// The `I32` index of the minimum along an axis. NaN counts as the minimum; ties go to the
    /// lower index.
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use tercet_ir::{EvalCtx, Graph, Tensor, evaluate};
    /// let mut g = Graph::new();
    /// let x = g.constant(Tensor::from_slice(&[2, 2], &[1f32, 5.0, 3.0, 2.0])?)?;
    /// let y = g.arg_min(x, 1, true)?;
    /// assert_eq!(g.ty(y).to_string(), "i32[2, 1]");
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// assert_eq!(done.get(y).as_slice::<i32>()?, [0, 1]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct ArgMin {
        /// The reduced axis, which must not be empty.
        pub axis: usize,
        /// Keeps the axis with size 1 if true, else removes it.
        pub keep_dim: bool,
    }
}

const fn doc(name: &'static str, text: &'static str) -> OpDoc {
    OpDoc {
        name,
        text,
        operands: &["x"],
        dtypes: DType::ALL,
        accuracy: Accuracy::Exact,
        tier: Tier::Core,
    }
}

const EMPTY: &str = "an axis of size 0 has no extreme element";

fn infer(operands: &[&Type], axis: usize, keep_dim: bool) -> Result<Vec<Type>, TypeError> {
    let [x] = exactly(operands)?;
    expect_axis(axis, x.rank())?;
    let mut dims = x.shape.to_vec();
    let size = dims.remove(axis);
    if size == Dim::Known(0) && !dims.contains(&Dim::Known(0)) {
        return Err(TypeError::Other(EMPTY.to_string()));
    }
    if keep_dim {
        dims.insert(axis, Dim::Known(1));
    }
    Ok(vec![Type::new(DType::I32, dims)])
}

fn eval(x: &Tensor, axis: usize, largest: bool, ty: &TensorType) -> Result<Vec<Tensor>, EvalError> {
    let data = scalars(x);
    let view = AxisView::new(x.shape(), axis);
    let lines = view.outer * view.inner;
    if view.len == 0 && lines > 0 {
        return Err(EvalError::Data(EMPTY.to_string()));
    }
    let mut indices = Vec::with_capacity(lines);
    view.for_each_line(|start| {
        let at = |i: usize| data[start + i * view.inner];
        let first = |best: usize, i: usize| match extreme_order(at(i), at(best), largest) {
            std::cmp::Ordering::Less => i,
            std::cmp::Ordering::Equal | std::cmp::Ordering::Greater => best,
        };
        indices.push((1..view.len).fold(0, first) as i64);
    });
    Ok(vec![Tensor::from_i64s(ty.clone(), &indices)?])
}

/// A function that adds one of the two operators.
type ArgExtremeFn = fn(&mut Graph, Value, usize, bool) -> Result<Value, OpError>;

fn cases_of(build: ArgExtremeFn, largest: bool) -> Vec<OpCase> {
    let shaped = |name: &str, shape: &'static [usize], axis: usize, keep: bool, fill: InputFill| {
        OpCase::new(name, move |c| {
            let x = c.input("x", shape, fill.clone())?;
            let y = build(&mut c.graph, x, axis, keep)?;
            c.output(y)
        })
    };
    // The values are negated for the minimum, so that both operators give the same index.
    let line = |name: &str, x: &[f64], expected: f64| {
        let x: Vec<f64> = x.iter().map(|v| if largest { *v } else { -v }).collect();
        OpCase::new(name, move |c| {
            let x = c.input("x", [x.len()], InputFill::Values(x.clone()))?;
            let y = build(&mut c.graph, x, 0, false)?;
            c.output_expect(y, &[expected])
        })
    };
    // A row with equal elements so far apart that different workgroups find them.
    let mut far_apart = vec![0.0; 20_000];
    for at in [5_000, 5_001, 12_000, 19_999] {
        far_apart[at] = 2.0;
    }
    const SIGNED: &[DType] = &[DType::I32, DType::I64];
    const NAN: f64 = f64::NAN;
    vec![
        shaped("odd_7x33", &[7, 33], 1, false, InputFill::Normal),
        shaped("keep_dim", &[7, 33], 1, true, InputFill::Normal),
        shaped("first_axis", &[33, 7], 0, false, InputFill::Normal),
        shaped("middle_axis", &[2, 5, 3], 1, true, InputFill::Normal),
        shaped("special", &[5, 21], 1, false, InputFill::Special),
        shaped("one_element", &[1], 0, false, InputFill::Normal),
        shaped("long_line", &[3000], 0, false, InputFill::Normal),
        shaped("few_long_rows", &[3, 20_000], 1, false, InputFill::Normal),
        shaped(
            "few_long_rows_special",
            &[2, 18_000],
            1,
            true,
            InputFill::Special,
        ),
        line("ties_far_apart", &far_apart, 5_000.0).only(DType::FLOATS),
        shaped("no_rows", &[0, 4], 1, false, InputFill::Normal),
        shaped("no_rows_of_nothing", &[0, 0], 1, true, InputFill::Normal),
        line("ties_to_the_lower_index", &[1.0, 3.0, 2.0, 3.0], 1.0).only(DType::FLOATS),
        line("ties_of_integers", &[1.0, 3.0, 2.0, 3.0], 1.0).only(SIGNED),
        line("first_nan_wins", &[1.0, NAN, f64::INFINITY, NAN], 1.0).only(DType::FLOATS),
        line("nan_at_the_start", &[NAN, f64::INFINITY], 0.0).only(DType::FLOATS),
        line("zeros_are_equal", &[-1.0, -0.0, 0.0], 1.0).only(DType::FLOATS),
        line("all_infinite", &[-f64::INFINITY, -f64::INFINITY], 0.0).only(DType::FLOATS),
        line("wide_integers", &[16_777_216.0, 16_777_217.0], 1.0).only(SIGNED),
        OpCase::new("symbolic_axis", move |c| {
            let s = c.sym("s", 5, 9);
            let x = c.input("x", [s, 3.into()], InputFill::Normal)?;
            let y = build(&mut c.graph, x, 0, false)?;
            c.output(y)
        }),
        OpCase::new("symbolic_long_rows", move |c| {
            let s = c.sym("s", 16_500, 40_000);
            let rows = c.sym("rows", 2, 5);
            let x = c.input("x", [rows, s], InputFill::Normal)?;
            let y = build(&mut c.graph, x, 1, false)?;
            c.output(y)
        }),
        OpCase::new("symbolic_axis_of_nothing", move |c| {
            let s = c.sym("s", 0, 9);
            let x = c.input("x", [s, 3.into()], InputFill::Normal)?;
            let y = build(&mut c.graph, x, 0, false)?;
            c.expect_fault(EMPTY);
            c.output(y)
        }),
    ]
}

impl OpSpec for ArgMax {
    const DOC: OpDoc = doc(
        "arg_max",
        "The `i32` index of the maximum along an axis. NaN counts as the maximum; ties go to the \
         lower index.",
    );

    const GRADIENT: Gradient<Self> = Gradient::Zero("indices are integers");

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        infer(operands, self.axis, self.keep_dim)
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        eval(operands[0], self.axis, true, &results[0])
    }

    fn cases() -> Vec<OpCase> {
        cases_of(Graph::arg_max, true)
    }

    fn rejects() -> Vec<RejectCase> {
        vec![
            reject("axis", "axis 1 is out of range for rank 1", |g| {
                let x = g.input("x", Type::new(DType::F32, [3]))?;
                g.arg_max(x, 1, false)
            }),
            reject("empty", EMPTY, |g| {
                let x = g.input("x", Type::new(DType::F32, [3, 0]))?;
                g.arg_max(x, 1, false)
            }),
        ]
    }
}

impl OpSpec for ArgMin {
    const DOC: OpDoc = doc(
        "arg_min",
        "The `i32` index of the minimum along an axis. NaN counts as the minimum; ties go to the \
         lower index.",
    );

    const GRADIENT: Gradient<Self> = Gradient::Zero("indices are integers");

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        infer(operands, self.axis, self.keep_dim)
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        eval(operands[0], self.axis, false, &results[0])
    }

    fn cases() -> Vec<OpCase> {
        cases_of(Graph::arg_min, false)
    }

    fn rejects() -> Vec<RejectCase> {
        vec![
            reject("axis", "axis 1 is out of range for rank 1", |g| {
                let x = g.input("x", Type::new(DType::F32, [3]))?;
                g.arg_min(x, 1, false)
            }),
            reject("empty", EMPTY, |g| {
                let x = g.input("x", Type::new(DType::F32, [3, 0]))?;
                g.arg_min(x, 1, false)
            }),
        ]
    }
}

impl Graph {
    /// The `I32` index of the maximum of `x`, of any dtype, along `axis`. `keep_dim` keeps the axis
    /// with size 1. NaN counts as the maximum; ties go to the lower index.
    ///
    /// # Errors
    /// [`OpError`] when `axis` is out of range or of size 0.
    pub fn arg_max(&mut self, x: Value, axis: usize, keep_dim: bool) -> Result<Value, OpError> {
        self.add(ArgMax { axis, keep_dim }, &[x])
    }

    /// The `I32` index of the minimum of `x`, of any dtype, along `axis`. `keep_dim` keeps the axis
    /// with size 1. NaN counts as the minimum; ties go to the lower index.
    ///
    /// # Errors
    /// [`OpError`] when `axis` is out of range or of size 0.
    pub fn arg_min(&mut self, x: Value, axis: usize, keep_dim: bool) -> Result<Value, OpError> {
        self.add(ArgMin { axis, keep_dim }, &[x])
    }
}
