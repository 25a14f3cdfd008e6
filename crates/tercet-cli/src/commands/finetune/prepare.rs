//! Set-up of a training run: the trainer with its weights, over the data and graphs of a decoder or
//! an encoder.

use std::collections::BTreeMap;
use std::path::Path;

use tercet::train::{
    AdamW, EvalWeights, EvaluationSample, Evaluator, LearningRateSchedule, LossScale, StepOptions,
    TrainStep, Trainable, Trainer,
};
use tercet::{CompileOptions, DType, Device, Graph, Tensor};
use tercet_models::save::{SaveOptions, name_classes, save_model};
use tercet_models::training::{FineTuneMode, LoraOptions, TrainingGraph};
use tercet_models::{DecoderSpec, ModelFamily, ModelFiles};

use super::FinetuneArgs;
use super::feed::DataLoader;
use super::{decoder, encoder};
use crate::error::CliError;

/// Model family, for writing the result.
pub(super) enum TrainedModelKind {
    Decoder(Box<DecoderSpec>),
    Encoder {
        /// Class names, if the model is a classifier.
        labels: Option<Vec<String>>,
    },
}

/// Training graphs of a model, with the data.
pub(super) struct TrainingSetup {
    pub(super) training: TrainingGraph,
    /// Float dtype of the computation.
    pub(super) dtype: DType,
    /// Bounds of the symbolic sizes.
    pub(super) bounds: CompileOptions,
    pub(super) feed: Box<dyn DataLoader>,
    /// Held-out data and its evaluation graph.
    pub(super) held_out: Option<(Box<dyn DataLoader>, Graph)>,
    /// Item counts, by name, for the report.
    pub(super) amounts: BTreeMap<&'static str, usize>,
    /// Notes for the user.
    pub(super) notes: Vec<String>,
    /// Settings that a resumed checkpoint must match.
    pub(super) settings: BTreeMap<String, String>,
    pub(super) kind: TrainedModelKind,
}

/// A compiled training run: trainer, data and evaluation.
pub struct TrainingRun {
    pub(super) training: TrainingGraph,
    /// Float dtype of the computation.
    pub(super) dtype: DType,
    pub trainer: Trainer,
    pub(super) feed: Box<dyn DataLoader>,
    pub(super) held_out: Option<HeldOutPart>,
    pub(super) amounts: BTreeMap<&'static str, usize>,
    pub(super) notes: Vec<String>,
    pub(super) settings: BTreeMap<String, String>,
    pub(super) kind: TrainedModelKind,
}

/// Held-out data and its evaluation.
pub(super) struct HeldOutPart {
    pub(super) data: Box<dyn DataLoader>,
    pub(super) evaluator: Evaluator,
    /// The batches that each evaluation computes.
    pub(super) sample: EvaluationSample,
}

/// Prepares the training of a model of any supported family.
pub fn prepare(
    args: &FinetuneArgs,
    device: &Device,
    files: &ModelFiles,
    what: &str,
) -> Result<TrainingRun, CliError> {
    let family = files.family();
    match family.map_err(CliError::model(what.to_string()))? {
        ModelFamily::Decoder => decoder::prepare(args, device, files, what),
        ModelFamily::Vision => Err(CliError::Usage(
            "image models cannot be trained; language models and text encoders can".to_string(),
        )),
        ModelFamily::Encoder if args.to_gguf() => Err(CliError::Usage(
            "encoders are written as folders; use an --out name without .gguf".to_string(),
        )),
        ModelFamily::Encoder => encoder::prepare(args, device, files, what),
        ModelFamily::VisionLanguage => Err(CliError::Usage(
            "image-text models cannot be trained; language models and text encoders can"
                .to_string(),
        )),
        ModelFamily::TextToText => Err(CliError::Usage(
            "encoder-decoders cannot be trained; language models and text encoders can".to_string(),
        )),
        ModelFamily::Speech => Err(CliError::Usage(
            "speech recognition models cannot be trained; language models and text encoders can"
                .to_string(),
        )),
    }
}

impl TrainingRun {
    pub(super) fn new(
        args: &FinetuneArgs,
        device: &Device,
        ready: TrainingSetup,
    ) -> Result<TrainingRun, CliError> {
        let trainer = trainer(args, device, &ready)?;
        let mut notes = ready.notes;
        let held = match ready.held_out {
            None => None,
            Some((data, graph)) => {
                let evaluator = trainer.evaluator(&graph, EvalWeights::Current, &ready.bounds)?;
                let trained = args.steps.saturating_mul(args.microbatches);
                let all = data.batches();
                let sample =
                    EvaluationSample::new(trained, args.evaluations(), args.eval_share, all);
                if sample.count() < all {
                    notes.push(format!(
                        "each evaluation computes {} of {all} held-out batches; --eval-share 1 computes all of them",
                        sample.count()
                    ));
                }
                Some(HeldOutPart {
                    data,
                    evaluator,
                    sample,
                })
            }
        };
        Ok(TrainingRun {
            training: ready.training,
            dtype: ready.dtype,
            trainer,
            feed: ready.feed,
            held_out: held,
            amounts: ready.amounts,
            notes,
            settings: ready.settings,
            kind: ready.kind,
        })
    }

