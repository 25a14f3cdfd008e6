//! Tests of inputs, states, results and intermediate values above the binding limit, against the
//! CPU.

use tercet::accuracy::{Accuracy, furthest};
use tercet::scalar::UnaryFn;
use tercet::{
    Backend, Bindings, CompileOptions, DType, Dim, EvalError, Graph, OpError, RunError, Tensor,
    TensorType, Type, Value,
};
use tercet_cpu::CpuBackend;

use super::{BoxError, compiled, indices, on_gpus, wave};
use crate::SuiteTest;

/// A matrix of `ROWS` x `COLUMNS` F32 elements has 134 KiB. The rows do not start at multiples of
/// the binding alignment.
const ROWS: usize = 353;
const COLUMNS: usize = 97;

/// Compares the outputs and states of two runs with those of the CPU.
fn agrees(low: &dyn Backend, g: &Graph, inputs: &[(&str, Tensor)]) -> Result<(), BoxError> {
    let params: Vec<(&str, Tensor)> = Vec::new();
    let mut want = compiled(&CpuBackend::new(), g, &params)?;
    let mut got = compiled(low, g, &params)?;
    let inputs: Vec<(&str, &Tensor)> = inputs.iter().map(|(n, t)| (*n, t)).collect();
    for run in 0..2 {
        let (want_all, got_all) = (want.run(&inputs)?, got.run(&inputs)?);
        for (port, (got, want)) in g.outputs().iter().zip(got_all.iter().zip(&want_all)) {
            near(&format!("{} of run {run}", port.name), got, want);
        }
        for port in got.signature().states.clone() {
            let (got, want) = (got.read_state(&port.name)?, want.read_state(&port.name)?);
            near(&format!("{} after run {run}", port.name), &got, &want);
        }
    }
    Ok(())
}

fn near(what: &str, got: &Tensor, want: &Tensor) {
    assert_eq!(got.ty(), want.ty(), "{what}");
    if let Some(off) = furthest(Accuracy::Contraction, got, want) {
        assert!(off.units <= 1.0, "{what}: {off}");
    }
}

fn input(g: &mut Graph, name: &str, dtype: DType, sizes: &[usize]) -> Result<Value, OpError> {
    let dims: Vec<Dim> = sizes.iter().map(|n| (*n).into()).collect();
    g.input(name, Type::new(dtype, dims))
}

fn given(name: &'static str, dtype: DType, sizes: &[usize]) -> (&'static str, Tensor) {
    (name, wave(TensorType::new(dtype, sizes), 0.37))
}

fn maps_give_what_they_give_whole() {
    on_gpus(|_, low| {
        for dtype in [DType::F32, DType::F16] {
            let mut g = Graph::new();
            let sizes = [2 * ROWS, COLUMNS];
            let x = input(&mut g, "x", dtype, &sizes)?;
            let b = input(&mut g, "b", dtype, &[COLUMNS])?;
            let c = input(&mut g, "c", dtype, &[2 * ROWS, 1])?;
            let y = g.mul(x, b)?;
            let y = g.unary(UnaryFn::Tanh, y)?;
            let outer = g.plus(b, c)?;
            // The operands are exact, because a rounding difference could change the comparison.
            let is_more = g.ge(x, outer)?;
            let either = g.where_(is_more, y, x)?;
            let narrow = g.cast(y, DType::F16)?;
            let flat = g.reshape(either, [sizes[0] * sizes[1]])?;
            let part = g.slice_axis(either, 0, 5, -3, 3)?;
            for (name, value) in [
                ("y", y),
                ("outer", outer),
                ("is_more", is_more),
                ("narrow", narrow),
                ("flat", flat),
                ("part", part),
                ("again", y),
                ("x", x),
            ] {
                g.output(name, value)?;
            }
            let inputs = [
                given("x", dtype, &sizes),
                given("b", dtype, &[COLUMNS]),
                given("c", dtype, &[2 * ROWS, 1]),
            ];
            agrees(low, &g, &inputs)?;
        }
        Ok(())
    });
}

