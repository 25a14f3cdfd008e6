//! Tests of graph inspection: the value of every node, and the first value that is not finite.

use crate::{SuiteTest, everywhere, for_each_executor};
use tercet::ops::PadMode;
use tercet::random::RngState;
use tercet::scalar::UnaryFn;
use tercet::{
    CompileOptions, DType, Device, Dim, Executable, Graph, NonFinite, RetainValues, RunError,
    SubGraph, Tensor, TensorType, Type, Value, node_values,
};

type BoxError = Box<dyn std::error::Error>;

fn f32s(shape: &[usize], values: &[f32]) -> Tensor {
    Tensor::from_slice(shape, values).expect("the list has the number of elements of its shape")
}

fn ty(shape: impl Into<tercet::Shape>) -> Type {
    Type::new(DType::F32, shape)
}

/// A graph that passes and executors would optimize: a matmul with bias and activation, equal
/// nodes, constants, a norm. The graph also has a node with two results, random numbers, a state
/// and a branch.
fn rich() -> Result<Graph, BoxError> {
    let mut g = Graph::new();
    let s = Dim::sym("s");
    let x = g.input("x", ty([s.clone(), 8.into()]))?;
    let w = g.param("w", ty([8, 8]))?;
    let gain = g.param("gain", ty([8]))?;
    let state = g.state("sum", ty([8]))?;
    let product = g.matmul(x, w)?;
    let biased = g.plus(product, gain)?;
    let gated = g.unary(UnaryFn::Gelu, biased)?;
    let residual = g.plus(gated, x)?;
    let norm = g.rms_norm(residual, gain, None, 1e-5)?;
    let twin = g.plus(gated, x)?;
    let one = g.scalar(DType::F32, 1.0)?;
    let two = g.plus(one, one)?;
    let scaled = g.mul(twin, two)?;
    let noise = g.rng_uniform([8], DType::F32, 0.0, 1.0, 3)?;
    let noisy = g.plus(scaled, noise)?;
    let top = g.top_k(noisy, 3, 1, true)?;
    let row = g.reduce_sum(norm, &[0], false)?;
    let next = g.plus(state, row)?;
    g.assign(state, next)?;
    let halves = g.cast(norm, DType::F16)?;
    let first = g.reduce_max(next, &[0], false)?;
    let zero = g.scalar(DType::F32, 0.0)?;
    let positive = g.gt(first, zero)?;
    let branch = |f: UnaryFn| -> Result<SubGraph, BoxError> {
        let mut g = Graph::new();
        let x = g.input("x", ty([8]))?;
        let y = g.unary(f, x)?;
        g.output("y", y)?;
        Ok(SubGraph::new(g))
    };
    let chosen = g.if_else(
        positive,
        &[row],
        branch(UnaryFn::Exp)?,
        branch(UnaryFn::Neg)?,
    )?;
    g.output("%4", halves)?;
    g.output("chosen", chosen)?;
    g.output("top", top.port(1))?;
    Ok(g)
}

fn tensors() -> Vec<(&'static str, Tensor)> {
    let wave = |n: usize, by: f32| (0..n).map(|i| (i as f32 * by).sin()).collect::<Vec<_>>();
    vec![
        ("x", f32s(&[5, 8], &wave(40, 0.7))),
        ("w", f32s(&[8, 8], &wave(64, 1.3))),
        ("gain", f32s(&[8], &wave(8, 0.2))),
        ("sum", f32s(&[8], &wave(8, 2.0))),
    ]
}