    /// Names of trained weights that still have their initial values.
    pub(super) fn unchanged_weights(&self) -> Result<Vec<String>, CliError> {
        Ok(self.trainer.unchanged_trainables()?)
    }

    /// Writes the adapter, or the model.
    pub(super) fn write(
        &self,
        args: &FinetuneArgs,
        files: &ModelFiles,
        what: &str,
    ) -> Result<(), CliError> {
        let read = |name: &str| -> Result<Tensor, CliError> { Ok(self.trainer.state(name)?) };
        let cannot = format!("cannot write {}", args.out.display());
        if args.full {
            let weights = self.training.weights(read)?;
            let saved = save_model(files, &weights, &args.out, &SaveOptions::default());
            saved.map(drop).map_err(CliError::model(cannot.clone()))?;
            return match &self.kind {
                TrainedModelKind::Encoder {
                    labels: Some(labels),
                } => name_classes(&args.out, labels).map_err(CliError::model(cannot)),
                TrainedModelKind::Encoder { labels: None } | TrainedModelKind::Decoder(_) => Ok(()),
            };
        }
        let adapter = self.training.adapter(read)?;
        let adapter = match &args.model {
            Some(path) => adapter.with_base(path.display().to_string()),
            None => adapter.with_base(what.to_string()),
        };
        match &self.kind {
            TrainedModelKind::Decoder(config) if args.to_gguf() => {
                adapter.write_gguf(&args.out, config)
            }
            TrainedModelKind::Decoder(_) | TrainedModelKind::Encoder { .. } => {
                adapter.write_peft(&args.out)
            }
        }
        .map_err(CliError::model(cannot))
    }
}

/// Trained weights: all, or an adapter with this dropout.
pub(super) fn tuning(args: &FinetuneArgs, dropout: f64) -> FineTuneMode {
    match args.full {
        true => FineTuneMode::Full,
        false => FineTuneMode::Lora(LoraOptions {
            alpha: args.alpha.unwrap_or(2.0 * args.lora as f64),
            dropout,
            seed: args.seed,
            ..LoraOptions::new(args.lora)
        }),
    }
}

fn trainer(
    args: &FinetuneArgs,
    device: &Device,
    setup: &TrainingSetup,
) -> Result<Trainer, CliError> {
    let (training, bounds) = (&setup.training, &setup.bounds);
    let step = StepOptions {
        clip_norm: Some(args.clip),
        microbatches: args.microbatches,
        // Microbatches are weighted by their number of target tokens.
        loss_weight: (args.microbatches > 1).then_some(training.tokens),
        loss_scale: (setup.dtype == DType::F16).then(LossScale::default),
        recompute_activations: args.recompute_activations,
        ..StepOptions::default()
    };
    let names = training
        .trainables
        .iter()
        .map(|(name, _)| Trainable::new(name.clone()));
    let names: Vec<Trainable> = names.collect();
    let adamw = AdamW {
        weight_decay: args.weight_decay,
        ..AdamW::default()
    };
    let step = TrainStep::build(&training.graph, training.loss, &names, &adamw, &step)?;
    let steps = args.steps as u64;
    let warmup = args.warmup.unwrap_or(steps / 20);
    let schedule = LearningRateSchedule::cosine(args.learning_rate(), warmup, steps);
    let mut trainer = Trainer::new(device, step, schedule, bounds)?;
    for (name, tensor) in &training.params {
        trainer.set_param(name, tensor.clone())?;
    }
    for (name, tensor) in &training.trainables {
        trainer.set_state(name, tensor)?;
    }
    trainer.set_seed(args.seed);
    Ok(trainer)
}

/// 64-bit FNV-1a hash.
pub(super) fn hash(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// Settings that determine the batches of each step. A resumed run must use the same.
pub(super) fn settings(args: &FinetuneArgs, seq: usize, data: u64) -> BTreeMap<String, String> {
    let numbers = [
        ("batch", args.batch.to_string()),
        ("seq", seq.to_string()),
        ("microbatches", args.microbatches.to_string()),
        ("seed", args.seed.to_string()),
        ("held-out", args.held_out.to_string()),
        ("data", format!("{data:016x}")),
    ];
    numbers
        .into_iter()
        .map(|(k, v)| (k.to_string(), v))
        .collect()
}

/// Returns an error if the settings differ from those of the checkpoint.
pub(super) fn check_settings(
    path: &Path,
    found: &BTreeMap<String, String>,
    own: &BTreeMap<String, String>,
) -> Result<(), CliError> {
    for (name, value) in own {
        let was = found.get(name).map_or("nothing", String::as_str);
        if was == value {
            continue;
        }
        let path = path.display();
        return Err(CliError::Usage(match name.as_str() {
            "data" => format!(
                "{path} is a checkpoint for other data; use the same --data, or leave out --resume"
            ),
            name => format!(
                "{path} is a checkpoint for --{name} {was}, not {value}; use the same value, or leave out --resume"
            ),
        }));
    }
    Ok(())
}
