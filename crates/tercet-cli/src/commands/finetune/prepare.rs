//! What is made ready before the first step: the trainer with its weights, over data and graphs of either kind of model.

use std::collections::BTreeMap;
use std::path::Path;

use tercet::train::{
    AdamW, Evaluator, LossScale, Schedule, StepOptions, TrainStep, Trainable, Trainer, Weights,
};
use tercet::{CompileOptions, DType, Device, Graph, Tensor};
use tercet_models::save::{SaveOptions, name_classes, save_model};
use tercet_models::training::{LoraOptions, Training, Tuning};
use tercet_models::{DecoderSpec, Family, ModelFiles};

use super::Args;
use super::feed::Feed;
use super::{decoder, encoder};
use crate::error::CliError;

/// What was trained, as far as writing it depends on that.
pub(super) enum Kind {
    Decoder(Box<DecoderSpec>),
    Encoder {
        /// The classes, where there are any.
        labels: Option<Vec<String>>,
    },
}

/// A model's graphs and its data.
pub(super) struct Ready {
    pub(super) training: Training,
    /// The bounds of sizes.
    pub(super) bounds: CompileOptions,
    pub(super) feed: Box<dyn Feed>,
    /// The held-out part, and the graph for it.
    pub(super) held: Option<(Box<dyn Feed>, Graph)>,
    /// How much there is of what, for the report.
    pub(super) amounts: BTreeMap<&'static str, usize>,
    /// What a user should know.
    pub(super) notes: Vec<String>,
    /// What a checkpoint has to agree with.
    pub(super) settings: BTreeMap<String, String>,
    pub(super) kind: Kind,
}

/// A model and its data, ready to be trained.
pub(super) struct Prepared {
    pub(super) training: Training,
    pub(super) trainer: Trainer,
    pub(super) feed: Box<dyn Feed>,
    /// The held-out part, and what runs it.
    pub(super) held: Option<(Box<dyn Feed>, Evaluator)>,
    pub(super) amounts: BTreeMap<&'static str, usize>,
    pub(super) notes: Vec<String>,
    pub(super) settings: BTreeMap<String, String>,
    pub(super) kind: Kind,
}

/// Makes a model of any family ready.
pub(super) fn prepare(
    args: &Args,
    device: &Device,
    files: &ModelFiles,
    what: &str,
) -> Result<Prepared, CliError> {
    let family = files.family();
    match family.map_err(CliError::model(what.to_string()))? {
        Family::Decoder => decoder::prepare(args, device, files, what),
        Family::Vision => Err(CliError::Usage(
            "models of pictures are not trained; decoders and encoders of texts are".to_string(),
        )),
        Family::Encoder if args.to_gguf() => Err(CliError::Usage(
            "encoders are written as folders; give --out a name without .gguf".to_string(),
        )),
        Family::Encoder => encoder::prepare(args, device, files, what),
        Family::VisionLanguage => Err(CliError::Usage(
            "models of pictures and texts are not trained; language models and text encoders are"
                .to_string(),
        )),
        Family::TextToText => Err(CliError::Usage(
            "encoder-decoders are not trained; language models and text encoders are".to_string(),
        )),
        Family::Speech => Err(CliError::Usage(
            "speech recognizers are not trained; language models and text encoders are".to_string(),
        )),
    }
}

impl Prepared {
    pub(super) fn new(args: &Args, device: &Device, ready: Ready) -> Result<Prepared, CliError> {
        let trainer = trainer(args, device, &ready.training, &ready.bounds)?;
        let held = match ready.held {
            None => None,
            Some((feed, graph)) => {
                let evaluator = trainer.evaluator(&graph, Weights::Current, &ready.bounds)?;
                Some((feed, evaluator))
            }
        };
        Ok(Prepared {
            training: ready.training,
            trainer,
            feed: ready.feed,
            held,
            amounts: ready.amounts,
            notes: ready.notes,
            settings: ready.settings,
            kind: ready.kind,
        })
    }