fn every_value_is_that_of_the_node() {
    let g = rich().expect("the graph is well typed");
    let own = tensors();
    let named: Vec<(&str, &Tensor)> = own.iter().map(|(n, t)| (*n, t)).collect();
    let reference = Device::reference();
    let want = node_values(&g, &named, &reference).expect("all is there");
    let want: Vec<(Value, Tensor)> = want.map(|v| v.expect("it runs")).collect();
    let computing = g.nodes().filter(|(_, n)| !n.op.is_leaf());
    let results: usize = computing.map(|(_, n)| n.outputs.len()).sum();
    assert_eq!(want.len(), results);
    for_each_executor(|device| {
        let all = node_values(&g, &named, device).expect("all is there");
        let all: Vec<(Value, Tensor)> = all.map(|v| v.expect("it runs")).collect();
        assert_eq!(all.len(), want.len());
        for ((value, got), (same, want)) in all.iter().zip(&want) {
            assert_eq!((value, got.ty()), (same, want.ty()), "{}", device.name());
            let close = got.to_f64s().into_iter().zip(want.to_f64s());
            for (got, want) in close {
                let off = (got - want).abs();
                assert!(
                    off <= 2e-3 * want.abs().max(1.0),
                    "{}: {value}",
                    device.name()
                );
            }
        }
        // With little memory, the values are computed in one run per value, with the same results.
        let few = node_values(&g, &named, device).expect("all is there");
        let few = few.with_memory(1).map(|v| v.expect("it runs"));
        for ((value, got), (same, want)) in few.zip(&all) {
            assert_eq!((&value, got.ty()), (same, want.ty()));
            let close = got.to_f64s().into_iter().zip(want.to_f64s());
            for (got, want) in close {
                assert!((got - want).abs() <= 1e-3 * want.abs().max(1.0), "{value}");
            }
        }
    });
}

fn what_is_kept_is_an_output_from_run_to_run() {
    let g = rich().expect("the graph is well typed");
    everywhere(|device| {
        let options = CompileOptions::new()
            .bound("s", 6)
            .retain(RetainValues::All);
        let (_, kept) = options.retain.add_outputs(&g)?;
        let mut exe = device.compile(&g, &options)?;
        let mut plain = device.compile(&g, &CompileOptions::new().bound("s", 6))?;
        let own = tensors();
        for exe in [&mut exe, &mut plain] {
            for (name, tensor) in &own[1..3] {
                exe.set_param(name, tensor.clone())?;
            }
        }
        let outputs = &exe.signature().outputs;
        assert_eq!(outputs[..3], plain.signature().outputs[..]);
        for _ in 0..2 {
            let all = exe.run(&own[..1].iter().map(|(n, t)| (*n, t)).collect::<Vec<_>>())?;
            let few = plain.run(&own[..1].iter().map(|(n, t)| (*n, t)).collect::<Vec<_>>())?;
            for (all, few) in all.iter().zip(&few) {
                for (a, b) in all.to_f64s().into_iter().zip(few.to_f64s()) {
                    assert!((a - b).abs() <= 2e-3 * b.abs().max(1.0), "{a} {b}");
                }
            }
            // Named results keep their names.
            let chosen = kept.iter().filter(|k| !k.output.starts_with('%'));
            assert_eq!(
                chosen.map(|k| &*k.output).collect::<Vec<_>>(),
                ["top", "chosen"]
            );
        }
        Ok(())
    });
}

fn not_finite(e: RunError) -> NonFinite {
    match e {
        RunError::NonFinite(found) => *found,
        other => panic!("{other:?}"),
    }
}

