//! QLoRA: trains low-rank matrices beside quantized weights, on a text that the model was not
//! trained on.

use std::path::Path;

use tercet::train::{
    AdamW, EvalWeights, LearningRateSchedule, StepOptions, TrainStep, Trainable, Trainer,
};
use tercet::{CompileOptions, Device, Tensor};
use tercet_models::dataset::{Corpus, CorpusOptions, DEFAULT_SHARE, PackedCorpus, TokenBatch};
use tercet_models::training::{DecoderTrainingOptions, FineTuneMode, LoraOptions, TrainingGraph};
use tercet_models::{Adapter, ModelFiles};
use training::{Curve, Failed, device};

/// The demo model in Q8_0; any GGUF file of the llama family works.
const MODEL: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../tests/data/tiny-rust-llama/tiny-rust-llama-q8_0.gguf"
);
const TEXT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../LICENSE-APACHE");
const BATCH: usize = 2;
const LEN: usize = 128;

fn given(batch: &TokenBatch) -> [(&'static str, &Tensor); 4] {
    [
        ("tokens", &batch.tokens),
        ("positions", &batch.positions),
        ("segments", &batch.segments),
        ("labels", &batch.labels),
    ]
}

/// Results of the training.
struct Tuned {
    curve: Curve,
    /// Mean held-out loss before and after training.
    held_out: [f64; 2],
    adapter: Adapter,
    packed_bytes: usize,
    trained_numbers: usize,
}

fn run(device: &Device, model: &Path, steps: u64) -> Result<Tuned, Failed> {
    let files = ModelFiles::open(model)?;
    let (config, tokenizer) = (files.decoder_spec()?, files.tokenizer()?);
    let corpus = Corpus::read(TEXT, &tokenizer, None, CorpusOptions::default())?;
    let (train, held) = corpus.split(DEFAULT_SHARE, 0)?;
    let train = PackedCorpus::new(train, LEN, None)?;
    let held = PackedCorpus::new(held.ok_or("the held-out part is empty")?, LEN, None)?;

    let lora = LoraOptions {
        dropout: 0.05,
        ..LoraOptions::new(8)
    };
    let options = |lora| DecoderTrainingOptions::new(BATCH, LEN, FineTuneMode::Lora(lora));
    let training = TrainingGraph::decoder(&config, &files.weights(), &options(lora))?;
    let names = training.trainables.iter().map(|(name, _)| name.as_str());
    let names: Vec<Trainable> = names.map(Trainable::from).collect();
    let step = StepOptions {
        clip_norm: Some(1.0),
        ..StepOptions::default()
    };
    let adamw = AdamW::default();
    let step = TrainStep::build(&training.graph, training.loss, &names, &adamw, &step)?;
    let schedule = LearningRateSchedule::cosine(2e-3, steps / 10, steps);
    let mut trainer = Trainer::new(device, step, schedule, &CompileOptions::new())?;
    for (name, tensor) in &training.params {
        trainer.set_param(name, tensor.clone())?;
    }
    for (name, tensor) in &training.trainables {
        trainer.set_state(name, tensor)?;
    }

    // The same graph without dropout, for the held-out loss.
    let plain = TrainingGraph::decoder(&config, &files.weights(), &options(LoraOptions::new(8)))?;
    let mut evaluator =
        trainer.evaluator(&plain.graph, EvalWeights::Current, &CompileOptions::new())?;
    let mut look = |trainer: &Trainer| -> Result<f64, Failed> {
        let (mut sum, mut count) = (0.0, 0.0);
        for batch in held.once(BATCH)? {
            let found = trainer.evaluate(&mut evaluator, &given(&batch?))?;
            // The outputs are the mean, the sum and the count.
            sum += found[1].to_f64s()[0];
            count += found[2].to_f64s()[0];
        }
        Ok(sum / count)
    };
    let before = look(&trainer)?;
    let mut curve = Curve::default();
    for batch in train.batches(BATCH, 0)?.take(steps as usize) {
        curve.push(trainer.step(&given(&batch?))?.loss, steps);
    }
    let after = look(&trainer)?;
    let adapter = training.adapter(|name| trainer.state(name).map_err(Failed::from))?;
    let of_params = training.params.iter().map(|(_, t)| t.bytes().len());
    Ok(Tuned {
        curve,
        held_out: [before, after],
        adapter,
        packed_bytes: of_params.sum(),
        trained_numbers: training.trained_numbers(),
    })
}

fn main() -> Result<(), Failed> {
    let model = std::env::args_os().nth(2).unwrap_or(MODEL.into());
    let tuned = run(&device()?, Path::new(&model), 100)?;
    let [before, after] = tuned.held_out;
    let (bytes, numbers) = (tuned.packed_bytes, tuned.trained_numbers);
    println!("\n{numbers} trained parameters beside {bytes} bytes of quantized weights");
    let (first, last) = (tuned.curve.first(), tuned.curve.last(10));
    println!("loss {first:.3} to {last:.3}, held-out {before:.3} to {after:.3}");
    let out = std::env::temp_dir().join("tercet-qlora");
    tuned.adapter.write_peft(&out)?;
    println!("wrote {}", out.display());
    Ok(())
}

#[test]
fn it_learns() {
    let tuned = run(&Device::cpu(), Path::new(MODEL), 8).unwrap();
    let [before, after] = tuned.held_out;
    assert!(after < before, "{before} to {after}");
    assert!(!tuned.adapter.modules().is_empty());
}
