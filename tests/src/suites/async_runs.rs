//! Tests of asynchronous runs and reads on every executor. Asynchronous runs must give the results
//! of blocking ones, including with control flow, states and dropped runs.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use super::control::{on_each, sum_of_elements, tail};
use crate::SuiteTest;
use tercet::{CompileOptions, Executable, OutputSelection, RunError, Tensor};

type BoxError = Box<dyn std::error::Error>;

/// A waker that unparks the thread and sets a flag.
struct UnparkWaker(std::thread::Thread, AtomicBool);

impl Wake for UnparkWaker {
    fn wake(self: Arc<Self>) {
        self.1.store(true, Ordering::Release);
        self.0.unpark();
    }
}

/// Runs a future to completion and polls it only after a wake-up.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let told = Arc::new(UnparkWaker(std::thread::current(), AtomicBool::new(false)));
    let waker = Waker::from(Arc::clone(&told));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        while !told.1.swap(false, Ordering::AcqRel) {
            std::thread::park();
        }
    }
}

fn table() -> Result<Tensor, BoxError> {
    Ok(Tensor::from_slice(&[3], &[1f32, 2.0, 4.0])?)
}

fn numbers(run: Result<Vec<Tensor>, RunError>) -> Result<Vec<Vec<f64>>, RunError> {
    run.map(|all| all.iter().map(Tensor::to_f64s).collect())
}

fn awaited(exe: &mut dyn Executable, inputs: &[(&str, &Tensor)]) -> Result<Vec<Tensor>, RunError> {
    let mut outputs = Vec::new();
    block_on(exe.run_async(inputs, OutputSelection::All, &mut outputs))?;
    Ok(outputs)
}

/// Loops of several lengths, one that fails in the middle, and one that exceeds its iteration
/// limit.
fn loops_with_a_state() -> Result<(), BoxError> {
    on_each(&sum_of_elements()?, &CompileOptions::new(), |exe| {
        let (table, mut other) = (table()?, exe.try_clone()?);
        for n in [2, 5, 0, 3, 9, 1] {
            let n = Tensor::scalar(n as i64);
            let inputs = [("n", &n), ("table", &table)];
            let want = numbers(other.run(&inputs));
            assert_eq!(numbers(awaited(exe, &inputs)), want);
            let state = block_on(exe.fetch_state("s")?)?;
            assert_eq!(state.to_f64s(), other.read_state("s")?.to_f64s());
        }
        assert_eq!(exe.read_state("s")?.to_f64s(), [11.0]);
        assert_eq!(block_on(exe.fetch_state("s")?)?.to_f64s(), [11.0]);
        assert!(exe.fetch_state("t").is_err());
        Ok(())
    })
}

/// A run that was polled once and dropped is completed by the next operation, blocking or
/// asynchronous.
fn dropped_on_their_way() -> Result<(), BoxError> {
    on_each(&sum_of_elements()?, &CompileOptions::new(), |exe| {
        let table = table()?;
        let two = Tensor::scalar(2i64);
        let inputs = [("n", &two), ("table", &table)];
        for (round, is_awaited) in [true, false, true].into_iter().enumerate() {
            {
                let mut outputs = Vec::new();
                let run = pin!(exe.run_async(&inputs, OutputSelection::All, &mut outputs));
                let _ = run.poll(&mut Context::from_waker(Waker::noop()));
            }
            let done = match is_awaited {
                true => awaited(exe, &inputs)?,
                false => exe.run(&inputs)?,
            };
            assert_eq!(done[1].to_f64s(), [6.0 * (round + 1) as f64]);
        }
        Ok(())
    })
}

