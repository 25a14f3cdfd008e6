//! Tests of training graphs in training steps: microbatches of different sizes, loss scaling,
//! evaluation, and the resulting adapter.

use tercet::train::{
    AdamW, EvalWeights, LearningRateSchedule, LossScale, StepOptions, TrainStep, Trainable, Trainer,
};
use tercet::{CompileOptions, DType, Device, Tensor};
use tercet_models::training::{DecoderTrainingOptions, FineTuneMode, LoraOptions, TrainingGraph};
use tercet_models::{DecoderOptions, DecoderSpec, ScaledAdapter};

use crate::rows::{HALVES, PACKED, Rows, TEXTS, cross_entropy, logits, model, near, training};

type Failed = Box<dyn std::error::Error>;

fn trainer(own: &TrainingGraph, options: &StepOptions) -> Trainer {
    let names: Vec<Trainable> = own
        .trainables
        .iter()
        .map(|(n, _)| Trainable::new(n.as_str()))
        .collect();
    let optimizer = AdamW::default();
    let step = TrainStep::build(&own.graph, own.loss, &names, &optimizer, options).unwrap();
    let schedule = LearningRateSchedule::constant(1e-3);
    let mut trainer = Trainer::new(&Device::cpu(), step, schedule, &CompileOptions::new()).unwrap();
    for (name, tensor) in &own.params {
        trainer.set_param(name, tensor.clone()).unwrap();
    }
    for (name, tensor) in &own.trainables {
        trainer.set_state(name, tensor).unwrap();
    }
    trainer
}

#[test]
fn an_adapter_is_trained_and_applied() -> Result<(), Failed> {
    for (file, dtype) in [(PACKED, DType::F32), (HALVES, DType::F16)] {
        let files = model(file);
        let mut options =
            DecoderTrainingOptions::new(1, 12, FineTuneMode::Lora(LoraOptions::new(4)));
        (options.dtype, options.checkpoints) = (dtype, true);
        let own =
            TrainingGraph::decoder(&files.decoder_spec().unwrap(), &files.weights(), &options)?;
        let step = StepOptions {
            clip_norm: Some(1.0),
            microbatches: 2,
            loss_weight: Some(own.tokens),
            loss_scale: (dtype == DType::F16).then(LossScale::default),
            ..StepOptions::default()
        };
        let mut trainer = trainer(&own, &step);
        // Two microbatches of one row.
        let rows = Rows::of(&[&[TEXTS[0]], &[TEXTS[1]]], 12);
        let batch: Vec<(&str, Tensor)> = rows
            .tensors()
            .into_iter()
            .map(|(name, t)| (name, t.reshaped(&[2, 1, 12]).unwrap()))
            .collect();
        let batch: Vec<(&str, &Tensor)> = batch.iter().map(|(n, t)| (*n, t)).collect();
        let want = |adapters: Vec<ScaledAdapter>| {
            let options = |config: &DecoderSpec| DecoderOptions {
                adapters: adapters.clone(),
                ..DecoderOptions::new(config)
            };
            let of = |text: &&[i32]| cross_entropy(&logits(&files, options, text), text);
            TEXTS.iter().map(of).sum::<f64>() / 13.0
        };
        let tolerance = if dtype == DType::F16 { 2e-3 } else { 2e-5 };
        let first = f64::from(trainer.step(&batch)?.loss);
        assert!(near(first, want(Vec::new()), tolerance), "{file}: {first}");
        for _ in 0..4 {
            trainer.step(&batch)?;
        }
        assert!(trainer.unchanged_trainables()?.is_empty());
        let adapter = own.adapter(|name| trainer.state(name).map_err(Failed::from))?;
        let last = f64::from(trainer.step(&batch)?.loss);
        assert!(last < 0.9 * first, "{file}: {first} to {last}");
        let generated = want(vec![ScaledAdapter::new(adapter)]);
        assert!(
            near(generated, last, 2.0 * tolerance),
            "{file}: {last}, generating {generated}"
        );

        // Evaluate with another batch shape and the current weights.
        let whole = training(&files, [2, 16], FineTuneMode::Lora(LoraOptions::new(4)));
        let mut evaluator =
            trainer.evaluator(&whole.graph, EvalWeights::Current, &CompileOptions::new())?;
        let rows = Rows::of(&[&[TEXTS[0]], &[TEXTS[1]]], 16).tensors();
        let inputs: Vec<(&str, &Tensor)> = rows.iter().map(|(n, t)| (*n, t)).collect();
        let outputs = trainer.evaluate(&mut evaluator, &inputs)?;
        let [loss, sum, tokens] = [0, 1, 2].map(|i| outputs[i].to_f64s()[0]);
        assert_eq!(tokens, 13.0);
        assert!(
            near(loss, sum / tokens, 1e-6) && loss < last * 1.1,
            "{file}: {loss} after {last}"
        );
    }
    Ok(())
}