fn reductions_join_those_of_parts() {
    on_gpus(|_, low| {
        for axes in [&[0][..], &[1], &[2], &[0, 1], &[1, 2], &[0, 1, 2]] {
            let mut g = Graph::new();
            let x = input(&mut g, "x", DType::F32, &[ROWS, 8, 16])?;
            // All terms have the same sign, because cancellation would depend on the order of the
            // sum.
            let y = g.unary(UnaryFn::Sin, x)?;
            let y = g.unary(UnaryFn::Abs, y)?;
            let sum = g.reduce_sum(y, axes, false)?;
            g.output("sum", sum)?;
            let mean = g.reduce_mean(y, axes, true)?;
            g.output("mean", mean)?;
            let max = g.reduce_max(x, axes, false)?;
            g.output("max", max)?;
            agrees(low, &g, &[given("x", DType::F32, &[ROWS, 8, 16])])?;
        }
        Ok(())
    });
}

/// Tests reductions of a value whose elements of one index of the first axis exceed the limit. A
/// reduction that must bind all of these elements may be rejected; all others must be correct.
fn reductions_of_large_indices_are_right_or_refused() {
    on_gpus(|_, low| {
        let sizes = [2, ROWS, 128];
        let mut right = 0;
        for axes in [&[0][..], &[1], &[2], &[0, 1], &[1, 2], &[0, 1, 2]] {
            let mut g = Graph::new();
            let x = input(&mut g, "x", DType::F32, &sizes)?;
            let x = g.unary(UnaryFn::Abs, x)?;
            let sum = g.reduce_sum(x, axes, false)?;
            g.output("sum", sum)?;
            match low.compile(&g, &CompileOptions::new()) {
                Err(tercet::CompileError::TooLarge { .. }) => continue,
                _ => agrees(low, &g, &[given("x", DType::F32, &sizes)])?,
            }
            right += 1;
        }
        assert!(right > 0, "all of them are rejected");
        Ok(())
    });
}

fn products_go_along_rows_and_sums() {
    on_gpus(|_, low| {
        for dtype in [DType::F32, DType::F16] {
            let mut g = Graph::new();
            let tall = [2 * ROWS, 64];
            let x = input(&mut g, "x", dtype, &tall)?;
            let w = input(&mut g, "w", dtype, &[64, 80])?;
            let b = input(&mut g, "b", dtype, &[80])?;
            let few = input(&mut g, "few", dtype, &[3, 2 * ROWS])?;
            // The left operand of this matmul exceeds the limit; in the second matmul below, the
            // right operand does.
            let y = g.linear(x, w, Some(b), Some(UnaryFn::Relu))?;
            let top = g.reduce_max(y, &[1], false)?;
            // All terms have the same sign, because the cancellation of many terms would depend on
            // their order.
            let (few, sizes) = (g.unary(UnaryFn::Abs, few)?, g.unary(UnaryFn::Abs, x)?);
            let sum = g.matmul(few, sizes)?;
            let t = g.transpose(x, &[1, 0])?;
            let wide = g.transpose(w, &[1, 0])?;
            let columns = g.matmul(wide, t)?;
            for (name, value) in [("y", y), ("top", top), ("sum", sum), ("columns", columns)] {
                g.output(name, value)?;
            }
            let inputs = [
                given("x", dtype, &tall),
                given("w", dtype, &[64, 80]),
                given("b", dtype, &[80]),
                given("few", dtype, &[3, 2 * ROWS]),
            ];
            agrees(low, &g, &inputs)?;
        }
        Ok(())
    });
}

fn rows_are_normalized_and_gathered() {
    on_gpus(|_, low| {
        let mut g = Graph::new();
        let sizes = [ROWS, COLUMNS];
        let x = input(&mut g, "x", DType::F32, &sizes)?;
        let gamma = input(&mut g, "gamma", DType::F32, &[COLUMNS])?;
        let ids = g.input("ids", Type::new(DType::I32, [Dim::sym("s")]))?;
        let many = input(&mut g, "many", DType::I32, &[2 * ROWS])?;
        let y = g.softmax(x, 1)?;
        let y = g.rms_norm(y, gamma, None, 1e-5)?;
        let some = g.gather(y, ids, 0)?;
        let all = g.gather(y, many, 0)?;
        let both = g.concat(&[x, y, all], 0)?;
        let turned = g.transpose(y, &[1, 0])?;
        for (name, value) in [("some", some), ("both", both), ("turned", turned)] {
            g.output(name, value)?;
        }
        let rows = ROWS as i32;
        let every: Vec<i32> = (0..2 * rows).map(|i| (i * 7) % (2 * rows) - rows).collect();
        let inputs = |ids: &[i32]| {
            [
                given("x", DType::F32, &sizes),
                given("gamma", DType::F32, &[COLUMNS]),
                ("ids", indices(ids)),
                ("many", indices(&every)),
            ]
        };
        agrees(low, &g, &inputs(&[0, -1, 168, 169, rows - 1]))?;
        let mut exe = compiled(low, &g, &[])?;
        let wrong = inputs(&[3, rows]);
        let wrong: Vec<(&str, &Tensor)> = wrong.iter().map(|(n, t)| (*n, t)).collect();
        let Err(RunError::Node { node, source, .. }) = exe.run(&wrong) else {
            panic!("an index out of range was accepted");
        };
        let index = rows.into();
        assert_eq!(node, some.node);
        assert_eq!(source, EvalError::Index { index, len: ROWS });
        Ok(())
    });
}

