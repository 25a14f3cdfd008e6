//! `tercet perplexity`: how well a language model foretells a text.
//!
//! As llama.cpp's tool of this name counts: the text is cut into windows of `--context` tokens that do not overlap, the
//! first token of each is BOS where the model has one, and the tokens of the second half of each count, so that every
//! one has at least half a window before it. The perplexity is the exponential of the mean negative log-likelihood, its
//! error by the standard error of that mean.

use std::path::PathBuf;

use serde::Serialize;
use tercet_models::DecoderOptions;

use super::choosing::text_of;
use super::writing::Loading;
use crate::error::{CliError, Outcome};
use crate::interrupt::{self, interrupted};
use crate::{output, progress};

/// Rows of logits of one run: with a vocabulary of 150,000 they take 40 MB.
const ROWS: usize = 64;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    loading: Loading,
    /// The text; `-` is standard input
    #[arg(short, long, value_name = "PATH")]
    file: PathBuf,
    /// Windows at most [default: all of the text]
    #[arg(long, value_name = "N", value_parser = super::positive)]
    windows: Option<usize>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    model: String,
    device: &'a str,
    perplexity: f64,
    /// One standard error.
    error: f64,
    windows: usize,
    context: usize,
    /// Tokens that count.
    tokens: usize,
}

/// Negative log-likelihoods, in nats.
#[derive(Default)]
struct Sums {
    n: usize,
    sum: f64,
    squares: f64,
}

impl Sums {
    fn add(&mut self, logits: &[f32], token: u32) {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let total: f64 = logits.iter().map(|x| f64::from(x - max).exp()).sum();
        let x = total.ln() - f64::from(logits[token as usize] - max);
        self.n += 1;
        self.sum += x;
        self.squares += x * x;
    }

    /// The perplexity and its standard error.
    fn perplexity(&self) -> (f64, f64) {
        let n = self.n as f64;
        let mean = self.sum / n;
        let variance = (self.squares / n - mean * mean).max(0.0);
        let error = (variance / (n - 1.0).max(1.0)).sqrt();
        (mean.exp(), error * mean.exp())
    }
}

pub(crate) fn run(args: &Args) -> Result<Outcome, CliError> {
    let text = text_of("-", Some(&args.file))?;
    let mut writer = args.loading.load_with(|config| DecoderOptions {
        context: 512.min(config.context),
        chunk: ROWS,
        logit_rows: ROWS,
        sampling: None,
        ..DecoderOptions::new(config)
    })?;
    let context = writer.generator.context();
    let failed = "cannot compute the perplexity";
    let ids = writer.tokenizer.encode(&text, true);
    let ids = ids.map_err(CliError::model(failed))?;
    let bos = writer.tokenizer.surrounding();
    let bos = bos.map_err(CliError::model(failed))?.0.first().copied();
    let windows = (ids.len() / context).min(args.windows.unwrap_or(usize::MAX));
    if windows == 0 || context < 4 {
        let n = ids.len();
        return Err(CliError::Usage(format!(
            "{}: a text of {n} tokens has no window of {context}; give a longer one, or a --context of at least 4 that fits",
            args.file.display()
        )));
    }
    interrupt::listen();
    let bar = progress::bar("perplexity", windows, "windows");
    let mut sums = Sums::default();
    for window in ids.chunks_exact(context).take(windows) {
        let mut window = window.to_vec();
        let targets = window.clone();
        if let Some(bos) = bos {
            window[0] = bos;
        }
        writer.generator.reset();
        let mut at = 0;
        let fed = writer.generator.feed_rows(&window, &mut |logits| {
            // As llama.cpp: the logits of the second half, but for the last, which foretell the token behind them.
            if at >= context / 2 && at + 1 < context {
                sums.add(logits, targets[at + 1]);
            }
            at += 1;
            !interrupted()
        });
        fed.map_err(CliError::model(failed))?;
        if interrupted() {
            return Ok(Outcome::Interrupted);
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    writer.note();
    let (perplexity, error) = sums.perplexity();
    let report = Report {
        model: args.loading.name(),
        device: writer.device.name(),
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
    Ok(Outcome::Done)
}
