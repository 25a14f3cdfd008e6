//! `tercet finetune`: trains a LoRA adapter or all weights of a model. Language models train on
//! texts or conversations, encoders on labelled texts or text pairs.
//!
//! | file | contents |
//! |---|---|
//! | `mod.rs` | arguments, checks before loading, final summary |
//! | `prepare.rs` | the compiled training step, and the output files |
//! | `decoder.rs`, `encoder.rs` | graphs and data of a language model, of an encoder |
//! | `feed.rs` | batches |
//! | `train.rs` | the training loop: progress, held-out losses, checkpoints, Ctrl-C |
//! | `memory.rs` | remedies for out-of-memory errors |
//! | `plot.rs` | the loss curve as an SVG |

mod decoder;
mod encoder;
mod feed;
pub(crate) mod memory;
mod plot;
pub(crate) mod prepare;
mod train;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use serde::Serialize;
use tercet::{DType, Device};
use tercet_models::Weights;

use super::generate::open_model;
use super::{device, positive, seed, within};
use crate::error::{CliError, CommandOutcome};
use crate::{interrupt, output, progress};
use prepare::{TrainedModelKind, TrainingRun};
use train::{LossHistory, TrainingOutcome};

#[derive(clap::Args)]
pub struct FinetuneArgs {
    /// A GGUF file, or a folder with safetensors [default: the embedded model]
    #[arg(short, long, value_name = "PATH")]
    model: Option<PathBuf>,
    /// Training data. Language models: a text file, or .jsonl with `text` or chat `messages`
    /// (trained on the answers); encoders: .jsonl with `text` and `label`, or with the pairs
    /// `anchor` and `positive`
    #[arg(long, value_name = "FILE")]
    data: PathBuf,
    /// Recognize special tokens that a `text` or a text file spells; otherwise they are ordinary text
    #[arg(long)]
    parse_special: bool,
    /// Output: a folder, or a file ending in .gguf
    #[arg(short, long, value_name = "PATH")]
    out: PathBuf,
    /// Rank of the LoRA adapter
    #[arg(long = "lora-rank", default_value_t = 16, value_name = "N", value_parser = positive, conflicts_with = "full")]
    lora: usize,
    /// LoRA alpha: the adapter's output is scaled by ALPHA / RANK [default: twice the rank]
    #[arg(long, value_name = "ALPHA", value_parser = within(1e-6..=1e6), conflicts_with = "full")]
    alpha: Option<f64>,
    /// Dropout probability on the adapter's input
    #[arg(long, default_value_t = 0.0, value_name = "P", value_parser = within(0.0..=0.99), conflicts_with = "full")]
    lora_dropout: f64,
    /// Dropout probability on activations
    #[arg(long, default_value_t = 0.0, value_name = "P", value_parser = within(0.0..=0.99))]
    dropout: f64,
    /// Train all weights of the model instead of an adapter
    #[arg(long)]
    full: bool,
    /// Total number of steps
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = positive)]
    steps: usize,
    /// Rows, texts or pairs per batch
    #[arg(long, default_value_t = 4, value_name = "B", value_parser = positive)]
    batch: usize,
    /// Tokens per row, or maximum tokens of a text [default: 256 for a language model, 128 or the
    /// configured length for an encoder; at most the model's context]
    #[arg(long, value_name = "S", value_parser = positive)]
    seq: Option<usize>,
    /// Microbatches per step (gradient accumulation)
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = positive)]
    microbatches: usize,
    /// Peak learning rate [default: 2e-4 for an adapter, 5e-5 for all weights]
    #[arg(long, value_name = "X", value_parser = within(0.0..=10.0))]
    lr: Option<f64>,
    /// Warm-up steps of the learning rate [default: 5 % of all steps]
    #[arg(long, value_name = "N")]
    warmup: Option<u64>,
    /// Weight decay of AdamW
    #[arg(long, default_value_t = 0.01, value_name = "X", value_parser = within(0.0..=1.0))]
    weight_decay: f64,
    /// Clip gradients to this norm
    #[arg(long, default_value_t = 1.0, value_name = "X", value_parser = within(1e-6..=1e6))]
    clip: f64,
    /// Float type for computation; weights are updated in f32
    #[arg(long, value_name = "TYPE", value_enum, default_value_t = TrainingPrecision::Auto)]
    dtype: TrainingPrecision,
    /// Activation checkpointing per layer: recompute the inside of a layer in the backward pass
    /// instead of storing it
    #[arg(long = "checkpoint-layers", alias = "recompute")]
    recompute: bool,
    /// Recompute cheap elementwise values, such as activation functions, in the backward pass
    /// instead of storing them; can be combined with --checkpoint-layers
    #[arg(long = "remat-cheap", alias = "recompute-activations")]
    recompute_activations: bool,
    /// Fraction of the data held out for evaluation; 0 for none
    #[arg(long, default_value_t = tercet_models::dataset::DEFAULT_SHARE, value_name = "SHARE", value_parser = within(0.0..=0.9))]
    held_out: f64,
    /// Steps between evaluations of the held-out data [default: a fifth of all steps]
    #[arg(long, value_name = "N", value_parser = positive)]
    eval_every: Option<usize>,
    /// Maximum share of the time for evaluations, which then compute a part of the held-out data; 1 for all of it
    #[arg(long, default_value_t = 0.2, value_name = "SHARE", value_parser = within(0.0..=1.0))]
    eval_share: f64,
    /// Steps between checkpoints
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = positive)]
    save_every: usize,
    /// Resume from the checkpoint next to the output
    #[arg(long)]
    resume: bool,
    /// Plot the losses as an SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Seed of the data order and of the adapter's initial weights; -1 draws one
    #[arg(long, default_value_t = 0, value_name = "N", allow_negative_numbers = true, value_parser = seed)]
    seed: u64,
    /// Device to train on; see `tercet devices`
    #[arg(long, default_value = "auto", value_name = "NAME")]
    device: String,
    /// Print one JSON document at the end
    #[arg(long)]
    json: bool,
}

