//! `tercet generate`: text from a language model, token by token.

use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;
use tercet::counted;
use tercet_models::{Adapter, DecoderSpec, Generator, ModelFiles, ScaledAdapter, Tokenizer};

use super::language::{self, Loaded, load};
use super::prompt::{self, Prompt};
use super::{device, tokens};
use crate::error::{CliError, Outcome};
use crate::interrupt::{self, interrupted};
use crate::{output, progress};

/// A 3.5-million-parameter llama trained on the Rust documentation.
pub(crate) const EMBEDDED: &[u8] =
    include_bytes!("../../../../tests/data/tiny-rust-llama/tiny-rust-llama-q8_0.gguf");

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    source: prompt::Source,
    /// The most tokens to write; -1 until the model ends the text or the context is full
    #[arg(short = 'n', long, default_value_t = 128, value_name = "N", allow_negative_numbers = true, value_parser = tokens)]
    tokens: usize,
    #[command(flatten)]
    model: language::Args,
    /// Fail at the first node whose result is not finite although its operands are, and say what they are: slow
    #[arg(long)]
    first_nonfinite: bool,
    /// Print one JSON document at the end instead of streaming
    #[arg(long)]
    json: bool,
}

/// Why the text ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Stop {
    /// The model ended it.
    End,
    /// As many tokens as asked for.
    Length,
    /// The context is full.
    Context,
    /// Ctrl-C.
    Interrupted,
}

#[derive(Debug, Serialize)]
pub(super) struct Phase {
    pub(super) tokens: usize,
    seconds: f64,
    pub(super) tokens_per_second: f64,
}

impl Phase {
    pub(super) fn new(tokens: usize, time: Duration) -> Phase {
        let seconds = time.as_secs_f64();
        Phase {
            tokens,
            seconds,
            tokens_per_second: tokens as f64 / seconds.max(1e-9),
        }
    }
}

#[derive(Serialize)]
struct Report<'a> {
    device: &'a str,
    seed: u64,
    prompt: &'a str,
    text: String,
    prompt_tokens: &'a [u32],
    tokens: Vec<u32>,
    stop: Stop,
    load_seconds: f64,
    prefill: Phase,
    decode: Phase,
}

pub(crate) fn run(args: &Args) -> Result<Outcome, CliError> {
    let device = match (device(&args.model.device)?, args.first_nonfinite) {
        (device, true) => device.with_finite_check(),
        (device, false) => device,
    };
    let prompt = args.source.read()?;

    let started = Instant::now();
    let Loaded {
        files,
        llama,
        tokenizer,
        generator,
    } = load(&args.model, &device)?;
    let model = args.model.model.as_deref();
    let eos = &llama.config.eos;
    let source = &args.source;
    let Prompt { ids, ends } = source.tokens(&prompt, &files, &tokenizer, eos, model)?;
    interrupt::listen();
    let mut session = Session {
        generator,
        tokenizer: &tokenizer,
        ends: &ends,
        json: args.json,
    };
    let load = started.elapsed();
    // An answer stands alone; a text goes on from its beginning.
    let echo = if source.chat { "" } else { prompt.as_str() };
    let written = session.write(echo, &ids, args.tokens)?;
    let report = Report {
        device: device.name(),
        seed: args.model.seed,
        prompt: &prompt,
        text: written.text,
        prompt_tokens: &ids,
        tokens: written.tokens,
        stop: written.stop,
        load_seconds: load.as_secs_f64(),
        prefill: written.prefill,
        decode: written.decode,
    };
    if args.json {
        output::json(&report)?;
    } else {
        output::note(format_args!("{}", summary(&report, args.model.temp > 0.0)));
    }
    Ok(if report.stop == Stop::Interrupted {
        Outcome::Interrupted
    } else {
        Outcome::Done
    })
}

/// A model's files, or the embedded one; and what could not be done where it is refused later.
pub(crate) fn open_model(path: Option<&Path>) -> Result<(ModelFiles, String), CliError> {
    let (files, what) = match path {
        Some(path) => {
            let what = format!("cannot load the model {}", path.display());
            (ModelFiles::open(path), what)
        }
        None => {
            let what = "cannot load the embedded model".to_string();
            (ModelFiles::from_gguf_bytes(EMBEDDED), what)
        }
    };
    Ok((files.map_err(CliError::model(what.clone()))?, what))
}

