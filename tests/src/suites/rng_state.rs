//! Tests of the random seed and counter, set on an executable between its runs.

use crate::{SuiteTest, for_each_executor};
use tercet::ops::SampleOptions;
use tercet::random::RngState;
use tercet::{
    CompileOptions, DType, Device, Executable, Graph, OpError, OutputSelection, Tensor, Type,
};

/// A graph with every random operator, including two of the same type.
fn graph(seed: u64) -> Result<Graph, OpError> {
    let mut g = Graph::new();
    let logits = g.input("logits", Type::new(DType::F32, [3, 40]))?;
    let all = SampleOptions {
        top_k: 0,
        top_p: 1.0,
        temperature: 1.0,
    };
    let values = [
        g.rng_uniform([37], DType::F32, -1.0, 1.0, seed)?,
        g.rng_uniform([37], DType::F32, -1.0, 1.0, seed)?,
        g.rng_normal([6], DType::F16, 0.0, 1.0, seed)?,
        g.sample(logits, all, seed)?,
    ];
    for (at, value) in values.into_iter().enumerate() {
        g.output(&format!("y{at}"), value)?;
    }
    Ok(g)
}

fn compiled(device: &Device, seed: u64) -> Box<dyn Executable> {
    let graph = graph(seed).expect("the graph is well typed");
    let exe = device.compile(&graph, &CompileOptions::new());
    exe.unwrap_or_else(|e| panic!("{}: {e}", device.name()))
}

fn logits() -> Tensor {
    let x: Vec<f32> = (0..120).map(|i| (i % 7) as f32 / 3.0).collect();
    Tensor::from_slice(&[3, 40], &x).expect("the list has the number of elements of its shape")
}

fn run(exe: &mut dyn Executable) -> Vec<Tensor> {
    exe.run(&[("logits", &logits())]).expect("it runs")
}

const SEED: u64 = 0x1234_5678_9abc_def0;

fn a_seed_that_is_set_is_that_of_the_graph() {
    for_each_executor(|device| {
        let mut built = compiled(device, SEED);
        let mut set = compiled(device, 1);
        let own = run(&mut *set);
        assert_eq!(set.random().counter, 1);
        set.set_random(RngState {
            seed: Some(SEED),
            counter: 0,
        });
        let first: Vec<_> = (0..3).map(|_| run(&mut *set)).collect();
        let want: Vec<_> = (0..3).map(|_| run(&mut *built)).collect();
        assert_eq!(first, want, "{}", device.name());
        assert_ne!(first[0], own, "{}", device.name());
        assert_ne!(first[0][0], first[0][1], "streams keep operators apart");
        let now = RngState {
            seed: Some(SEED),
            counter: 3,
        };
        assert_eq!(set.random(), now);
        // A clone continues from the current counter.
        let mut clone = set.try_clone().expect("there is room");
        assert_eq!(clone.random(), now);
        assert_eq!(run(&mut *clone), run(&mut *built), "{}", device.name());
        set.set_random(RngState::default());
        assert_eq!(
            run(&mut *set),
            own,
            "{}: the original seed again",
            device.name()
        );
    });
}

fn a_counter_that_is_set_is_that_of_the_next_run() {
    for_each_executor(|device| {
        let mut exe = compiled(device, 5);
        let runs: Vec<_> = (0..4).map(|_| run(&mut *exe)).collect();
        let at = |counter| RngState {
            seed: None,
            counter,
        };
        for counter in [2, 0, 3] {
            exe.set_random(at(counter));
            assert_eq!(run(&mut *exe), runs[counter as usize], "{}", device.name());
        }
        // The counter has 64 bits and wraps to the first run.
        exe.set_random(at(u64::MAX));
        let last = run(&mut *exe);
        assert!(runs.iter().all(|r| *r != last), "{}", device.name());
        assert_eq!(run(&mut *exe), runs[0], "{}", device.name());
    });
}

fn a_reset_keeps_the_seed() {
    for_each_executor(|device| {
        let mut exe = compiled(device, 5);
        exe.set_random(RngState {
            seed: Some(9),
            counter: 7,
        });
        run(&mut *exe);
        exe.reset();
        let kept = RngState {
            seed: Some(9),
            counter: 0,
        };
        assert_eq!(exe.random(), kept);
        assert_eq!(run(&mut *exe), run(&mut *compiled(device, 9)));
    });
}

fn runs_that_nobody_waits_for_count() {
    for_each_executor(|device| {
        let mut exe = compiled(device, 5);
        let runs: Vec<_> = (0..3).map(|_| run(&mut *exe)).collect();
        exe.reset();
        let (x, mut outputs) = (logits(), Vec::new());
        for _ in 0..2 {
            exe.submit(&[("logits", &x)], OutputSelection::All)
                .expect("it runs");
        }
        exe.wait(&mut outputs).expect("it runs");
        assert_eq!(outputs, runs[1], "{}", device.name());
        // A run in flight does not advance a random state that is set meanwhile.
        exe.submit(&[("logits", &x)], OutputSelection::All)
            .expect("it runs");
        exe.set_random(RngState::default());
        exe.wait(&mut outputs).expect("it runs");
        assert_eq!(outputs, runs[2], "{}", device.name());
        assert_eq!(run(&mut *exe), runs[0], "{}", device.name());
    });
}

/// The tests of this suite.
pub(super) fn tests() -> Vec<SuiteTest> {
    vec![
        SuiteTest::asserting(
            "seeds/a_seed_that_is_set_is_that_of_the_graph",
            a_seed_that_is_set_is_that_of_the_graph,
        ),
        SuiteTest::asserting(
            "seeds/a_counter_that_is_set_is_that_of_the_next_run",
            a_counter_that_is_set_is_that_of_the_next_run,
        ),
        SuiteTest::asserting("seeds/a_reset_keeps_the_seed", a_reset_keeps_the_seed),
        SuiteTest::asserting(
            "seeds/runs_that_nobody_waits_for_count",
            runs_that_nobody_waits_for_count,
        ),
    ]
}
