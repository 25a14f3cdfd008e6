//! Tests of the memory that training steps use between their kernels on a large GPU.

use tercet::CompileOptions;
use tercet::train::{AdamW, StepOptions, TrainStep, Trainable};
use tercet_models::ModelFiles;
use tercet_models::training::{DecoderTrainingOptions, FineTuneMode, LoraOptions, TrainingGraph};
use tercet_plan::{DeviceCaps, compile, explain};

type Failure = Box<dyn std::error::Error>;

/// The bytes of the arena, the bytes of prepared buffers, and the number of barriers of a training
/// step.
#[derive(Debug)]
struct Taken {
    arena: u64,
    prepared: u64,
    barriers: usize,
}

/// A training step of the small llama with 8 rows of 256 tokens.
fn step(tuning: FineTuneMode, change: fn(&mut DecoderTrainingOptions)) -> Result<Taken, Failure> {
    let path = tercet_tests::data("tiny-rust-llama/tiny-rust-llama-q8_0.gguf");
    let files = ModelFiles::open(&path)?;
    let mut options = DecoderTrainingOptions::new(8, 256, tuning);
    change(&mut options);
    let own = TrainingGraph::decoder(&files.decoder_spec()?, &files.weights(), &options)?;
    let names = own.trainables.iter().map(|(name, _)| name.as_str());
    let names: Vec<Trainable> = names.map(Trainable::from).collect();
    let (optimizer, whole) = (AdamW::default(), StepOptions::default());
    let step = TrainStep::build(&own.graph, own.loss, &names, &optimizer, &whole)?;
    let program = compile(step.graph(), &CompileOptions::new(), &DeviceCaps::h200())?;
    let bytes = explain(&program, "it").bytes;
    let of = |name: &str| bytes.iter().find(|(n, _)| *n == name).map_or(0, |b| b.1);
    Ok(Taken {
        arena: of("arena"),
        prepared: of("prepared"),
        barriers: program.steps.iter().filter(|s| s.barrier).count(),
    })
}

#[test]
fn what_is_computed_again_waits_for_what_needs_it() -> Result<(), Failure> {
    let plain = step(FineTuneMode::Full, |_| {})?;
    // Without recomputation there are no additional barriers; the remaining ones belong to layers
    // and split-F16 matmuls.
    assert!(plain.arena < 200 << 20 && plain.barriers < 180, "{plain:?}");
    let again = step(FineTuneMode::Full, |o| o.checkpoints = true)?;
    assert!(again.arena * 5 < plain.arena * 3, "{again:?} of {plain:?}");
    let parts = step(FineTuneMode::Full, |o| {
        (o.checkpoints, o.loss_parts) = (true, 8)
    })?;
    assert!(parts.arena * 2 < plain.arena, "{parts:?} of {plain:?}");
    Ok(())
}

#[test]
fn what_is_drawn_again_waits_for_what_needs_it() -> Result<(), Failure> {
    let plain = step(FineTuneMode::Full, |_| {})?;
    let dropped = step(FineTuneMode::Full, |o| o.dropout = 0.1)?;
    assert!(
        dropped.arena < plain.arena + (4 << 20),
        "{dropped:?} of {plain:?}"
    );
    let again = step(FineTuneMode::Full, |o| {
        (o.checkpoints, o.dropout) = (true, 0.1)
    })?;
    assert!(again.arena * 2 < plain.arena, "{again:?} of {plain:?}");
    Ok(())
}

#[test]
fn weights_of_an_adapted_model_stay_packed() -> Result<(), Failure> {
    let taken = step(FineTuneMode::Lora(LoraOptions::new(4)), |_| {})?;
    // 3.5 million weights take 14 MB in F32 and 4 MB quantized. Weights of matmuls with the same
    // input are concatenated.
    assert!(taken.prepared < 5 << 20, "{taken:?}");
    Ok(())
}