fn the_first_node_is_named_with_its_operands() {
    let mut g = Graph::new();
    let build = |g: &mut Graph| -> Result<[Value; 3], BoxError> {
        let s = Dim::sym("s");
        let x = g.input("x", ty([s, 3.into()]))?;
        let w = g.param("w", ty([3]))?;
        let scaled = g.mul(x, w)?;
        let e = g.exp(scaled)?;
        let l = g.ln(e)?;
        let bad = g.sub(e, e)?;
        let later = g.sqrt(x)?;
        for (name, value) in [("l", l), ("bad", bad), ("later", later)] {
            g.output(name, value)?;
        }
        Ok([x, scaled, e])
    };
    let [_, scaled, e] = build(&mut g).expect("the graph is well typed");
    everywhere(|device| {
        let checked = device.with_finite_check();
        let mut exe = checked.compile(&g, &CompileOptions::new().bound("s", 4))?;
        assert_eq!(exe.signature().outputs.len(), 3);
        exe.set_param("w", f32s(&[3], &[1.0, 2.0, 3.0]))?;
        let fine = f32s(&[2, 3], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        let results = exe.run(&[("x", &fine)])?;
        assert_eq!(results.len(), 3);
        let large = f32s(&[2, 3], &[0.0, 1.0, 2.0, 3.0, 50.0, 70.0]);
        let found = not_finite(exe.run(&[("x", &large)]).expect_err("it overflows"));
        assert_eq!(found.result.value, e);
        let seen = found.kind.expect("it was run again");
        assert_eq!((seen.element, seen.count), (4, 2));
        assert_eq!(seen.number.0, f64::INFINITY);
        let operand = &seen.operands[0];
        assert_eq!((operand.value, seen.operands.len()), (scaled, 1));
        let finite = operand.finite.as_ref().map(|(a, b)| (a.0, b.0));
        assert_eq!(finite, Some((0.0, 210.0)));
        // An input without elements has no value that is not finite, so the run succeeds.
        exe.run(&[("x", &f32s(&[0, 3], &[]))])?;
        assert_eq!(exe.run(&[("x", &fine)])?, results);
        // The requested outputs are still returned.
        let one = exe.run_outputs(&[("x", &fine)], &["bad"])?;
        assert_eq!(one, results[1..2]);
        Ok(())
    });
}

fn infinities_that_are_meant_do_no_harm() {
    let mut g = Graph::new();
    let build = |g: &mut Graph| -> Result<Value, BoxError> {
        let x = g.input("x", ty([2, 4]))?;
        let mask = g.input("mask", ty([4]))?;
        let inf = f32::INFINITY;
        let hidden = g.constant(f32s(&[4], &[0.0, -inf, 0.0, -inf]))?;
        let masked = g.plus(x, hidden)?;
        let masked = g.plus(masked, mask)?;
        let weights = g.softmax(masked, 1)?;
        let padded = g.pad(x, &[0, 1], &[0, 1], PadMode::Constant, f64::NEG_INFINITY)?;
        let most = g.reduce_max(padded, &[1], false)?;
        let clamped = g.clamp(x, f64::NEG_INFINITY, f64::INFINITY)?;
        let halves = g.cast(clamped, DType::F16)?;
        let square = g.mul(halves, halves)?;
        for (name, value) in [("w", weights), ("most", most), ("square", square)] {
            g.output(name, value)?;
        }
        Ok(square)
    };
    let square = build(&mut g).expect("the graph is well typed");
    everywhere(|device| {
        let checked = device.with_finite_check();
        let mut exe = checked.compile(&g, &CompileOptions::new())?;
        let mask = f32s(&[4], &[0.0, 0.0, f32::NEG_INFINITY, 0.0]);
        let x = f32s(&[2, 4], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 255.0]);
        exe.run(&[("x", &x), ("mask", &mask)])?;
        // The square of 300 exceeds the F16 maximum of 65504.
        let x = f32s(&[2, 4], &[1.0, 2.0, 300.0, 4.0, 5.0, 6.0, 7.0, 255.0]);
        let found = exe.run(&[("x", &x), ("mask", &mask)]);
        let found = not_finite(found.expect_err("it overflows"));
        assert_eq!(found.result.value, square);
        assert_eq!(found.kind.map(|f| (f.element, f.count)), Some((2, 1)));
        // NaN is not a valid mask value.
        let mask = f32s(&[4], &[0.0, 0.0, 0.0, f32::NAN]);
        let found = exe.run(&[("x", &x), ("mask", &mask)]);
        let found = not_finite(found.expect_err("it holds NaN"));
        assert_eq!(found.result.name.as_deref(), Some("mask"));
        assert!(
            found
                .to_string()
                .contains("(input `mask`) is NaN at element 3")
        );
        Ok(())
    });
}

