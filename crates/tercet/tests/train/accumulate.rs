//! Several microbatches give the same result as one large batch.

use tercet::train::{
    AdamW, LearningRateSchedule, Sgd, StepOptions, StepReport, TrainStep, Trainable, Trainer,
};
use tercet::{DType, Graph, Tensor, Type, Value};

use crate::common::{
    IN, ROWS, expect_close, f32s, given, inputs, regression_trainer, tensor, trainables, trainer_of,
};

fn microbatches(microbatches: usize) -> StepOptions {
    StepOptions {
        microbatches,
        ..StepOptions::default()
    }
}

#[test]
fn four_microbatches_are_one_batch() {
    let clipped = |microbatches| StepOptions {
        clip_norm: Some(1.0),
        microbatches,
        ..StepOptions::default()
    };
    let mut one = regression_trainer(&trainables(), &AdamW::default(), &clipped(1), 0.05);
    let mut four = regression_trainer(&trainables(), &AdamW::default(), &clipped(4), 0.05);
    let (of_one, of_four) = (inputs(1), inputs(4));
    for _ in 0..6 {
        let a = one.step(&given(&of_one)).unwrap();
        let b = four.step(&given(&of_four)).unwrap();
        let numbers = |r: StepReport| [r.loss.into(), r.gradient_norm.into()];
        expect_close("report", &numbers(b), &numbers(a), 1e-6);
        for name in ["w", "b", "adamw.m.w", "adamw.v.b"] {
            let states = [&four, &one].map(|t| t.state(name).unwrap().to_f64s());
            expect_close(name, &states[0], &states[1], 1e-6);
        }
    }
}

/// A masked mean over rows with dropout, and the number of unmasked rows.
fn masked(rows: usize) -> (Graph, Value, Value) {
    let mut g = Graph::new();
    let x = g.input("x", f32s([rows, IN])).unwrap();
    let mask = g.input("mask", f32s([rows])).unwrap();
    let w = g.state("w", f32s([IN])).unwrap();
    let product = g.mul(x, w).unwrap();
    let product = g.dropout(product, 0.5, 3).unwrap();
    let sum = g.reduce_sum(product, &[1], false).unwrap();
    let one = g.scalar(DType::F32, 1.0).unwrap();
    let error = g.sub(sum, one).unwrap();
    let square = g.mul(error, error).unwrap();
    let square = g.mul(square, mask).unwrap();
    let total = g.reduce_sum(square, &[0], false).unwrap();
    let count = g.reduce_sum(mask, &[0], false).unwrap();
    let loss = g.div(total, count).unwrap();
    g.output("sum", sum).unwrap();
    (g, loss, count)
}

fn masked_trainer(microbatches: usize) -> Trainer {
    let (g, loss, count) = masked(ROWS / microbatches);
    let options = StepOptions {
        microbatches,
        loss_weight: Some(count),
        outputs: vec!["sum".to_string()],
        ..StepOptions::default()
    };
    let step = TrainStep::build(&g, loss, &["w".into()], &Sgd::default(), &options).unwrap();
    let mut trainer = trainer_of(step, LearningRateSchedule::constant(0.05));
    trainer
        .set_state("w", &tensor(&[IN], &[0.5, -0.25, 1.0]))
        .unwrap();
    trainer.set_seed(5);
    trainer
}

/// Loss weights by count, independent random numbers in each microbatch, and returned outputs.
#[test]
fn weighted_microbatches_with_dropout_are_one_batch() {
    let mask = [1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0];
    let x: Vec<f64> = (0..ROWS * IN).map(|i| (i as f64 * 0.7).sin()).collect();
    let (mut one, mut two) = (masked_trainer(1), masked_trainer(2));
    for _ in 0..3 {
        let (x1, mask1) = (tensor(&[ROWS, IN], &x), tensor(&[ROWS], &mask));
        let (x2, mask2) = (tensor(&[2, 4, IN], &x), tensor(&[2, 4], &mask));
        let a = one.step(&[("x", &x1), ("mask", &mask1)]).unwrap();
        let b = two.step(&[("x", &x2), ("mask", &mask2)]).unwrap();
        expect_close("loss", &[b.loss.into()], &[a.loss.into()], 1e-6);
        let [a, b] = [&one, &two].map(|t| t.state("w").unwrap().to_f64s());
        expect_close("w", &b, &a, 1e-6);
        let (a, b) = (one.output("sum").unwrap(), two.output("sum").unwrap());
        assert_eq!(b.shape(), [2, 4]);
        expect_close("sum", &b.to_f64s(), &a.to_f64s(), 1e-6);
    }
}

