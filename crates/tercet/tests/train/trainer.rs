//! Training runs: convergence, early stops, reports.

use std::convert::Infallible;
use std::ops::ControlFlow;

use tercet::train::{
    AdamW, EvalWeights, LearningRateSchedule, Sgd, StepInputs, StepOptions, StepReport, TrainError,
    TrainStep, Trainer,
};
use tercet::{CompileOptions, Device, Graph, Tensor, Value};

use crate::common::{
    IN, OUT, f32s, given, inputs, regression, regression_trainer, tensor, trainables, trainer_of,
};

fn plain() -> StepOptions {
    StepOptions::default()
}

/// A perceptron with layer sizes 2, 16 and 1, and its mean squared error.
fn perceptron() -> (Graph, Value) {
    let mut g = Graph::new();
    let x = g.input("x", f32s([16, 2])).unwrap();
    let y = g.input("y", f32s([16, 1])).unwrap();
    let w1 = g.state("w1", f32s([2, 16])).unwrap();
    let b1 = g.state("b1", f32s([16])).unwrap();
    let w2 = g.state("w2", f32s([16, 1])).unwrap();
    let h = g.matmul(x, w1).unwrap();
    let h = g.plus(h, b1).unwrap();
    let h = g.tanh(h).unwrap();
    let guess = g.matmul(h, w2).unwrap();
    let error = g.sub(guess, y).unwrap();
    let square = g.mul(error, error).unwrap();
    let loss = g.reduce_mean(square, &[0, 1], false).unwrap();
    (g, loss)
}

fn wave(shape: &[usize], by: f64) -> Tensor {
    let n: usize = shape.iter().product();
    let values: Vec<f64> = (0..n).map(|i| (by * (i as f64 + 1.0)).sin()).collect();
    tensor(shape, &values)
}

#[test]
fn a_perceptron_learns() {
    let (g, loss) = perceptron();
    let names = ["w1", "b1", "w2"].map(Into::into);
    let step = TrainStep::build(&g, loss, &names, &AdamW::default(), &plain()).unwrap();
    let mut trainer = trainer_of(step, LearningRateSchedule::cosine(0.03, 5, 200));
    trainer.set_state("w1", &wave(&[2, 16], 0.9)).unwrap();
    trainer.set_state("b1", &wave(&[16], 0.3)).unwrap();
    trainer.set_state("w2", &wave(&[16, 1], 1.7)).unwrap();
    let x = wave(&[16, 2], 2.3);
    let product = |row: &[f32]| f64::from(row[0] * row[1]);
    let y: Vec<f64> = x
        .as_slice::<f32>()
        .unwrap()
        .chunks(2)
        .map(product)
        .collect();
    let y = tensor(&[16, 1], &y);
    let losses: Vec<f32> = (0..200)
        .map(|_| trainer.step(&[("x", &x), ("y", &y)]).unwrap().loss)
        .collect();
    assert!(
        losses[199] < losses[0] / 10.0,
        "{} to {}",
        losses[0],
        losses[199]
    );
    assert_eq!(
        trainer.unchanged_trainables().unwrap(),
        Vec::<String>::new()
    );
}

#[test]
fn trainables_that_do_not_move_are_named() {
    let mut g = Graph::new();
    let x = g.input("x", f32s([2])).unwrap();
    let w = g.state("w", f32s([2])).unwrap();
    let dead = g.state("dead", f32s([2])).unwrap();
    let below = g.relu(dead).unwrap();
    let product = g.mul(w, x).unwrap();
    let sum = g.plus(product, below).unwrap();
    let loss = g.reduce_sum(sum, &[0], false).unwrap();
    let names = ["w", "dead"].map(Into::into);
    let step = TrainStep::build(&g, loss, &names, &AdamW::default(), &plain()).unwrap();
    let mut trainer = trainer_of(step, LearningRateSchedule::constant(0.1));
    let x = tensor(&[2], &[1.0, 2.0]);
    let e = trainer.step(&[("x", &x)]).unwrap_err();
    assert_eq!(
        e.to_string(),
        "trainables without an initial value: w, dead; set them with `Trainer::set_state`"
    );
    trainer.set_state("w", &x).unwrap();
    trainer
        .set_state("dead", &tensor(&[2], &[-1.0, -2.0]))
        .unwrap();
    assert_eq!(trainer.unchanged_trainables().unwrap(), ["w", "dead"]);
    trainer.step(&[("x", &x)]).unwrap();
    assert_eq!(trainer.unchanged_trainables().unwrap(), ["dead"]);
}

/// `mean(f(w x))`
fn of_product(f: fn(&mut Graph, Value) -> Value) -> (Graph, Value, Value) {
    let mut g = Graph::new();
    let x = g.input("x", f32s([2])).unwrap();
    let w = g.state("w", f32s([2])).unwrap();
    let seen = g.state("seen", f32s([2])).unwrap();
    let product = g.mul(w, x).unwrap();
    g.assign(seen, product).unwrap();
    let y = f(&mut g, product);
    let loss = g.reduce_mean(y, &[0], false).unwrap();
    (g, loss, y)
}