    /// Trained weights that still are what they were.
    pub(super) fn unmoved(&self) -> Result<Vec<String>, CliError> {
        Ok(self.trainer.unmoved()?)
    }

    /// Writes the adapter, or the model.
    pub(super) fn write(
        &self,
        args: &Args,
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
                Kind::Encoder {
                    labels: Some(labels),
                } => name_classes(&args.out, labels).map_err(CliError::model(cannot)),
                Kind::Encoder { labels: None } | Kind::Decoder(_) => Ok(()),
            };
        }
        let adapter = self.training.adapter(read)?;
        let adapter = match &args.model {
            Some(path) => adapter.with_base(path.display().to_string()),
            None => adapter.with_base(what.to_string()),
        };
        match &self.kind {
            Kind::Decoder(config) if args.to_gguf() => adapter.write_gguf(&args.out, config),
            Kind::Decoder(_) | Kind::Encoder { .. } => adapter.write_peft(&args.out),
        }
        .map_err(CliError::model(cannot))
    }
}

/// What is trained; adapters with this probability of dropping.
pub(super) fn tuning(args: &Args, dropout: f64) -> Tuning {
    match args.full {
        true => Tuning::Full,
        false => Tuning::Lora(LoraOptions {
            alpha: args.alpha.unwrap_or(2.0 * args.lora as f64),
            dropout,
            seed: args.seed,
            ..LoraOptions::new(args.lora)
        }),
    }
}

fn trainer(
    args: &Args,
    device: &Device,
    training: &Training,
    bounds: &CompileOptions,
) -> Result<Trainer, CliError> {
    let step = StepOptions {
        clip_norm: Some(args.clip),
        microbatches: args.microbatches,
        // A batch counts by its targets.
        loss_weight: (args.microbatches > 1).then_some(training.tokens),
        loss_scale: (args.dtype.dtype() == DType::F16).then(LossScale::default),
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
    let schedule = Schedule::cosine(args.learning_rate(), warmup, steps);
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

/// FNV-1a.
pub(super) fn hash(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// What decides which batch a step sees: a run that goes on has to agree.
pub(super) fn settings(args: &Args, seq: usize, data: u64) -> BTreeMap<String, String> {
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

/// Refuses to go on with other settings than a checkpoint was made with.
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
                "{path} was made with other data; give the same --data, or leave out --resume"
            ),
            name => format!(
                "{path} was made with --{name} {was}, not {value}; give the same, or leave out --resume"
            ),
        }));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::commands::generate::open_model;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    /// Bytes between the steps of a plan for the embedded model, all of whose weights are trained with these arguments.
    fn arena(data: &Path, more: &[&str]) -> u64 {
        let data = data.display().to_string();
        let base = ["finetune", "--data", &data, "--out", "o.gguf", "--full"];
        let size = ["--batch", "8", "--seq", "256"];
        let cli = Cli::parse_from(base.iter().chain(&size).chain(more));
        let (files, what) = open_model(None).unwrap();
        let device = Device::cpu();
        let prepared = prepare(&cli.args, &device, &files, &what).unwrap();
        let graph = prepared.trainer.step_graph().graph();
        let explained = device.explain(graph, &CompileOptions::new()).unwrap();
        let arena = explained.bytes.iter().find(|(kind, _)| *kind == "arena");
        arena.unwrap().1
    }

    #[test]
    fn what_is_computed_again_takes_no_memory() {
        let name = format!("tercet-recompute-{}.txt", std::process::id());
        let data = std::env::temp_dir().join(name);
        let text: String = (0..300).map(|i| format!("line {i}\n\n")).collect();
        std::fs::write(&data, text).unwrap();
        let [plain, activations, layers, both] = [
            &[][..],
            &["--recompute-activations"],
            &["--recompute"],
            &["--recompute", "--recompute-activations"],
        ]
        .map(|more| arena(&data, more));
        std::fs::remove_file(&data).unwrap();
        for less in [activations, layers, both] {
            assert!(less < plain, "{less} and {plain}");
        }
    }
}