#[test]
fn states_of_the_model_go_from_microbatch_to_microbatch() {
    let mut g = Graph::new();
    let x = g.input("x", f32s([2])).unwrap();
    let w = g.state("w", f32s([2])).unwrap();
    let seen = g.state("seen", f32s([2])).unwrap();
    let half = g.scalar(DType::F32, 0.5).unwrap();
    let now = g.plus(seen, x).unwrap();
    let now = g.mul(now, half).unwrap();
    g.assign(seen, now).unwrap();
    let product = g.mul(w, now).unwrap();
    let loss = g.reduce_sum(product, &[0], false).unwrap();
    let options = microbatches(3);
    let step = TrainStep::build(&g, loss, &["w".into()], &Sgd::default(), &options).unwrap();
    let mut trainer = trainer_of(step, LearningRateSchedule::constant(1.0));
    trainer.set_state("w", &tensor(&[2], &[0.0, 0.0])).unwrap();
    let x = tensor(&[3, 2], &[4.0, 8.0, 2.0, 4.0, 0.0, 2.0]);
    trainer.step(&[("x", &x)]).unwrap();
    // The state `seen` after each microbatch: (2, 4), (2, 4), (1, 3).
    assert_eq!(trainer.state("seen").unwrap().to_f64s(), [1.0, 3.0]);
    expect_close(
        "w",
        &trainer.state("w").unwrap().to_f64s(),
        &[-5.0 / 3.0, -11.0 / 3.0],
        1e-6,
    );
}

/// More trainables than a node can have results.
#[test]
fn many_trainables_share_sums() {
    const COUNT: usize = 300;
    let build = |microbatches: usize| {
        let mut g = Graph::new();
        let x = g.input("x", f32s([2])).unwrap();
        let mut names: Vec<Trainable> = Vec::new();
        let mut sums = Vec::new();
        for i in 0..COUNT {
            let name = format!("w{i}");
            let w = g.state(&name, f32s([1 + i % 3, 2])).unwrap();
            let factor = g.scalar(DType::F32, i as f64).unwrap();
            let product = g.mul(w, x).unwrap();
            let product = g.mul(product, factor).unwrap();
            let sum = g.reduce_sum(product, &[0, 1], false).unwrap();
            sums.push(g.reshape(sum, [1usize]).unwrap());
            names.push(name.into());
        }
        let sums = g.concat(&sums, 0).unwrap();
        let loss = g.reduce_mean(sums, &[0], false).unwrap();
        let options = self::microbatches(microbatches);
        let step = TrainStep::build(&g, loss, &names, &Sgd::default(), &options).unwrap();
        let mut trainer = trainer_of(step, LearningRateSchedule::constant(1.0));
        for i in 0..COUNT {
            let n = 1 + i % 3;
            let zeros = Tensor::from_slice(&[n, 2], &vec![0f32; 2 * n]).unwrap();
            trainer.set_state(&format!("w{i}"), &zeros).unwrap();
        }
        trainer
    };
    let mut trainer = build(2);
    trainer
        .step(&[("x", &tensor(&[2, 2], &[1.0, 2.0, 3.0, 6.0]))])
        .unwrap();
    for i in 0..COUNT {
        let found = trainer.state(&format!("w{i}")).unwrap().to_f64s();
        let factor = i as f64 / COUNT as f64;
        let wanted = [-2.0 * factor, -4.0 * factor].repeat(1 + i % 3);
        expect_close(&format!("w{i}"), &found, &wanted, 1e-6);
    }
    assert_eq!(trainer.unchanged_trainables().unwrap(), ["w0"]);
}

/// A graph without inputs, and one with symbolic sizes.
#[test]
fn odd_graphs_accumulate() {
    let mut g = Graph::new();
    let w = g.state("w", f32s([2])).unwrap();
    let square = g.mul(w, w).unwrap();
    let loss = g.reduce_sum(square, &[0], false).unwrap();
    let options = microbatches(3);
    let step = TrainStep::build(&g, loss, &["w".into()], &Sgd::default(), &options).unwrap();
    let mut trainer = trainer_of(step, LearningRateSchedule::constant(0.25));
    trainer.set_state("w", &tensor(&[2], &[1.0, 2.0])).unwrap();
    let report = trainer.step(&[]).unwrap();
    assert_eq!(report.loss, 5.0);
    expect_close(
        "w",
        &trainer.state("w").unwrap().to_f64s(),
        &[0.5, 1.0],
        1e-6,
    );

    let mut g = Graph::new();
    let x = g
        .input("x", Type::new(DType::F32, [tercet::Dim::sym("n")]))
        .unwrap();
    let w = g.state("w", f32s([0usize; 0])).unwrap();
    let product = g.mul(x, w).unwrap();
    let loss = g.reduce_mean(product, &[0], false).unwrap();
    let step = TrainStep::build(&g, loss, &["w".into()], &Sgd::default(), &options).unwrap();
    let bounded = tercet::CompileOptions::new().bound("n", 8);
    let device = tercet::Device::cpu();
    let mut trainer =
        Trainer::new(&device, step, LearningRateSchedule::constant(1.0), &bounded).unwrap();
    trainer.set_state("w", &Tensor::scalar(0f32)).unwrap();
    trainer
        .step(&[("x", &tensor(&[3, 2], &[1.0, 3.0, 2.0, 2.0, 3.0, 1.0]))])
        .unwrap();
    expect_close("w", &trainer.state("w").unwrap().to_f64s(), &[-2.0], 1e-6);
}