impl FinetuneArgs {
    fn learning_rate(&self) -> f64 {
        self.lr.unwrap_or(if self.full { 5e-5 } else { 2e-4 })
    }

    fn eval_every(&self) -> u64 {
        self.eval_every.unwrap_or(self.steps.div_ceil(5)) as u64
    }

    /// Evaluations of a run: before the first step, and after every `eval_every` steps and the last one.
    fn evaluations(&self) -> usize {
        1 + (self.steps as u64).div_ceil(self.eval_every()) as usize
    }

    fn to_gguf(&self) -> bool {
        self.out.extension().is_some_and(|e| e == "gguf")
    }

    /// Path of the checkpoint: inside the output folder, or next to the output file.
    fn checkpoint(&self) -> PathBuf {
        match self.to_gguf() {
            true => self.out.with_extension("checkpoint.safetensors"),
            false => self.out.join("checkpoint.safetensors"),
        }
    }
}

/// Float types for the computation of a training step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TrainingPrecision {
    /// F16 or BF16 if the weights and the device make that faster, otherwise f32
    Auto,
    F32,
    F16,
    Bf16,
}

impl TrainingPrecision {
    fn dtype(self, weights: &Weights, device: &Device) -> DType {
        match self {
            TrainingPrecision::Auto => weights.training_dtype(device),
            TrainingPrecision::F32 => DType::F32,
            TrainingPrecision::F16 => DType::F16,
            TrainingPrecision::Bf16 => DType::BF16,
        }
    }
}

#[derive(Serialize)]
struct FinetuneReport<'a> {
    device: &'a str,
    dtype: &'static str,
    out: &'a Path,
    steps: u64,
    first_step: u64,
    seed: u64,
    trained_numbers: usize,
    #[serde(flatten)]
    amounts: &'a BTreeMap<&'static str, usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    labels: Option<&'a [String]>,
    losses: &'a LossHistory,
    #[serde(skip_serializing_if = "Option::is_none")]
    evaluated_batches: Option<usize>,
    perplexity_before: Option<f64>,
    perplexity: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    accuracy_before: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    accuracy: Option<f64>,
    tokens_per_second: f64,
    seconds: f64,
    unmoved: Vec<String>,
}

pub(crate) fn run(args: &FinetuneArgs) -> Result<CommandOutcome, CliError> {
    finetune(args).map_err(|e| memory::with_remedy(args, e))
}