/// Adapters from arguments such as `PATH` and `PATH=0.5`; only folders where there is no configuration of a language model.
pub(crate) fn adapters(
    arguments: &[String],
    config: Option<&DecoderSpec>,
) -> Result<Vec<ScaledAdapter>, CliError> {
    let open = |argument: &String| {
        // A path may hold `=` as well: what is behind the last one counts where it is a number.
        let scaled = argument.rsplit_once('=');
        let scaled = scaled.and_then(|(path, scale)| Some((path, scale.parse::<f64>().ok()?)));
        let (path, scale) = scaled.unwrap_or((argument, 1.0));
        if !scale.is_finite() {
            let text = format!("--lora {argument}: the scale has to be a finite number");
            return Err(CliError::Usage(text));
        }
        let adapter = match config {
            Some(config) => Adapter::open(path, config),
            None => Adapter::from_peft(path),
        };
        let adapter =
            adapter.map_err(CliError::model(format!("cannot load the adapter {path}")))?;
        Ok(ScaledAdapter::new(adapter).scaled(scale))
    };
    arguments.iter().map(open).collect()
}

/// Where tokens were drawn, the seed is said: with it they are drawn again.
fn summary(report: &Report<'_>, drawn: bool) -> String {
    let Report {
        prefill,
        decode,
        stop,
        seed,
        ..
    } = report;
    let ended = match stop {
        Stop::End => "end of text",
        Stop::Length => "length",
        Stop::Context => "context full",
        Stop::Interrupted => "interrupted",
    };
    let phase = |name: &str, phase: &Phase| match phase.tokens {
        0 => format!("{name} 0 tokens"),
        n => {
            let tokens = counted(n, "token", "tokens");
            format!("{name} {tokens}, {:.0}/s", phase.tokens_per_second)
        }
    };
    let seed = if drawn {
        format!("seed {seed}; ")
    } else {
        String::new()
    };
    format!(
        "{}; {}; loaded in {:.2} s; {seed}stopped: {ended}",
        phase("prefill", prefill),
        phase("decode", decode),
        report.load_seconds,
    )
}

struct Session<'a> {
    generator: Generator,
    tokenizer: &'a Tokenizer,
    ends: &'a [u32],
    json: bool,
}

/// What a session wrote.
struct Written {
    tokens: Vec<u32>,
    text: String,
    stop: Stop,
    prefill: Phase,
    decode: Phase,
}

impl Session<'_> {
    fn write(&mut self, prompt: &str, ids: &[u32], limit: usize) -> Result<Written, CliError> {
        let started = Instant::now();
        let first = self.prefill(ids)?;
        let prefill = Phase::new(self.generator.position(), started.elapsed());
        // Not before the prefill: its progress bar would overwrite the line.
        self.show(prompt)?;

        let started = Instant::now();
        let decoded = self.decode(first, limit);
        let elapsed = started.elapsed();
        // Whatever follows, an error or the summary, begins a line.
        self.show("\n")?;
        let (tokens, text, stop) = decoded?;
        // The first token came with the prefill.
        let decode = Phase::new(tokens.len().saturating_sub(1), elapsed);
        Ok(Written {
            tokens,
            text,
            stop,
            prefill,
            decode,
        })
    }

    /// Prints text at once, unless everything is printed as JSON at the end.
    fn show(&self, text: &str) -> Result<(), CliError> {
        match self.json {
            true => Ok(()),
            false => output::text(text),
        }
    }

    /// The first new token, or none if interrupted.
    fn prefill(&mut self, ids: &[u32]) -> Result<Option<u32>, CliError> {
        let bar = progress::bar("prefill", ids.len(), "tokens");
        let step = self.generator.feed_with(ids, &mut |done| {
            bar.set_position(done as u64);
            !interrupted()
        });
        let next = step
            .map_err(CliError::model("cannot process the prompt"))?
            .next;
        bar.finish_and_clear();
        Ok(if interrupted() { None } else { next })
    }

    fn decode(
        &mut self,
        first: Option<u32>,
        limit: usize,
    ) -> Result<(Vec<u32>, String, Stop), CliError> {
        let mut stream = self.tokenizer.stream();
        let (mut tokens, mut text) = (Vec::new(), String::new());
        let mut next = first;
        let stop = loop {
            let Some(token) = next.filter(|_| !interrupted()) else {
                break Stop::Interrupted;
            };
            if tokens.len() == limit {
                break Stop::Length;
            }
            if self.ends.contains(&token) {
                break Stop::End;
            }
            tokens.push(token);
            let piece = stream
                .push(token)
                .map_err(CliError::model("cannot turn tokens into text"))?;
            self.show(&piece)?;
            text += &piece;
            if tokens.len() == limit {
                break Stop::Length;
            }
            if self.generator.position() == self.generator.context() {
                break Stop::Context;
            }
            let step = self.generator.feed(&[token]);
            next = step
                .map_err(CliError::model("cannot compute the next token"))?
                .next;
        };
        let rest = stream
            .finish()
            .map_err(CliError::model("cannot turn tokens into text"))?;
        self.show(&rest)?;
        text += &rest;
        Ok((tokens, text, stop))
    }
}
