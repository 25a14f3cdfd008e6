//! Cases and rejected graphs of [`Map`].

use super::{AxisMap, IndexMap, Map, MapArg, MapStep};
use crate::attr::FloatAttr;
use crate::case::{CaseGraph, InputFill, OpCase, RejectCase};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::OpError;
use crate::graph::{Graph, Value};
use crate::ops::util::reject;
use crate::scalar::{BinaryFn, CompareFn, ScalarOp, UnaryFn};
use crate::types::{Shape, Type};

const I0: MapArg = MapArg::Input(0);
const I1: MapArg = MapArg::Input(1);

const fn step(i: usize) -> MapArg {
    MapArg::Step(i)
}

fn unary(f: UnaryFn, x: MapArg) -> MapStep {
    MapStep::new(ScalarOp::Unary(f), [x])
}

fn binary(f: BinaryFn, a: MapArg, b: MapArg) -> MapStep {
    MapStep::new(ScalarOp::Binary(f), [a, b])
}

fn map(
    shape: impl Into<Shape>,
    inputs: Vec<Vec<AxisMap>>,
    body: Vec<MapStep>,
    results: &[usize],
) -> Map {
    Map {
        shape: shape.into(),
        inputs: inputs.into_iter().map(|axes| IndexMap { axes }).collect(),
        body,
        results: results.to_vec(),
    }
}

fn axis(from: usize, start: i64, step: i64, shift: u8) -> AxisMap {
    AxisMap {
        from: Some(from),
        start,
        step,
        shift,
    }
}

fn straight(rank: usize) -> Vec<AxisMap> {
    IndexMap::identity(rank).axes
}

fn cast(to: DType, x: MapArg) -> MapStep {
    MapStep::new(ScalarOp::Cast(to), [x])
}

/// A map that casts one operand to its own dtype, so its result equals the elements that it reads.
fn reads(
    c: &mut CaseGraph,
    from: &[usize],
    to: &[usize],
    axes: &[AxisMap],
) -> Result<Value, OpError> {
    let count = from.iter().product::<usize>();
    let x = c.input(
        "x",
        from,
        InputFill::Values((0..count).map(|i| i as f64).collect()),
    )?;
    let body = vec![cast(c.dtype, I0)];
    (c.graph).map(map(to, vec![axes.to_vec()], body, &[0]), &[x])
}

/// Every dtype except `Bool`, whose two values cannot distinguish positions.
fn reading(
    name: &'static str,
    from: &'static [usize],
    to: &'static [usize],
    axes: Vec<AxisMap>,
    expected: &'static [f64],
) -> OpCase {
    OpCase::new(name, move |c| {
        let y = reads(c, from, to, &axes)?;
        c.output_expect(y, expected)
    })
    .only(DType::NUMBERS)
}

fn index_cases() -> Vec<OpCase> {
    // Long: this function is a table of test cases, one per row.
    vec![
        reading(
            "transpose_2x3",
            &[2, 3],
            &[3, 2],
            vec![AxisMap::axis(1), AxisMap::axis(0)],
            &[0.0, 3.0, 1.0, 4.0, 2.0, 5.0],
        ),
        reading(
            "slice_with_step",
            &[7],
            &[3],
            vec![axis(0, 1, 2, 0)],
            &[1.0, 3.0, 5.0],
        ),
        reading(
            "leading_columns",
            &[2, 3],
            &[2, 2],
            straight(2),
            &[0.0, 1.0, 3.0, 4.0],
        ),
        reading(
            "reverse",
            &[4],
            &[4],
            vec![axis(0, 3, -1, 0)],
            &[3.0, 2.0, 1.0, 0.0],
        ),
        reading(
            "nearest_2x",
            &[1, 3],
            &[2, 6],
            vec![axis(0, 0, 1, 1), axis(1, 0, 1, 1)],
            &[0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 0.0, 0.0, 1.0, 1.0, 2.0, 2.0],
        ),
        reading(
            "nearest_2x_odd_result",
            &[2],
            &[3],
            vec![axis(0, 0, 1, 1)],
            &[0.0, 0.0, 1.0],
        ),
        reading(
            "one_column",
            &[2, 3],
            &[2],
            vec![AxisMap::axis(0), AxisMap::constant(2)],
            &[2.0, 5.0],
        ),
        reading(
            "diagonal",
            &[3, 3],
            &[3],
            vec![AxisMap::axis(0), AxisMap::axis(0)],
            &[0.0, 4.0, 8.0],
        ),
        reading(
            "broadcast_to_new_axes",
            &[2],
            &[2, 2],
            vec![AxisMap::axis(1)],
            &[0.0, 1.0, 0.0, 1.0],
        ),
        reading("rank_0_to_2", &[], &[1, 3], vec![], &[0.0, 0.0, 0.0]),
        reading("rank_0", &[], &[], vec![], &[0.0]),
        reading(
            "empty",
            &[3, 0],
            &[0],
            vec![AxisMap::constant(1), AxisMap::axis(0)],
            &[],
        ),
        reading(
            "empty_result_of_nothing",
            &[0],
            &[0, 4],
            vec![AxisMap::constant(9)],
            &[],
        ),
    ]
}