fn a_run_that_is_not_finite_leaves_states_and_counter() {
    let mut g = Graph::new();
    let build = |g: &mut Graph| -> Result<(), BoxError> {
        let x = g.input("x", ty([2]))?;
        let sum = g.state("sum", ty([2]))?;
        let next = g.plus(sum, x)?;
        g.assign(sum, next)?;
        let parts = [next, x, sum, next, x, sum, next];
        let all = g.concat(&parts, 0)?;
        let y = g.exp(all)?;
        let noise = g.rng_normal([2], DType::F32, 0.0, 1.0, 1)?;
        g.output("y", y)?;
        g.output("noise", noise)?;
        Ok(())
    };
    build(&mut g).expect("the graph is well typed");
    everywhere(|device| {
        let mut exe = device
            .with_finite_check()
            .compile(&g, &CompileOptions::new())?;
        let x = f32s(&[2], &[40.0, 1.0]);
        exe.set_random(RngState {
            seed: Some(5),
            counter: 9,
        });
        exe.run(&[("x", &x)])?;
        exe.run(&[("x", &x)])?;
        let before = (exe.read_state("sum")?, exe.random());
        assert_eq!(
            (before.0.to_f64s(), before.1.counter),
            (vec![80.0, 2.0], 11)
        );
        let found = not_finite(exe.run(&[("x", &x)]).expect_err("exp(120) overflows"));
        let found = found.kind.expect("it was run again");
        assert_eq!((found.element, found.count), (0, 3));
        assert_eq!((exe.read_state("sum")?, exe.random()), before);
        exe.run(&[("x", &f32s(&[2], &[1.0, 1.0]))])?;
        exe.reset();
        exe.run(&[("x", &x)])?;
        // An input of the wrong type is still reported as a type error.
        let wrong = Tensor::zeros(TensorType::new(DType::F32, &[3]))?;
        assert!(matches!(
            exe.run(&[("x", &wrong)]),
            Err(RunError::Type { .. })
        ));
        Ok(())
    });
}

fn an_index_out_of_one_element_stays_one() {
    let mut g = Graph::new();
    let build = |g: &mut Graph| -> Result<(), BoxError> {
        let table = g.input("table", ty([1, 2]))?;
        let at = g.input("at", Type::new(DType::I32, [1]))?;
        let y = g.gather(table, at, 0)?;
        g.output("y", y)?;
        Ok(())
    };
    build(&mut g).expect("the graph is well typed");
    everywhere(|device| {
        let mut exe = device
            .with_finite_check()
            .compile(&g, &CompileOptions::new())?;
        let table = f32s(&[1, 2], &[1.0, 2.0]);
        let exe: &mut dyn Executable = &mut *exe;
        for at in [1, 2, 50] {
            let at = Tensor::from_slice(&[1], &[at])?;
            let e = exe.run(&[("table", &table), ("at", &at)]);
            assert!(
                matches!(e, Err(RunError::Node { op: "gather", .. })),
                "{e:?}"
            );
        }
        Ok(())
    });
}

/// The tests of this suite.
pub(super) fn tests() -> Vec<SuiteTest> {
    vec![
        SuiteTest::asserting(
            "inside/every_value_is_that_of_the_node",
            every_value_is_that_of_the_node,
        ),
        SuiteTest::asserting(
            "inside/what_is_kept_is_an_output_from_run_to_run",
            what_is_kept_is_an_output_from_run_to_run,
        ),
        SuiteTest::asserting(
            "inside/the_first_node_is_named_with_its_operands",
            the_first_node_is_named_with_its_operands,
        ),
        SuiteTest::asserting(
            "inside/infinities_that_are_meant_do_no_harm",
            infinities_that_are_meant_do_no_harm,
        ),
        SuiteTest::asserting(
            "inside/a_run_that_is_not_finite_leaves_states_and_counter",
            a_run_that_is_not_finite_leaves_states_and_counter,
        ),
        SuiteTest::asserting(
            "inside/an_index_out_of_one_element_stays_one",
            an_index_out_of_one_element_stays_one,
        ),
    ]
}