fn logarithm(microbatches: usize) -> (Trainer, Value) {
    let (g, loss, y) = of_product(|g, x| g.ln(x).unwrap());
    let options = StepOptions {
        microbatches,
        ema_decay: Some(0.5),
        ..plain()
    };
    let step = TrainStep::build(&g, loss, &["w".into()], &AdamW::default(), &options).unwrap();
    let mut trainer = trainer_of(step, LearningRateSchedule::constant(0.1));
    trainer.set_state("w", &tensor(&[2], &[1.0, 2.0])).unwrap();
    (trainer, y)
}

fn states(trainer: &Trainer) -> Vec<(String, Vec<u8>)> {
    let states = trainer.step_graph().states().iter();
    let bytes = |name: &str| trainer.state(name).unwrap().bytes().to_vec();
    states.map(|s| (s.name.clone(), bytes(&s.name))).collect()
}

#[test]
fn a_loss_that_is_not_finite_stops_and_harms_nothing() {
    for microbatches in [1, 2] {
        let (mut trainer, y) = logarithm(microbatches);
        let of = |values: [f64; 2]| match microbatches {
            1 => tensor(&[2], &values),
            _ => tensor(&[2, 2], &[1.0, 1.0, values[0], values[1]]),
        };
        trainer.step(&[("x", &of([1.0, 1.0]))]).unwrap();
        let (before, random) = (states(&trainer), trainer.random());
        let e = trainer.step(&[("x", &of([3.0, -1.0]))]).unwrap_err();
        let TrainError::NotFinite(e) = e else {
            panic!("{e}")
        };
        assert_eq!(
            (e.step, e.microbatch, e.loss.is_nan()),
            (2, microbatches - 1, true)
        );
        let first = e.first.as_ref().unwrap();
        assert_eq!(first.result.value, y);
        assert_eq!(first.kind.as_ref().unwrap().element, 1);
        let text = e.to_string();
        let wanted = format!(
            "the loss of step 2 is NaN; in microbatch {}, {y} (unary) is NaN at element 1",
            e.microbatch
        );
        assert!(text.starts_with(&wanted), "{text}");
        assert_eq!(states(&trainer), before);
        assert_eq!((trainer.random(), trainer.steps()), (random, 1));
        // Training continues after the error.
        assert_eq!(trainer.step(&[("x", &of([1.0, 2.0]))]).unwrap().step, 2);
        assert_ne!(states(&trainer), before);
    }
}

#[test]
fn gradients_that_are_not_finite_stop_as_well() {
    let (g, loss, _) = of_product(|g, x| g.sqrt(x).unwrap());
    let step = TrainStep::build(&g, loss, &["w".into()], &Sgd::default(), &plain()).unwrap();
    let nodes = g.len();
    let mut trainer = trainer_of(step, LearningRateSchedule::constant(0.1));
    trainer.set_state("w", &tensor(&[2], &[0.0, 1.0])).unwrap();
    let before = states(&trainer);
    let e = trainer
        .step(&[("x", &tensor(&[2], &[1.0, 1.0]))])
        .unwrap_err();
    let TrainError::NotFinite(e) = e else {
        panic!("{e}")
    };
    assert_eq!((e.loss, e.loss_scale), (0.5, None));
    assert!(
        e.to_string()
            .starts_with("the gradient norm of step 1 is inf, its loss 0.5"),
        "{e}"
    );
    assert!(e.first.unwrap().result.value.node.index() >= nodes);
    assert_eq!(states(&trainer), before);
}

#[test]
fn inputs_that_are_refused_change_nothing() {
    let mut trainer = regression_trainer(&trainables(), &AdamW::default(), &plain(), 0.1);
    let before = states(&trainer);
    let inputs = inputs(1);
    let e = trainer.step(&given(&inputs[..1])).unwrap_err();
    assert_eq!(e.to_string(), "missing input `y` of type f32[8, 2]");
    let rate = Tensor::scalar(0.5f32);
    let [x, y] = &inputs;
    let with_rate = [("x", &x.1), ("y", &y.1), ("learning_rate", &rate)];
    let e = trainer.step(&with_rate).unwrap_err();
    let words = "no input of a step named `learning_rate`; the graph has: x, y";
    assert_eq!(e.to_string(), words);
    assert_eq!(states(&trainer), before);
    trainer.step(&given(&inputs)).unwrap();
}

fn batches(step: u64) -> Result<Option<StepInputs>, Infallible> {
    let inputs = inputs(1).into_iter();
    Ok((step < 7).then(|| inputs.map(|(n, t)| (n.to_string(), t)).collect()))
}

