//! What is made ready before the first step: data in rows, the graph of the step, the trainer with its weights.

use std::collections::BTreeMap;
use std::path::Path;

use tercet::train::{
    AdamW, Evaluator, LossScale, Schedule, StepOptions, TrainStep, Trainable, Trainer, Weights,
};
use tercet::{CompileOptions, DType, Device, Tensor};
use tercet_models::dataset::{ChatTemplate, Corpus, CorpusOptions, Packed};
use tercet_models::save::{SaveOptions, save_model};
use tercet_models::training::{LlamaTrainingOptions, LoraOptions, Training, Tuning};
use tercet_models::{Family, LlamaConfig, ModelFiles};

use super::Args;
use crate::error::CliError;

/// A model and its data, ready to be trained.
pub(super) struct Prepared {
    pub(super) training: Training,
    pub(super) trainer: Trainer,
    pub(super) data: Packed,
    /// The held-out part, and what runs it.
    pub(super) held: Option<(Packed, Evaluator)>,
    pub(super) train_tokens: usize,
    pub(super) held_tokens: usize,
    /// What a user should know.
    pub(super) notes: Vec<String>,
    /// What a checkpoint has to agree with.
    pub(super) settings: BTreeMap<String, String>,
    config: LlamaConfig,
}

impl Prepared {
    pub(super) fn new(
        args: &Args,
        device: &Device,
        files: &ModelFiles,
        what: &str,
    ) -> Result<Prepared, CliError> {
        let failed = || CliError::model(what.to_string());
        if files.family().map_err(failed())? != Family::Llama {
            return Err(CliError::Usage(
                "finetune trains language models of the llama family; encoders are trained through the library \
                 (tercet_models::training)"
                    .to_string(),
            ));
        }
        let config = files.llama_config().map_err(failed())?;
        let seq = args.seq.unwrap_or(config.context.min(256));
        let corpus = read(args, files, &config, what)?;
        let mut notes = corpus.notes().to_vec();
        let no_data = || CliError::model(format!("cannot train on {}", args.data.display()));
        let settings = settings(args, &corpus, seq);
        let (train, held) = corpus.split(args.held_out, args.seed).map_err(no_data())?;
        let (train_tokens, held_tokens) = (train.tokens(), held.as_ref().map_or(0, Corpus::tokens));
        let data = Packed::new(train, seq, None).map_err(no_data())?;
        let held = held.map(|held| Packed::new(held, seq, None)).transpose();
        let held = held.map_err(no_data())?;
        if data.rows().len() < args.batch * args.microbatches {
            notes.push(format!(
                "the data fills {} rows of {seq} tokens: fewer than a step takes, so it sees some of them twice",
                data.rows().len()
            ));
        }

        let training = Training::llama(&config, &files.weights(), &options(args, seq));
        let training = training.map_err(CliError::model(what.to_string()))?;
        let trainer = trainer(args, device, &training)?;
        let held = match held {
            None => None,
            Some(held) => {
                let options = CompileOptions::new();
                let evaluator = trainer.evaluator(&training.graph, Weights::Current, &options)?;
                Some((held, evaluator))
            }
        };
        Ok(Prepared {
            training,
            trainer,
            data,
            held,
            train_tokens,
            held_tokens,
            notes,
            settings,
            config,
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
            return saved.map(drop).map_err(CliError::model(cannot));
        }
        let adapter = self.training.adapter(read)?;
        let adapter = match &args.model {
            Some(path) => adapter.with_base(path.display().to_string()),
            None => adapter.with_base(what.to_string()),
        };
        match args.to_gguf() {
            true => adapter.write_gguf(&args.out, &self.config),
            false => adapter.write_peft(&args.out),
        }
        .map_err(CliError::model(cannot))
    }
}

/// The documents of the data as tokens.
fn read(
    args: &Args,
    files: &ModelFiles,
    config: &LlamaConfig,
    what: &str,
) -> Result<Corpus, CliError> {
    let tokenizer = files.tokenizer();
    let tokenizer = tokenizer.map_err(CliError::model(what.to_string()))?;
    let template = ChatTemplate::of(files, &tokenizer);
    let template = template.map_err(CliError::model(what.to_string()))?;
    let options = CorpusOptions {
        eos: config.eos.first().copied(),
        ..CorpusOptions::default()
    };
    let corpus = Corpus::read(&args.data, &tokenizer, Some(&template), options);
    corpus.map_err(CliError::model(format!(
        "cannot train on {}",
        args.data.display()
    )))
}

fn options(args: &Args, seq: usize) -> LlamaTrainingOptions {
    let tuning = match args.full {
        true => Tuning::Full,
        false => Tuning::Lora(LoraOptions {
            alpha: args.alpha.unwrap_or(2.0 * args.lora as f64),
            seed: args.seed,
            ..LoraOptions::new(args.lora)
        }),
    };
    LlamaTrainingOptions {
        dtype: args.dtype.dtype(),
        checkpoints: args.recompute,
        ..LlamaTrainingOptions::new(args.batch, seq, tuning)
    }
}

fn trainer(args: &Args, device: &Device, training: &Training) -> Result<Trainer, CliError> {
    let step = StepOptions {
        clip_norm: Some(args.clip),
        microbatches: args.microbatches,
        // A batch counts by its targets.
        loss_weight: (args.microbatches > 1).then_some(training.tokens),
        loss_scale: (args.dtype.dtype() == DType::F16).then(LossScale::default),
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
    let mut trainer = Trainer::new(device, step, schedule, &CompileOptions::new())?;
    for (name, tensor) in &training.params {
        trainer.set_param(name, tensor.clone())?;
    }
    for (name, tensor) in &training.trainables {
        trainer.set_state(name, tensor)?;
    }
    trainer.set_seed(args.seed);
    Ok(trainer)
}

/// What decides which batch a step sees: a run that goes on has to agree.
fn settings(args: &Args, corpus: &Corpus, seq: usize) -> BTreeMap<String, String> {
    // FNV-1a over the tokens.
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for document in corpus.documents() {
        for token in document.tokens() {
            for byte in token.to_le_bytes() {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
            }
        }
    }
    let numbers = [
        ("batch", args.batch.to_string()),
        ("seq", seq.to_string()),
        ("microbatches", args.microbatches.to_string()),
        ("seed", args.seed.to_string()),
        ("held-out", args.held_out.to_string()),
        ("data", format!("{hash:016x}")),
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
