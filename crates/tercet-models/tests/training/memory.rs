//! Tests that recomputed activations are not stored.

use tercet::train::{AdamW, StepOptions, TrainStep, Trainable};
use tercet::{CompileOptions, Device};
use tercet_models::config::LayerSpec;
use tercet_models::training::{
    BertTask, BertTrainingOptions, ClassPooling, DecoderTrainingOptions, FineTuneMode, LoraOptions,
    TrainingGraph,
};
use tercet_models::{DecoderSpec, DummyWeights, EncoderDims, EncoderSpec, Weights};

use crate::llama::small;

/// Size of the arena of a training step on the CPU, in bytes.
fn arena_of(own: &TrainingGraph) -> u64 {
    let names = own.trainables.iter();
    let names: Vec<Trainable> = names.map(|(n, _)| Trainable::new(n.as_str())).collect();
    let (optimizer, step) = (AdamW::default(), StepOptions::default());
    let step = TrainStep::build(&own.graph, own.loss, &names, &optimizer, &step).unwrap();
    let explained = Device::cpu().explain(step.graph(), &CompileOptions::new());
    let bytes = explained.unwrap().bytes;
    bytes.iter().find(|(name, _)| *name == "arena").unwrap().1
}

/// The arena size of a llama with 8 rows.
fn arena(
    (config, weights): &(DecoderSpec, Weights),
    len: usize,
    change: impl Fn(&mut DecoderTrainingOptions),
) -> u64 {
    let lora = FineTuneMode::Lora(LoraOptions::new(4));
    let mut options = DecoderTrainingOptions::new(8, len, lora);
    change(&mut options);
    arena_of(&TrainingGraph::decoder(config, weights, &options).unwrap())
}

#[test]
fn checkpoints_and_parts_save_memory() {
    // With many layers and long rows, attention scores dominate.
    let mut deep = small(false);
    (deep.0.layers, deep.0.context) = (vec![LayerSpec::FULL; 16], 128);
    let all = arena(&deep, 128, |_| {});
    let less = arena(&deep, 128, |o| o.checkpoints = true);
    assert!(less * 2 < all, "{less} of {all}");
    // With a large vocabulary, logits dominate.
    let mut wide = small(false);
    wide.0.vocab = 4096;
    for checkpoints in [false, true] {
        let of = |parts| {
            arena(&wide, 16, move |o| {
                (o.checkpoints, o.loss_parts) = (checkpoints, parts)
            })
        };
        let (all, less) = (of(1), of(8));
        assert!(less * 3 < all, "{less} of {all}");
    }
}

#[test]
fn checkpoints_of_encoders_save_memory() {
    let config = EncoderSpec::bert(EncoderDims {
        hidden: 64,
        layers: 8,
        heads: 2,
        ffn: 128,
        vocab: 50,
        context: 16,
    });
    let weights = Weights::Dummy(DummyWeights::dense());
    let of = |checkpoints| {
        let lora = FineTuneMode::Lora(LoraOptions::new(4));
        let task = BertTask::Classes {
            classes: 2,
            pooling: ClassPooling::Mean,
        };
        let mut options = BertTrainingOptions::new(32, 16, lora, task);
        options.checkpoints = checkpoints;
        arena_of(&TrainingGraph::bert(&config, &weights, &options).unwrap())
    };
    let (all, less) = (of(false), of(true));
    assert!(less * 2 < all, "{less} of {all}");
}
