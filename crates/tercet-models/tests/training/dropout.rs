//! Tests of dropout in training graphs: disabled at 0, reproducible bit for bit, and an error if it
//! is not a probability.

use tercet::train::{AdamW, LearningRateSchedule, StepOptions, TrainStep, Trainable, Trainer};
use tercet::{CompileOptions, Device, OpKind, Tensor};
use tercet_models::training::{
    BertTask, BertTrainingOptions, ClassPooling, DecoderTrainingOptions, FineTuneMode, LoraOptions,
    TrainingGraph,
};
use tercet_models::{DummyWeights, EncoderSpec, ModelError, Weights};

use crate::rows::{HALVES, Rows, TEXTS, model};

/// A low-rank tuning with this dropout probability before `A`.
fn lora(dropout: f64) -> FineTuneMode {
    FineTuneMode::Lora(LoraOptions {
        dropout,
        ..LoraOptions::new(4)
    })
}

fn llama(tuning: FineTuneMode, dropout: f64) -> Result<TrainingGraph, ModelError> {
    let files = model(HALVES);
    let options = DecoderTrainingOptions {
        dropout,
        ..DecoderTrainingOptions::new(2, 12, tuning)
    };
    let config = files.decoder_spec().unwrap();
    TrainingGraph::decoder(&config, &files.weights(), &options)
}

/// The losses of three steps, bit for bit.
fn losses(training: &TrainingGraph, microbatches: usize, seed: u64) -> Vec<u32> {
    let names = training.trainables.iter();
    let names: Vec<Trainable> = names.map(|(n, _)| Trainable::new(n.as_str())).collect();
    let step = StepOptions {
        microbatches,
        ..StepOptions::default()
    };
    let step = TrainStep::build(
        &training.graph,
        training.loss,
        &names,
        &AdamW::default(),
        &step,
    );
    let schedule = LearningRateSchedule::constant(1e-3);
    let device = Device::cpu();
    let mut trainer =
        Trainer::new(&device, step.unwrap(), schedule, &CompileOptions::new()).unwrap();
    for (name, tensor) in &training.params {
        trainer.set_param(name, tensor.clone()).unwrap();
    }
    for (name, tensor) in &training.trainables {
        trainer.set_state(name, tensor).unwrap();
    }
    trainer.set_seed(seed);
    let rows = Rows::of(&[&[TEXTS[0]], &[TEXTS[1]]], 12).tensors();
    let rows = rows.into_iter().map(|(name, t)| match microbatches {
        1 => (name, t),
        _ => {
            let shape = [&[microbatches], t.shape()].concat();
            let all = (0..microbatches).flat_map(|_| t.to_i64s());
            let all: Vec<i32> = all.map(|v| v as i32).collect();
            (name, Tensor::from_slice(&shape, &all).unwrap())
        }
    });
    let rows: Vec<(&str, Tensor)> = rows.collect();
    let inputs: Vec<(&str, &Tensor)> = rows.iter().map(|(n, t)| (*n, t)).collect();
    let of = |_| trainer.step(&inputs).unwrap().loss.to_bits();
    (0..3).map(of).collect()
}

fn draws(training: &TrainingGraph) -> usize {
    let nodes = training.graph.nodes();
    nodes
        .filter(|(_, n)| n.op.kind() == OpKind::RngUniform)
        .count()
}

#[test]
fn nothing_is_dropped_by_default_and_runs_repeat() {
    let plain = llama(FineTuneMode::Full, 0.0).unwrap();
    assert_eq!(draws(&plain), 0);
    let dropped = llama(FineTuneMode::Full, 0.2).unwrap();
    assert!(draws(&dropped) > 2);
    let first = losses(&dropped, 1, 1);
    assert_eq!(first, losses(&dropped, 1, 1));
    assert_ne!(first, losses(&dropped, 1, 2));
    assert_ne!(first[0], losses(&plain, 1, 1)[0]);
    // Microbatches have different dropout masks.
    let halves = losses(&dropped, 2, 1);
    assert_eq!(halves, losses(&dropped, 2, 1));
    assert_ne!(first[0], halves[0]);
}

/// `B` is initialized to zeros, so dropout before `A` affects only later steps.
#[test]
fn what_enters_an_adapter_is_dropped() {
    let plain = losses(&llama(lora(0.0), 0.0).unwrap(), 1, 1);
    let dropped = losses(&llama(lora(0.5), 0.0).unwrap(), 1, 1);
    assert_eq!(plain[0], dropped[0]);
    assert_ne!(plain[2], dropped[2]);
}

#[test]
fn encoders_drop_as_well() {
    let config = serde_json::json!({
        "model_type": "bert", "hidden_act": "gelu", "hidden_size": 16, "num_hidden_layers": 2,
        "num_attention_heads": 2, "intermediate_size": 24, "vocab_size": 50,
        "max_position_embeddings": 8, "position_embedding_type": "absolute"
    });
    let config = EncoderSpec::from_json(config.as_object().unwrap()).unwrap();
    let task = BertTask::Classes {
        classes: 2,
        pooling: ClassPooling::Pooler,
    };
    let of = |dropout| {
        let options = BertTrainingOptions {
            dropout,
            ..BertTrainingOptions::new(2, 4, FineTuneMode::Full, task.clone())
        };
        TrainingGraph::bert(&config, &Weights::Dummy(DummyWeights::dense()), &options)
    };
    // Of the 6 dropouts, one follows the embeddings, two are in each of the 2 layers, and one
    // precedes the classifier.
    assert_eq!(draws(&of(0.1).unwrap()), 6);
    assert_eq!(draws(&of(0.0).unwrap()), 0);
    for p in [-0.1, 1.0, f64::NAN] {
        let refused = [of(p), llama(FineTuneMode::Full, p), llama(lora(p), 0.0)];
        for refused in refused {
            let e = refused.map(drop).unwrap_err().to_string();
            assert!(e.contains("expected 0 or more and less than 1"), "{e}");
        }
    }
}