#[test]
fn fits_end_by_steps_by_batches_and_by_callbacks() {
    let fresh = || regression_trainer(&trainables(), &Sgd::default(), &plain(), 0.1);
    let mut trainer = fresh();
    let last = trainer.fit(3, batches, &mut []).unwrap();
    assert_eq!((last.map(|r| r.step), trainer.steps()), (Some(3), 3));
    let last = trainer.fit(100, batches, &mut []).unwrap();
    assert_eq!(last.map(|r| r.step), Some(7));
    assert_eq!(trainer.fit(7, batches, &mut []).unwrap(), None);
    let mut seen = Vec::new();
    let mut stop = |trainer: &mut Trainer, report: &StepReport| {
        assert_eq!(trainer.steps(), report.step);
        seen.push(report.loss);
        Ok(match report.step {
            5 => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        })
    };
    let last = fresh().fit(100, batches, &mut [&mut stop]).unwrap();
    assert_eq!((last.map(|r| r.step), seen.len()), (Some(5), 5));
    assert!(seen.windows(2).all(|w| w[1] < w[0]), "{seen:?}");
    let failing = |_| Err::<Option<StepInputs>, _>("the file ends in the middle");
    let e = fresh().fit(1, failing, &mut []).unwrap_err();
    assert_eq!(e.to_string(), "cannot load the batch of step 1");
}

#[test]
fn other_graphs_are_run_with_the_weights() {
    let options = StepOptions {
        ema_decay: Some(0.5),
        ..plain()
    };
    let mut trainer = regression_trainer(&trainables(), &Sgd::default(), &options, 0.1);
    let mut g = Graph::new();
    let w = g.state("w", f32s([IN, OUT])).unwrap();
    let factor = g.param("factor", f32s([0usize; 0])).unwrap();
    let own = g.state("own", f32s([0usize; 0])).unwrap();
    let sum = g.plus(own, factor).unwrap();
    g.assign(own, sum).unwrap();
    g.output("w", w).unwrap();
    g.output("own", own).unwrap();
    let compile = CompileOptions::new();
    let mut current = trainer
        .evaluator(&g, EvalWeights::Current, &compile)
        .unwrap();
    let mut average = trainer
        .evaluator(&g, EvalWeights::Average, &compile)
        .unwrap();
    for evaluator in [&mut current, &mut average] {
        let factor = Tensor::scalar(2f32);
        evaluator
            .executable_mut()
            .set_param("factor", factor)
            .unwrap();
    }
    let inputs = inputs(1);
    for step in 0..3 {
        trainer.step(&given(&inputs)).unwrap();
        for (evaluator, name) in [(&mut current, "w"), (&mut average, "ema.w")] {
            let found = trainer.evaluate(evaluator, &[]).unwrap();
            assert_eq!(found[0].bytes(), trainer.state(name).unwrap().bytes());
            assert_eq!(found[1].to_f64s(), [2.0 * f64::from(step)]);
        }
    }
    assert_ne!(
        trainer.state("w").unwrap().bytes(),
        trainer.state("ema.w").unwrap().bytes()
    );
}

#[test]
fn graphs_that_share_nothing_are_refused() {
    let mut trainer = regression_trainer(&trainables(), &Sgd::default(), &plain(), 0.1);
    let check = |trainer: &Trainer, build: fn(&mut Graph) -> Value, weights, words: &str| {
        let mut g = Graph::new();
        let y = build(&mut g);
        g.output("y", y).unwrap();
        let e = trainer
            .evaluator(&g, weights, &CompileOptions::new())
            .unwrap_err();
        assert!(e.to_string().starts_with(words), "{e}");
    };
    let current = EvalWeights::Current;
    let other: fn(&mut Graph) -> Value = |g| g.state("v", f32s([2])).unwrap();
    check(
        &trainer,
        other,
        current,
        "the graph for evaluation shares no state with the training step, which has: w, b",
    );
    let param: fn(&mut Graph) -> Value = |g| g.param("w", f32s([IN, OUT])).unwrap();
    check(
        &trainer,
        param,
        current,
        "`w` is trained, but it is a parameter of the graph for evaluation",
    );
    let wide: fn(&mut Graph) -> Value = |g| g.state("b", f32s([3])).unwrap();
    check(
        &trainer,
        wide,
        current,
        "state `b` of the graph for evaluation is f32[3]; expected f32[2] as in the training step",
    );
    let same: fn(&mut Graph) -> Value = |g| g.state("b", f32s([OUT])).unwrap();
    check(
        &trainer,
        same,
        EvalWeights::Average,
        "the step has no moving average of the weights",
    );
    let e = trainer.set_state("c", &Tensor::scalar(0f32)).unwrap_err();
    assert!(e.to_string().starts_with("no state named `c`"), "{e}");
}

#[test]
fn a_device_that_cannot_is_an_error() {
    let (g, loss) = regression(8);
    let step = TrainStep::build(&g, loss, &trainables(), &Sgd::default(), &plain()).unwrap();
    let options = CompileOptions::new().without_pass("none of them");
    let e = Trainer::new(
        &Device::cpu(),
        step,
        LearningRateSchedule::constant(0.1),
        &options,
    )
    .unwrap_err();
    assert!(matches!(e, TrainError::Compile(_)), "{e}");
}
