//! Dynamic loss scale.

use tercet::train::{
    AdamW, LearningRateSchedule, LossScale, StepOptions, TrainError, TrainStep, Trainer,
};
use tercet::{DType, Graph, Tensor, Type};

use crate::common::{f32s, tensor, trainer_of};

/// A mean of two F16 products; the gradients of the products are half the loss scale.
fn trainer(scale: LossScale, microbatches: usize) -> Trainer {
    let mut g = Graph::new();
    let x = g.input("x", Type::new(DType::F16, [2])).unwrap();
    let w = g.state("w", f32s([2])).unwrap();
    let w = g.cast(w, DType::F16).unwrap();
    let product = g.mul(w, x).unwrap();
    let product = g.cast(product, DType::F32).unwrap();
    let loss = g.reduce_mean(product, &[0], false).unwrap();
    let options = StepOptions {
        loss_scale: Some(scale),
        microbatches,
        ema_decay: Some(0.5),
        ..StepOptions::default()
    };
    let optimizer = AdamW::default();
    let step = TrainStep::build(&g, loss, &["w".into()], &optimizer, &options).unwrap();
    let mut trainer = trainer_of(step, LearningRateSchedule::constant(0.1));
    trainer.set_state("w", &tensor(&[2], &[1.0, -1.0])).unwrap();
    trainer
}

fn halves(shape: &[usize], values: &[f64]) -> Tensor {
    Tensor::from_f64s(tercet::TensorType::new(DType::F16, shape), values).unwrap()
}

#[test]
fn a_scale_falls_and_rises_and_skips() {
    let power = |n: i32| 2f32.powi(n);
    let scale = LossScale {
        initial: power(18).into(),
        interval: 2,
        ..LossScale::default()
    };
    for microbatches in [1, 2] {
        let mut trainer = trainer(scale.clone(), microbatches);
        let x = match microbatches {
            1 => halves(&[2], &[1.0, 0.5]),
            _ => halves(&[2, 2], &[1.0, 0.5, 1.0, 0.5]),
        };
        // 2^16 is beyond the range of F16.
        let steps = [
            (18, true),
            (17, true),
            (16, false),
            (16, false),
            (17, true),
            (16, false),
        ];
        let mut good = 0;
        for (power_of_two, skipped) in steps {
            let names = ["w", "ema.w", "adamw.m.w", "adamw.v.w", "adamw.step"];
            let before = names.map(|name| trainer.state(name).unwrap());
            let report = trainer.step(&[("x", &x)]).unwrap();
            assert_eq!(report.loss_scale, Some(power(power_of_two)));
            assert_eq!(report.skipped, skipped);
            let after = names.map(|name| trainer.state(name).unwrap());
            for ((name, a), b) in names.iter().zip(&before).zip(&after) {
                assert_eq!(a.bytes() == b.bytes(), skipped, "{name}");
            }
            good += i64::from(!skipped);
            assert_eq!(after[4].to_i64s(), [good]);
            if !skipped {
                let norm = f64::from(report.gradient_norm);
                assert!((norm - 0.3125f64.sqrt()).abs() < 1e-6, "{norm}");
            }
        }
        assert_eq!(trainer.steps(), 6);
    }
}

#[test]
fn gradients_that_no_scale_helps_are_an_error() {
    let scale = LossScale {
        initial: 262_144.0,
        min_scale: 131_072.0,
        ..LossScale::default()
    };
    let mut trainer = trainer(scale, 1);
    let x = halves(&[2], &[1.0, 0.5]);
    assert!(trainer.step(&[("x", &x)]).unwrap().skipped);
    let e = trainer.step(&[("x", &x)]).unwrap_err();
    let text = e.to_string();
    assert!(
        text.starts_with("the gradient norm of step 2 is inf"),
        "{text}"
    );
    assert!(
        text.contains("at a loss scale of 131072; in microbatch 0, %"),
        "{text}"
    );
    // The forward pass overflows, so the loss scale is not the cause.
    let scale = trainer.state("loss_scale.scale").unwrap().to_f64s();
    let x = halves(&[2], &[f64::INFINITY, 1.0]);
    let e = trainer.step(&[("x", &x)]).unwrap_err();
    let TrainError::NotFinite(e) = e else {
        panic!("{e}")
    };
    assert_eq!((e.step, e.loss.is_finite()), (2, false));
    assert_eq!(trainer.steps(), 1);
    let lowered: Vec<f64> = scale.iter().map(|s| s.max(131_072.0)).collect();
    assert_eq!(
        trainer.state("loss_scale.scale").unwrap().to_f64s(),
        lowered
    );
}
