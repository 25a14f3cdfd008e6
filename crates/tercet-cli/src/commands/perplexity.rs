//! `tercet perplexity`: perplexity of a language model on a text.
//!
//! The method is that of llama.cpp's `perplexity` tool. The text is split into windows of
//! `--context` tokens that do not overlap. The first token of each window is BOS if the model has
//! one. Only tokens of the second half of a window count, so each has at least half a window of
//! context. The perplexity is the exponential of the mean negative log-likelihood. The standard
//! error of the perplexity follows from that of the mean.

use std::path::PathBuf;

use serde::Serialize;

use super::generation::ModelArgs;
use super::sampling_args::text_of;
use crate::error::{CliError, CommandOutcome};
use crate::interrupt::{self, interrupted};
use crate::{output, progress};

/// Rows of logits per run: with a vocabulary of 150,000 they take 40 MB.
const ROWS: usize = 64;

#[derive(clap::Args)]
pub(crate) struct PerplexityArgs {
    #[command(flatten)]
    loading: ModelArgs,
    /// Text file; `-` is standard input
    #[arg(short, long, value_name = "PATH")]
    file: PathBuf,
    /// Maximum number of windows [default: the whole text]
    #[arg(long, value_name = "N", value_parser = super::positive)]
    windows: Option<usize>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct PerplexityReport<'a> {
    model: String,
    device: &'a str,
    perplexity: f64,
    /// One standard error of the perplexity.
    error: f64,
    windows: usize,
    context: usize,
    /// Number of tokens whose likelihood is part of the mean.
    tokens: usize,
}

/// Sums of negative log-likelihoods, in nats.
#[derive(Default)]
struct NllSums {
    n: usize,
    sum: f64,
    squares: f64,
}

impl NllSums {
    fn add(&mut self, logits: &[f32], token: u32) {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let total: f64 = logits.iter().map(|x| f64::from(x - max).exp()).sum();
        let x = total.ln() - f64::from(logits[token as usize] - max);
        self.n += 1;
        self.sum += x;
        self.squares += x * x;
    }

    /// Returns the perplexity and its standard error.
    fn perplexity(&self) -> (f64, f64) {
        let n = self.n as f64;
        let mean = self.sum / n;
        let variance = (self.squares / n - mean * mean).max(0.0);
        let error = (variance / (n - 1.0).max(1.0)).sqrt();
        (mean.exp(), error * mean.exp())
    }
}

pub(crate) fn run(args: &PerplexityArgs) -> Result<CommandOutcome, CliError> {
    let text = text_of("-", Some(&args.file))?;
    let mut writer = args.loading.load_with(|trained, options| {
        let options = options.chunk(ROWS).logit_rows(ROWS).device_sampling(None);
        options.context(512.min(trained))
    })?;
    let context = writer.model.context();
    let failed = "cannot compute the perplexity";
    // As in llama.cpp, special tokens that the text spells are ordinary text.
    let ids = writer.model.tokenizer().encode_literally(&text, true);
    let ids = ids.map_err(CliError::model(failed))?;
    let bos = writer.model.tokenizer().surrounding();
    let bos = bos.map_err(CliError::model(failed))?.0.first().copied();
    let windows = (ids.len() / context).min(args.windows.unwrap_or(usize::MAX));
    if windows == 0 || context < 4 {
        let n = ids.len();
        return Err(CliError::Usage(format!(
            "{}: a text of {n} tokens is shorter than one window of {context}; use a longer text, or a smaller --context of at least 4",
            args.file.display()
        )));
    }
    interrupt::listen();
    let bar = progress::bar("perplexity", windows, "windows");
    let mut sums = NllSums::default();
    for window in ids.chunks_exact(context).take(windows) {
        let mut window = window.to_vec();
        let targets = window.clone();
        if let Some(bos) = bos {
            window[0] = bos;
        }
        writer.generator().reset();
        let mut at = 0;
        let fed = writer.generator().forward_rows(&window, &mut |logits| {
            // As in llama.cpp, only logits of the second half count. The last row predicts a token
            // outside the window.
            if at >= context / 2 && at + 1 < context {
                sums.add(logits, targets[at + 1]);
            }
            at += 1;
            !interrupted()
        });
        fed.map_err(CliError::model(failed))?;
        if interrupted() {
            return Ok(CommandOutcome::Interrupted);
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    writer.report_fallback();
    let (perplexity, error) = sums.perplexity();
    let report = PerplexityReport {
        model: args.loading.name(),
        device: writer.model.device().name(),
        perplexity,
        error,
        windows,
        context,
        tokens: sums.n,
    };
    match args.json {
        true => output::json(&report)?,
        false => output::text(&format!(
            "perplexity {perplexity:.4} ± {error:.4} over {} tokens in windows of {context}\n",
            sums.n
        ))?,
    }
    Ok(CommandOutcome::Done)
}