/// Tests the separate operations submit, await and take. The test also reads rows of
/// device-resident outputs, and tests sizes that a branch rejects.
fn in_steps() -> Result<(), BoxError> {
    let options = CompileOptions::new().bound("s", 9);
    on_each(&tail()?, &options, |exe| {
        let mut outputs = Vec::new();
        for (len, is_long, want) in [(9, true, Some(5.0)), (2, true, None), (2, false, Some(0.0))] {
            let x = Tensor::from_slice(&[len], &vec![1f32; len])?;
            let is_long = Tensor::from_bools(&[], &[is_long])?;
            let inputs = [("x", &x), ("is_long", &is_long)];
            let submitted = exe.submit(&inputs, OutputSelection::Only(&["y"]));
            let done = submitted.and_then(|()| block_on(exe.finished()));
            let done = done.and_then(|()| exe.wait(&mut outputs));
            match want {
                Some(want) => assert_eq!(outputs[0].to_f64s(), [want]),
                None => assert!(
                    matches!(done, Err(RunError::Node { op: "if", .. })),
                    "{done:?}"
                ),
            }
        }
        block_on(exe.finished())?; // No run is in flight; that is not an error.
        Ok(())
    })?;
    let mut graph = tercet::Graph::new();
    let x = graph.input("x", tercet::Type::new(tercet::DType::F16, [5, 3]))?;
    let y = graph.relu(x)?;
    graph.output("y", y)?;
    on_each(&graph, &CompileOptions::new(), |exe| {
        assert!(exe.fetch_output_rows("y", 0..1).is_err(), "nothing was run");
        let values: Vec<f64> = (0..15u8).map(f64::from).collect();
        let ty = tercet::TensorType::new(tercet::DType::F16, &[5, 3]);
        let x = Tensor::from_f64s(ty, &values)?;
        exe.run(&[("x", &x)])?;
        for rows in [0..5, 1..2, 3..5, 2..2] {
            let got = block_on(exe.fetch_output_rows("y", rows.clone())?)?;
            assert_eq!(got.to_f64s(), exe.read_output_rows("y", rows)?.to_f64s());
        }
        assert!(exe.fetch_output_rows("y", 4..6).is_err());
        Ok(())
    })
}

/// The two outputs of the graph of [`walk`] in one run, and the sum of its state.
type ChainOutputs = (Vec<f64>, Vec<f64>, f64);

/// A graph with an input from the previous run, an input from the host, random numbers, and a
/// counter state.
fn walk() -> Result<tercet::Graph, tercet::OpError> {
    let mut graph = tercet::Graph::new();
    let len = tercet::Dim::sym("n");
    let of = |dtype| tercet::Type::new(dtype, [len.clone()]);
    let at = graph.input("at", of(tercet::DType::I64))?;
    let by = graph.input("by", of(tercet::DType::I64))?;
    let sum = graph.state("sum", tercet::Type::new(tercet::DType::F32, [3]))?;
    let table = graph.param("table", tercet::Type::new(tercet::DType::F32, [7]))?;
    let next = graph.plus(at, by)?;
    graph.output("next", next)?;
    let drawn = graph.rng_uniform([3], tercet::DType::F32, 0.0, 1.0, 5)?;
    let rows = graph.gather(table, at, 0)?;
    let row = graph.reduce(tercet_ir::ops::ReduceFn::Sum, rows, &[0], false)?;
    let drawn = graph.plus(drawn, row)?;
    let total = graph.plus(sum, drawn)?;
    graph.assign(sum, total)?;
    graph.output("drawn", drawn)?;
    Ok(graph)
}

/// The outputs of the last run, and the sum of its state.
fn given(exe: &dyn Executable, outputs: &[Tensor]) -> Result<ChainOutputs, RunError> {
    let sum = exe.read_state("sum")?.to_f64s().iter().sum();
    Ok((outputs[0].to_f64s(), outputs[1].to_f64s(), sum))
}

fn row(numbers: &[i64]) -> Result<Tensor, BoxError> {
    Ok(Tensor::from_slice(&[numbers.len()], numbers)?)
}

/// The start position of the random walk, and the input `by` of each step.
fn way() -> Result<(Tensor, Vec<Tensor>), BoxError> {
    let steps = [[1, 2], [1, 0], [1, 1], [0, 2], [-2, 0]];
    let steps: Result<_, BoxError> = steps.iter().map(|by| row(by)).collect();
    Ok((row(&[0, 1])?, steps?))
}

/// Calls `f` on each executor with the compiled random walk and the results of sequential runs. The
/// executable already has the parameter of the walk.
fn on_each_walk(
    f: impl Fn(&mut dyn Executable, &[ChainOutputs]) -> Result<(), BoxError>,
) -> Result<(), BoxError> {
    let (first, steps) = way()?;
    let options = CompileOptions::new().bound("n", 4);
    on_each(&walk()?, &options, |exe| {
        let table = Tensor::from_slice(&[7], &[1f32, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0])?;
        exe.set_param("table", table)?;
        let mut other = exe.try_clone()?;
        let (mut at, mut want) = (first.clone(), Vec::new());
        for by in &steps {
            let outputs = other.run(&[("at", &at), ("by", by)])?;
            at = outputs[0].clone();
            want.push(given(&*other, &outputs)?);
        }
        f(exe, &want)
    })
}

