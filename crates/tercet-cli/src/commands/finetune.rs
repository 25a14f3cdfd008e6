//! `tercet finetune`: trains an adapter for a model, or the model itself: a language model on texts or conversations, an
//! encoder on labelled texts or pairs.
//!
//! | file | does |
//! |---|---|
//! | `mod.rs` | arguments; what is checked before anything is loaded; what is said at the end |
//! | `prepare.rs` | the step, ready to run, and what is written at the end |
//! | `decoder.rs`, `encoder.rs` | the graphs and the data of a language model, of an encoder |
//! | `feed.rs` | batches |
//! | `train.rs` | the loop: progress, held-out losses, checkpoints, Ctrl-C |
//! | `memory.rs` | what to lower where memory does not suffice |
//! | `plot.rs` | the losses as a picture |

mod decoder;
mod encoder;
mod feed;
mod memory;
mod plot;
mod prepare;
mod train;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::generate::open_model;
use super::{Precision, device, positive, seed, within};
use crate::error::{CliError, Outcome};
use crate::{interrupt, output, progress};
use prepare::{Kind, Prepared};
use train::{Losses, Trained};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// A GGUF file, or a folder with safetensors [default: the embedded model]
    #[arg(short, long, value_name = "PATH")]
    model: Option<PathBuf>,
    /// A text file, or .jsonl with a `text` in each line, or with chat `messages`, of which the answers are learnt; for an
    /// encoder .jsonl with `text` and `label`, or with pairs: `anchor` and `positive`
    #[arg(long, value_name = "FILE")]
    data: PathBuf,
    /// Where the result goes: a folder, or a file ending in .gguf
    #[arg(short, long, value_name = "PATH")]
    out: PathBuf,
    /// The rank of the adapter that is trained
    #[arg(long, default_value_t = 16, value_name = "RANK", value_parser = positive, conflicts_with = "full")]
    lora: usize,
    /// The adapter's change is multiplied by ALPHA / RANK [default: twice the rank]
    #[arg(long, value_name = "ALPHA", value_parser = within(1e-6..=1e6), conflicts_with = "full")]
    alpha: Option<f64>,
    /// The probability with which elements of what enters the adapter are dropped
    #[arg(long, default_value_t = 0.0, value_name = "P", value_parser = within(0.0..=0.99), conflicts_with = "full")]
    lora_dropout: f64,
    /// The probability with which elements of activations are dropped
    #[arg(long, default_value_t = 0.0, value_name = "P", value_parser = within(0.0..=0.99))]
    dropout: f64,
    /// Train all weights of the model instead of an adapter
    #[arg(long)]
    full: bool,
    /// Steps in all
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = positive)]
    steps: usize,
    /// Rows, texts or pairs of a batch
    #[arg(long, default_value_t = 4, value_name = "B", value_parser = positive)]
    batch: usize,
    /// Tokens of a row, or at most of a text [default: 256, for an encoder 128 or what it says, or the model's context if that
    /// is less]
    #[arg(long, value_name = "S", value_parser = positive)]
    seq: Option<usize>,
    /// Batches whose gradients make one step
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = positive)]
    microbatches: usize,
    /// The highest learning rate [default: 2e-4 for an adapter, 5e-5 for all weights]
    #[arg(long, value_name = "X", value_parser = within(0.0..=10.0))]
    lr: Option<f64>,
    /// Steps in which the learning rate rises [default: a twentieth of all]
    #[arg(long, value_name = "N")]
    warmup: Option<u64>,
    /// AdamW's weight decay
    #[arg(long, default_value_t = 0.01, value_name = "X", value_parser = within(0.0..=1.0))]
    weight_decay: f64,
    /// Gradients are scaled down to this norm
    #[arg(long, default_value_t = 1.0, value_name = "X", value_parser = within(1e-6..=1e6))]
    clip: f64,
    /// The float type to compute in; weights are updated in f32
    #[arg(long, value_name = "TYPE", value_enum, default_value_t = Precision::F32)]
    dtype: Precision,
    /// Compute what is inside of layers again for the gradients instead of keeping it
    #[arg(long)]
    recompute: bool,
    /// Compute values of single elements, activations above all, again for the gradients where they follow from what is kept
    /// anyway, in any layer; beside --recompute or without it
    #[arg(long)]
    recompute_activations: bool,
    /// The part of the data that is not trained on but tells how good the model gets; 0 for none
    #[arg(long, default_value_t = tercet_models::dataset::DEFAULT_SHARE, value_name = "SHARE", value_parser = within(0.0..=0.9))]
    held_out: f64,
    /// Steps between looks at the held-out part [default: a fifth of all]
    #[arg(long, value_name = "N", value_parser = positive)]
    eval_every: Option<usize>,
    /// Steps between checkpoints
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = positive)]
    save_every: usize,
    /// Go on from the checkpoint beside the output
    #[arg(long)]
    resume: bool,
    /// Draw the losses as an SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Seed of the order of the data and of the adapter; -1 draws one
    #[arg(long, default_value_t = 0, value_name = "N", allow_negative_numbers = true, value_parser = seed)]
    seed: u64,
    /// Where to train; see `tercet devices`
    #[arg(long, default_value = "auto", value_name = "NAME")]
    device: String,
    /// Print one JSON document at the end
    #[arg(long)]
    json: bool,
}