fn states_are_kept_in_parts() {
    on_gpus(|_, low| {
        let mut g = Graph::new();
        let sizes = [ROWS, COLUMNS];
        let ty = Type::new(DType::F32, sizes);
        let x = input(&mut g, "x", DType::F32, &sizes)?;
        let (s, t) = (g.state("s", ty.clone())?, g.state("t", ty)?);
        // Each state receives the old value of the other one.
        let next = g.plus(s, x)?;
        g.assign(s, t)?;
        g.assign(t, next)?;
        g.output("before", s)?;
        let inputs = [given("x", DType::F32, &sizes)];
        agrees(low, &g, &inputs)?;
        let mut exe = compiled(low, &g, &[])?;
        let start = wave(TensorType::new(DType::F32, &sizes), 0.7);
        exe.write_state("s", &start)?;
        let got = exe.run(&[("x", &inputs[0].1)])?;
        near("what was written", &got[0], &start);
        let clone = exe.try_clone()?;
        near(
            "the clone's",
            &clone.read_state("t")?,
            &exe.read_state("t")?,
        );
        let rows = exe.read_output_rows("before", 160..190)?;
        let from = 160 * COLUMNS;
        assert_eq!(
            rows.to_f64s(),
            start.to_f64s()[from..from + 30 * COLUMNS].to_vec()
        );
        Ok(())
    });
}

fn what_follows_from_parameters_is_prepared_in_parts() {
    on_gpus(|_, low| {
        let mut g = Graph::new();
        let w = g.param("w", Type::new(DType::F16, [ROWS, 2 * COLUMNS]))?;
        let big = wave(TensorType::new(DType::F16, &[ROWS, 2 * COLUMNS]), 0.2);
        let constant = g.constant(wave(TensorType::new(DType::F16, &[ROWS, 2 * COLUMNS]), 0.3))?;
        let w = g.mul(w, constant)?;
        let x = input(&mut g, "x", DType::F16, &[2, 2 * COLUMNS])?;
        let t = g.transpose(w, &[1, 0])?;
        let y = g.matmul(x, t)?;
        g.output("y", y)?;
        let options = CompileOptions {
            bounds: Bindings::new(),
            ..CompileOptions::new()
        };
        let mut results = Vec::new();
        let cpu = CpuBackend::new();
        let x = wave(TensorType::new(DType::F16, &[2, 2 * COLUMNS]), 0.9);
        for backend in [&cpu as &dyn Backend, low] {
            let mut exe = backend.compile(&g, &options)?;
            exe.set_param("w", big.clone())?;
            results.push(exe.run(&[("x", &x)])?.remove(0));
        }
        near("y", &results[1], &results[0]);
        Ok(())
    });
}

/// The tests of values other than parameters.
pub(super) fn tests() -> Vec<SuiteTest> {
    let all: [(&'static str, fn()); 7] = [
        (
            "split/maps_give_what_they_give_whole",
            maps_give_what_they_give_whole,
        ),
        (
            "split/reductions_join_those_of_parts",
            reductions_join_those_of_parts,
        ),
        (
            "split/reductions_of_large_indices_are_right_or_refused",
            reductions_of_large_indices_are_right_or_refused,
        ),
        (
            "split/products_go_along_rows_and_sums",
            products_go_along_rows_and_sums,
        ),
        (
            "split/rows_are_normalized_and_gathered",
            rows_are_normalized_and_gathered,
        ),
        ("split/states_are_kept_in_parts", states_are_kept_in_parts),
        (
            "split/what_follows_from_parameters_is_prepared_in_parts",
            what_follows_from_parameters_is_prepared_in_parts,
        ),
    ];
    let tests = all.into_iter();
    tests
        .map(|(name, test)| SuiteTest::asserting(name, test))
        .collect()
}
