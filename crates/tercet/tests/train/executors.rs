//! Training gives the same results on every executor of this build and machine.

use tercet::train::{
    AdamW, LearningRateSchedule, Lion, LossScale, Muon, Optimizer, Sgd, StepOptions, TrainStep,
    Trainer,
};
use tercet::{CompileOptions, DType, Device, Graph, Tensor, Value};

use crate::common::{expect_close, f32s, tensor};

/// An F16 model with dropout.
fn model() -> (Graph, Value) {
    let mut g = Graph::new();
    let x = g.input("x", f32s([4, 8])).unwrap();
    let w = g.state("w", f32s([8, 6])).unwrap();
    let b = g.state("b", f32s([6])).unwrap();
    let part = g.scalar(DType::F32, 0.25).unwrap();
    let unit = g.rng_uniform([4, 8], DType::F32, 0.0, 1.0, 1).unwrap();
    let keep = g.ge(unit, part).unwrap();
    let zero = g.scalar(DType::F32, 0.0).unwrap();
    let x = g.where_(keep, x, zero).unwrap();
    let [x, w] = [x, w].map(|v| g.cast(v, DType::F16).unwrap());
    let y = g.matmul(x, w).unwrap();
    let y = g.cast(y, DType::F32).unwrap();
    let y = g.plus(y, b).unwrap();
    let y = g.tanh(y).unwrap();
    let y = g.dropout(y, 0.25, 2).unwrap();
    let one = g.scalar(DType::F32, 1.0).unwrap();
    let error = g.sub(y, one).unwrap();
    let square = g.mul(error, error).unwrap();
    let loss = g.reduce_mean(square, &[0, 1], false).unwrap();
    (g, loss)
}

fn waves(shape: &[usize], by: f64) -> Tensor {
    let n: usize = shape.iter().product();
    let values: Vec<f64> = (0..n).map(|i| (by * (i as f64 + 1.0)).sin()).collect();
    tensor(shape, &values)
}

/// Losses of some steps, and the weights after them.
fn trained(device: &Device, optimizer: &dyn Optimizer, microbatches: usize) -> [Vec<f64>; 4] {
    let (g, loss) = model();
    let options = StepOptions {
        clip_norm: Some(0.5),
        microbatches,
        loss_scale: Some(LossScale {
            initial: 65536.0 * 256.0,
            interval: 2,
            ..LossScale::default()
        }),
        ema_decay: Some(0.5),
        ..StepOptions::default()
    };
    let names = ["w", "b"].map(Into::into);
    let step = TrainStep::build(&g, loss, &names, optimizer, &options).unwrap();
    let schedule = LearningRateSchedule::linear(0.02, 2, 12);
    let mut trainer = Trainer::new(device, step, schedule, &CompileOptions::new()).unwrap();
    trainer.set_state("w", &waves(&[8, 6], 0.7)).unwrap();
    trainer.set_state("b", &waves(&[6], 0.3)).unwrap();
    trainer.set_seed(11);
    let mut losses = Vec::new();
    for i in 0..8 {
        let shape: &[usize] = match microbatches {
            1 => &[4, 8],
            _ => &[2, 4, 8],
        };
        let x = waves(shape, 0.9 + f64::from(i));
        let report = trainer.step(&[("x", &x)]).unwrap();
        losses.push(report.loss.into());
        losses.push(f64::from(u8::from(report.skipped)));
    }
    let [w, b, average] = ["w", "b", "ema.w"].map(|name| trainer.state(name).unwrap().to_f64s());
    [losses, w, b, average]
}

#[test]
fn executors_agree() {
    let muon = Muon::default();
    let sgd = Sgd {
        momentum: 0.9,
        nesterov: true,
        weight_decay: 0.01,
    };
    let optimizers: [&dyn Optimizer; 4] = [&AdamW::default(), &sgd, &Lion::default(), &muon];
    let devices = tercet::devices().into_iter().filter(|d| d.usable);
    let names: Vec<String> = devices
        .map(|d| d.name)
        .filter(|n| n != "reference")
        .collect();
    for optimizer in optimizers {
        for microbatches in [1, 2] {
            let truth = trained(&Device::reference(), optimizer, microbatches);
            assert!(truth[0].contains(&1.0), "no step was skipped");
            for name in &names {
                let device = Device::by_name(name).unwrap();
                let found = trained(&device, optimizer, microbatches);
                let whats = ["losses", "w", "b", "ema.w"];
                for ((what, found), truth) in whats.iter().zip(&found).zip(&truth) {
                    let what = format!("{} on {name}: {what}", optimizer.name());
                    // Matmuls and gradients are F16.
                    expect_close(&what, found, truth, 2e-3);
                }
                assert_eq!(trained(&device, optimizer, microbatches), found, "{name}");
            }
        }
    }
}