fn body_cases() -> Vec<OpCase> {
    // Long: this function is a table of test cases, one per row.
    vec![
        OpCase::new("gate_17x33", |c| {
            let a = c.input("a", [17, 33], InputFill::Normal)?;
            let b = c.input("b", [33], InputFill::Normal)?;
            let body = vec![unary(UnaryFn::Silu, I0), binary(BinaryFn::Mul, step(0), I1)];
            let inputs = vec![straight(2), vec![AxisMap::axis(1)]];
            let y = (c.graph).map(map([17, 33], inputs, body, &[1]), &[a, b])?;
            c.output(y)
        })
        .only(DType::FLOATS),
        OpCase::new("two_results_and_mixed_dtypes", |c| {
            let x = c.input("x", [5, 3], InputFill::Special)?;
            let zero = MapStep::new(ScalarOp::Const(c.dtype, FloatAttr(0.0)), []);
            let body = vec![
                zero,
                MapStep::new(ScalarOp::Compare(CompareFn::Lt), [I0, step(0)]),
                MapStep::new(ScalarOp::Where, [step(1), step(0), I0]),
                cast(DType::I32, step(2)),
            ];
            let y = (c.graph).map(map([5, 3], vec![straight(2)], body, &[3, 1]), &[x])?;
            c.output(y)?;
            c.output(y.port(1))
        })
        .only(DType::NUMBERS),
        // More elements than executors process at once; the constant follows a step that is not
        // read again.
        OpCase::new("late_constant", |c| {
            let x = c.input("x", [3, 1001], InputFill::Uniform(1.0, 5.0))?;
            let body = vec![
                binary(BinaryFn::Add, I0, I0),
                binary(BinaryFn::Mul, step(0), I0),
                MapStep::new(ScalarOp::Const(c.dtype, FloatAttr(3.0)), []),
                binary(BinaryFn::Add, step(1), step(2)),
            ];
            let y = (c.graph).map(map([3, 1001], vec![straight(2)], body, &[3]), &[x])?;
            c.output(y)
        })
        .only(DType::NUMBERS),
        OpCase::new("same_step_twice", |c| {
            let x = c.input("x", [4], InputFill::Special)?;
            let body = vec![cast(c.dtype, I0)];
            let y = (c.graph).map(map([4], vec![straight(1)], body, &[0, 0]), &[x])?;
            c.output(y)?;
            c.output(y.port(1))
        }),
        // 2048 + 1 ties to 2048 in F16, so the difference is 0: the sum is rounded before it is
        // used.
        OpCase::new("each_step_rounds", |c| {
            let x = c.input("x", [1], InputFill::Values(vec![2048.0]))?;
            let one = MapStep::new(ScalarOp::Const(DType::F16, FloatAttr(1.0)), []);
            let body = vec![
                one,
                binary(BinaryFn::Add, I0, step(0)),
                binary(BinaryFn::Sub, step(1), I0),
            ];
            let y = (c.graph).map(map([1], vec![straight(1)], body, &[2]), &[x])?;
            c.output_expect(y, &[0.0])
        })
        .only(&[DType::F16]),
        OpCase::new("integers_stay_integers", |c| {
            let x = c.input("x", [2], InputFill::Values(vec![16_777_217.0, -7.0]))?;
            let zero = MapStep::new(ScalarOp::Const(c.dtype, FloatAttr(0.0)), []);
            let body = vec![
                zero,
                binary(BinaryFn::Add, I0, step(0)),
                binary(BinaryFn::Div, step(1), step(0)),
            ];
            let y = (c.graph).map(map([2], vec![straight(1)], body, &[2]), &[x])?;
            c.output_expect(y, &[16_777_217.0, -7.0])
        })
        .only(&[DType::I32, DType::I64]),
        OpCase::new("nan_through_clamp_and_relu", |c| {
            let x = c.input("x", [3], InputFill::Values(vec![f64::NAN, -1.0, 9.0]))?;
            let (lo, hi) = (FloatAttr(-0.5), FloatAttr(2.0));
            let body = vec![
                MapStep::new(ScalarOp::Clamp { lo, hi }, [I0]),
                unary(UnaryFn::Relu, step(0)),
            ];
            let y = (c.graph).map(map([3], vec![straight(1)], body, &[1]), &[x])?;
            c.output_expect(y, &[f64::NAN, 0.0, 2.0])
        })
        .only(DType::FLOATS),
        OpCase::new("fma_with_broadcast", |c| {
            let x = c.input("x", [2, 5], InputFill::Normal)?;
            let a = c.input("a", [2, 1], InputFill::Normal)?;
            let body = vec![MapStep::new(ScalarOp::Fma, [I0, I1, I0])];
            let inputs = vec![straight(2), vec![AxisMap::axis(0), AxisMap::constant(0)]];
            let y = (c.graph).map(map([2, 5], inputs, body, &[0]), &[x, a])?;
            c.output(y)
        })
        .only(DType::NUMBERS),
        OpCase::new("symbolic_rows", |c| {
            let s = c.sym("s", 3, 8);
            let more = s.checked_add(&Dim::Known(2));
            let more = more.expect("invariant: a small sum does not overflow");
            let x = c.input("x", [s.clone(), Dim::Known(4)], InputFill::Special)?;
            let row = c.input("row", [more], InputFill::Special)?;
            let body = vec![
                cast(DType::F32, I0),
                cast(DType::F32, I1),
                binary(BinaryFn::Max, step(0), step(1)),
            ];
            let inputs = vec![straight(2), vec![axis(0, 2, 1, 0)]];
            let y = (c.graph).map(map([s, Dim::Known(4)], inputs, body, &[2]), &[x, row])?;
            c.output(y)
        }),
        OpCase::new("no_operands", |c| {
            let body = vec![MapStep::new(ScalarOp::Const(c.dtype, FloatAttr(1.0)), [])];
            let y = (c.graph).map(map([2, 2], vec![], body, &[0]), &[])?;
            c.output_expect(y, &[1.0; 4])
        }),
    ]
}