fn finetune(args: &FinetuneArgs) -> Result<CommandOutcome, CliError> {
    let device = device(&args.device)?;
    if let Some(path) = &args.plot {
        crate::output_path::check(path)?;
    }
    check_out(args)?;
    let spinner = progress::spinner("loading");
    let (files, what) = open_model(args.model.as_deref())?;
    if args.full && args.to_gguf() != matches!(files, tercet_models::ModelFiles::Gguf(_)) {
        return Err(CliError::Usage(format!(
            "--full writes the model in its own format: {}",
            match args.to_gguf() {
                true => "it is a folder, so --out must be a folder, without .gguf",
                false => "it is a GGUF file, so --out must end in .gguf",
            }
        )));
    }
    let prepared = prepare::prepare(args, &device, &files, &what);
    spinner.finish_and_clear();
    let mut prepared = prepared?;
    for note in &prepared.notes {
        output::print_note(format_args!("note: {note}"));
    }
    interrupt::listen();
    let trained = train::train(args, &mut prepared)?;
    if let Some(path) = &args.plot {
        crate::output_path::write(path, |file| plot::draw(file, &trained.losses))?;
    }
    if trained.interrupted {
        let path = args.checkpoint();
        output::print_note(format_args!(
            "stopped after step {}; run the same command with --resume to continue from {}",
            trained.steps,
            path.display()
        ));
        return Ok(CommandOutcome::Interrupted);
    }
    let unmoved = prepared.unchanged_weights()?;
    prepared.write(args, &files, &what)?;
    said(args, &prepared, &trained, unmoved)
}

/// Returns an error if the output cannot be written, before any computation.
fn check_out(args: &FinetuneArgs) -> Result<(), CliError> {
    if args.to_gguf() {
        return crate::output_path::check(&args.out);
    }
    let made = std::fs::create_dir_all(&args.out);
    made.map_err(|source| CliError::Write {
        path: args.out.clone(),
        source,
    })
}

fn said(
    args: &FinetuneArgs,
    prepared: &TrainingRun,
    trained: &TrainingOutcome,
    unmoved: Vec<String>,
) -> Result<CommandOutcome, CliError> {
    let (perplexities, accuracies) = (trained.losses.perplexities(), trained.losses.accuracies());
    let report = FinetuneReport {
        device: prepared.trainer.device().name(),
        dtype: prepared.dtype.name(),
        out: &args.out,
        steps: trained.steps,
        first_step: trained.first_step,
        seed: args.seed,
        trained_numbers: prepared.training.trained_numbers(),
        amounts: &prepared.amounts,
        labels: match &prepared.kind {
            TrainedModelKind::Encoder { labels } => labels.as_deref(),
            TrainedModelKind::Decoder(_) => None,
        },
        losses: &trained.losses,
        evaluated_batches: prepared.held_out.as_ref().map(|held| held.sample.count()),
        perplexity_before: perplexities.map(|[before, _]| before),
        perplexity: perplexities.map(|[_, after]| after),
        accuracy_before: accuracies.map(|[before, _]| before),
        accuracy: accuracies.map(|[_, after]| after),
        tokens_per_second: trained.tokens_per_second,
        seconds: trained.seconds,
        unmoved,
    };
    if !report.unmoved.is_empty() {
        let names = report.unmoved.join(", ");
        output::print_note(format_args!(
            "note: training did not change {}",
            output::clip(&names, 200)
        ));
    }
    if args.json {
        output::json(&report)?;
        return Ok(CommandOutcome::Done);
    }
    let held_out = match (perplexities, accuracies) {
        (_, Some([before, after])) => format!("; held-out accuracy {before:.3} to {after:.3}"),
        (Some([before, after]), None) => {
            format!("; held-out perplexity {before:.2} to {after:.2}")
        }
        (None, None) => String::new(),
    };
    output::print_note(format_args!(
        "{} steps in {}, loss {:.4}, {:.0} tokens/s, {:.1} s{held_out}; wrote {}",
        report.steps,
        report.dtype,
        trained.losses.last().unwrap_or(f32::NAN),
        report.tokens_per_second,
        report.seconds,
        args.out.display()
    ));
    Ok(CommandOutcome::Done)
}
