//! Runs and reads that are awaited, on every executor: they give what blocking ones give, with control flow and states, and
//! when a run is dropped on its way.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use super::control::{on_each, sum_of_elements, tail};
use crate::Test;
use tercet::{CompileOptions, Executable, RunError, Tensor, Wanted};

type Failure = Box<dyn std::error::Error>;

/// A waker that tells the thread.
struct Told(std::thread::Thread, AtomicBool);

impl Wake for Told {
    fn wake(self: Arc<Self>) {
        self.1.store(true, Ordering::Release);
        self.0.unpark();
    }
}

/// Runs a future to its end, polling it only when it was woken.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let told = Arc::new(Told(std::thread::current(), AtomicBool::new(false)));
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

fn table() -> Result<Tensor, Failure> {
    Ok(Tensor::from_slice(&[3], &[1f32, 2.0, 4.0])?)
}

fn numbers(run: Result<Vec<Tensor>, RunError>) -> Result<Vec<Vec<f64>>, RunError> {
    run.map(|all| all.iter().map(Tensor::to_f64s).collect())
}

fn awaited(exe: &mut dyn Executable, inputs: &[(&str, &Tensor)]) -> Result<Vec<Tensor>, RunError> {
    let mut outputs = Vec::new();
    block_on(exe.run_async(inputs, Wanted::All, &mut outputs))?;
    Ok(outputs)
}

/// Loops of several lengths, one that fails in the middle and one that asks too often.
fn loops_with_a_state() -> Result<(), Failure> {
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

/// A run that was polled once and dropped is finished by what comes next, whether that is awaited or not.
fn dropped_on_their_way() -> Result<(), Failure> {
    on_each(&sum_of_elements()?, &CompileOptions::new(), |exe| {
        let table = table()?;
        let two = Tensor::scalar(2i64);
        let inputs = [("n", &two), ("table", &table)];
        for (round, is_awaited) in [true, false, true].into_iter().enumerate() {
            {
                let mut outputs = Vec::new();
                let run = pin!(exe.run_async(&inputs, Wanted::All, &mut outputs));
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

/// Steps apart: submitted, awaited, taken; rows of what stayed on the device; sizes that a branch refuses.
fn in_steps() -> Result<(), Failure> {
    let options = CompileOptions::new().bound("s", 9);
    on_each(&tail()?, &options, |exe| {
        let mut outputs = Vec::new();
        for (len, is_long, want) in [(9, true, Some(5.0)), (2, true, None), (2, false, Some(0.0))] {
            let x = Tensor::from_slice(&[len], &vec![1f32; len])?;
            let is_long = Tensor::from_bools(&[], &[is_long])?;
            let inputs = [("x", &x), ("is_long", &is_long)];
            let submitted = exe.submit(&inputs, Wanted::Only(&["y"]));
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
        block_on(exe.finished())?; // There is none, which is no error.
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

/// The tests of this suite.
pub(super) fn tests() -> Vec<Test> {
    vec![
        Test::fallible("awaited/loops_with_a_state", loops_with_a_state),
        Test::fallible("awaited/dropped_on_their_way", dropped_on_their_way),
        Test::fallible("awaited/in_steps", in_steps),
    ]
}