/// The output `next` of each run is the input `at` of the next run.
const CARRIED: [(&str, &str); 1] = [("at", "next")];

/// Tests that pipelined runs give the results of sequential runs. Each run reads an output of the
/// previous run. The graph has random numbers and a state, and each run has other inputs.
fn behind_others() -> Result<(), BoxError> {
    let (first, steps) = way()?;
    on_each_walk(|exe, want| {
        let mut outputs = Vec::new();
        let began = exe.submit_pipelined(&[("by", &steps[0])], &CARRIED, OutputSelection::All)?;
        assert!(!began, "no run is in flight");
        let device = exe.upload(&first)?.device();
        let runs_behind = ["vulkan", "wgpu"].contains(&device);
        for round in 0..2 {
            exe.reset();
            exe.submit(&[("at", &first), ("by", &steps[0])], OutputSelection::All)?;
            for (done, want) in want.iter().enumerate() {
                let next = steps.get(done + 1);
                let mut began = false;
                if let Some(by) = next {
                    began = exe.submit_pipelined(&[("by", by)], &CARRIED, OutputSelection::All)?;
                    assert_eq!(began, runs_behind, "{device}");
                }
                if began {
                    let again =
                        exe.submit_pipelined(&[("by", &first)], &CARRIED, OutputSelection::All)?;
                    assert!(!again, "two runs are in flight");
                }
                exe.wait(&mut outputs)?;
                assert_eq!(outputs[0].to_f64s(), want.0, "round {round}, run {done}");
                assert_eq!(outputs[1].to_f64s(), want.1, "round {round}, run {done}");
                if let (Some(by), false) = (next, began) {
                    let at = outputs[0].clone();
                    exe.submit(&[("at", &at), ("by", by)], OutputSelection::All)?;
                }
            }
            assert_eq!(given(exe, &outputs)?.2, want[want.len() - 1].2);
        }
        Ok(())
    })
}

/// Two runs that are never awaited still count, and later runs are correct. If a pipelined run is
/// rejected because of its sizes or names, the run in flight is unaffected.
fn left_behind_others() -> Result<(), BoxError> {
    let (first, steps) = way()?;
    on_each_walk(|exe, want| {
        let mut outputs = Vec::new();
        let begin = [("at", &first), ("by", &steps[0])];
        exe.submit(&begin, OutputSelection::All)?;
        let wanted = OutputSelection::Only(&["next"]);
        let runs_behind = exe.submit_pipelined(&[("by", &steps[1])], &CARRIED, wanted)?;
        if runs_behind {
            let at = row(&[2, 3])?;
            exe.submit(&[("at", &at), ("by", &steps[2])], OutputSelection::All)?;
            exe.wait(&mut outputs)?;
            assert_eq!(given(exe, &outputs)?, want[2]);
        }
        exe.reset();
        exe.submit(&begin, OutputSelection::All)?;
        let longer = row(&[1, 1, 1])?;
        for (by, carried) in [
            (&longer, CARRIED),
            (&steps[1], [("to", "next")]),
            (&steps[1], [("at", "last")]),
            (&steps[1], [("at", "drawn")]),
        ] {
            let began = exe.submit_pipelined(&[("by", by)], &carried, OutputSelection::All);
            assert!(began.is_err() || !runs_behind, "{carried:?}");
        }
        let all = [("at", &longer), ("by", &longer)];
        assert!(
            !exe.submit_pipelined(&all, &[], OutputSelection::All)?,
            "other sizes"
        );
        exe.wait(&mut outputs)?;
        assert_eq!(given(exe, &outputs)?, want[0]);
        Ok(())
    })
}

/// The tests of this suite.
pub(super) fn tests() -> Vec<SuiteTest> {
    vec![
        SuiteTest::fallible("awaited/loops_with_a_state", loops_with_a_state),
        SuiteTest::fallible("awaited/dropped_on_their_way", dropped_on_their_way),
        SuiteTest::fallible("awaited/in_steps", in_steps),
        SuiteTest::fallible("awaited/behind_others", behind_others),
        SuiteTest::fallible("awaited/left_behind_others", left_behind_others),
    ]
}