impl Args {
    fn learning_rate(&self) -> f64 {
        self.lr.unwrap_or(if self.full { 5e-5 } else { 2e-4 })
    }

    fn eval_every(&self) -> u64 {
        self.eval_every.unwrap_or(self.steps.div_ceil(5)) as u64
    }

    fn to_gguf(&self) -> bool {
        self.out.extension().is_some_and(|e| e == "gguf")
    }

    /// Where checkpoints are: in the folder, or beside the file.
    fn checkpoint(&self) -> PathBuf {
        match self.to_gguf() {
            true => self.out.with_extension("checkpoint.safetensors"),
            false => self.out.join("checkpoint.safetensors"),
        }
    }
}

#[derive(Serialize)]
struct Report<'a> {
    device: &'a str,
    out: &'a Path,
    steps: u64,
    first_step: u64,
    seed: u64,
    trained_numbers: usize,
    #[serde(flatten)]
    amounts: &'a BTreeMap<&'static str, usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    labels: Option<&'a [String]>,
    losses: &'a Losses,
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

pub(crate) fn run(args: &Args) -> Result<Outcome, CliError> {
    finetune(args).map_err(|e| memory::with_remedy(args, e))
}

fn finetune(args: &Args) -> Result<Outcome, CliError> {
    let device = device(&args.device)?;
    if let Some(path) = &args.plot {
        crate::destination::check(path)?;
    }
    check_out(args)?;
    let spinner = progress::spinner("loading");
    let (files, what) = open_model(args.model.as_deref())?;
    if args.full && args.to_gguf() != matches!(files, tercet_models::ModelFiles::Gguf(_)) {
        return Err(CliError::Usage(format!(
            "--full writes what the model is: {}",
            match args.to_gguf() {
                true => "it is a folder, so give --out a folder, without .gguf",
                false => "it is a GGUF file, so give --out a name ending in .gguf",
            }
        )));
    }
    let prepared = prepare::prepare(args, &device, &files, &what);
    spinner.finish_and_clear();
    let mut prepared = prepared?;
    for note in &prepared.notes {
        output::note(format_args!("note: {note}"));
    }
    interrupt::listen();
    let trained = train::train(args, &mut prepared)?;
    if let Some(path) = &args.plot {
        crate::destination::write(path, |file| plot::draw(file, &trained.losses))?;
    }
    if trained.interrupted {
        let path = args.checkpoint();
        output::note(format_args!(
            "stopped after step {}; the same command with --resume goes on from {}",
            trained.steps,
            path.display()
        ));
        return Ok(Outcome::Interrupted);
    }
    let unmoved = prepared.unmoved()?;
    prepared.write(args, &files, &what)?;
    said(args, &prepared, &trained, unmoved)
}

/// Refuses a place that cannot be written before anything is computed.
fn check_out(args: &Args) -> Result<(), CliError> {
    if args.to_gguf() {
        return crate::destination::check(&args.out);
    }
    let made = std::fs::create_dir_all(&args.out);
    made.map_err(|source| CliError::Write {
        path: args.out.clone(),
        source,
    })
}

fn said(
    args: &Args,
    prepared: &Prepared,
    trained: &Trained,
    unmoved: Vec<String>,
) -> Result<Outcome, CliError> {
    let (perplexities, accuracies) = (trained.losses.perplexities(), trained.losses.accuracies());
    let report = Report {
        device: prepared.trainer.device().name(),
        out: &args.out,
        steps: trained.steps,
        first_step: trained.first_step,
        seed: args.seed,
        trained_numbers: prepared.training.trained_numbers(),
        amounts: &prepared.amounts,
        labels: match &prepared.kind {
            Kind::Encoder { labels } => labels.as_deref(),
            Kind::Decoder(_) => None,
        },
        losses: &trained.losses,
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
        output::note(format_args!(
            "note: nothing moved {}",
            output::clip(&names, 200)
        ));
    }
    if args.json {
        output::json(&report)?;
        return Ok(Outcome::Done);
    }
    let held_out = match (perplexities, accuracies) {
        (_, Some([before, after])) => format!("; held-out accuracy {before:.3} to {after:.3}"),
        (Some([before, after]), None) => {
            format!("; held-out perplexity {before:.2} to {after:.2}")
        }
        (None, None) => String::new(),
    };
    output::note(format_args!(
        "{} steps, loss {:.4}, {:.0} tokens/s, {:.1} s{held_out}; wrote {}",
        report.steps,
        trained.losses.last().unwrap_or(f32::NAN),
        report.tokens_per_second,
        report.seconds,
        args.out.display()
    ));
    Ok(Outcome::Done)
}