pub(super) fn cases() -> Vec<OpCase> {
    let mut all = index_cases();
    all.extend(body_cases());
    all
}

/// The map `relu` over one operand of 4 elements, with this axis map.
fn relu_of(g: &mut Graph, to: usize, axes: Vec<AxisMap>) -> Result<Value, OpError> {
    let x = g.input("x", Type::new(DType::F32, [4]))?;
    let body = vec![unary(UnaryFn::Relu, I0)];
    g.map(map([to], vec![axes], body, &[0]), &[x])
}

pub(super) fn rejects() -> Vec<RejectCase> {
    vec![
        reject("index_past_the_end", "not provably in range", |g| {
            relu_of(g, 4, vec![axis(0, 1, 1, 0)])
        }),
        reject("index_below_zero", "not provably in range", |g| {
            relu_of(g, 4, vec![axis(0, 2, -1, 0)])
        }),
        reject("negative_start", "not provably in range", |g| {
            relu_of(g, 4, vec![axis(0, -1, 1, 0)])
        }),
        reject("constant_outside", "not provably in range", |g| {
            relu_of(g, 4, vec![AxisMap::constant(4)])
        }),
        reject("step_that_overflows", "not provably in range", |g| {
            relu_of(g, 4, vec![axis(0, 3, i64::MIN, 0)])
        }),
        reject("upsampled_too_far", "not provably in range", |g| {
            relu_of(g, 9, vec![axis(0, 0, 1, 1)])
        }),
        reject("no_such_axis", "the result does not have", |g| {
            relu_of(g, 4, vec![AxisMap::axis(1)])
        }),
        reject("shift_too_large", "at most 63", |g| {
            relu_of(g, 4, vec![axis(0, 0, 1, 64)])
        }),
        reject("rank", "has 2 axes", |g| relu_of(g, 4, straight(2))),
        reject("other_symbol", "not provably in range", |g| {
            let x = g.input("x", Type::new(DType::F32, [Dim::sym("s")]))?;
            let body = vec![unary(UnaryFn::Relu, I0)];
            g.map(map([Dim::sym("t")], vec![straight(1)], body, &[0]), &[x])
        }),
        reject("arity", "expected 1 operands, got 0", |g| {
            let body = vec![unary(UnaryFn::Relu, I0)];
            g.map(map([4], vec![straight(1)], body, &[0]), &[])
        }),
        reject("later_step", "not an earlier step", |g| {
            let body = vec![unary(UnaryFn::Relu, step(0))];
            g.map(map([4], vec![], body, &[0]), &[])
        }),
        reject("missing_operand", "reads operand i0 of 0", |g| {
            let body = vec![unary(UnaryFn::Relu, I0)];
            g.map(map([4], vec![], body, &[0]), &[])
        }),
        reject("missing_result", "step s1 does not exist", |g| {
            let body = vec![MapStep::new(
                ScalarOp::Const(DType::F32, FloatAttr(0.0)),
                [],
            )];
            g.map(map([4], vec![], body, &[1]), &[])
        }),
        reject("no_results", "0 results; expected 1 to 255", |g| {
            g.map(map([4], vec![], vec![], &[]), &[])
        }),
        reject("step_of_mixed_dtypes", "step s0", |g| {
            let a = g.input("a", Type::new(DType::F32, [4]))?;
            let b = g.input("b", Type::new(DType::I32, [4]))?;
            let body = vec![binary(BinaryFn::Add, I0, I1)];
            g.map(
                map([4], vec![straight(1), straight(1)], body, &[0]),
                &[a, b],
            )
        }),
    ]
}
