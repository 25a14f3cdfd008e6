//! `tercet generate`: text from a language model, or for a text from an encoder-decoder, token by token.

use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::Serialize;
use tercet::counted;
use tercet_models::dataset::Role;
use tercet_models::{Adapter, DecoderSpec, Finish, ModelFiles, ScaledAdapter};

use super::choosing::{Choosing, text_of};
use super::tokens;
use super::writing::{Drafting, Drafts, Loading, Phase};
use crate::error::{CliError, Outcome};
use crate::{interrupt, output};

/// A 3.5-million-parameter llama trained on the Rust documentation.
pub(crate) const EMBEDDED: &[u8] =
    include_bytes!("../../../../tests/data/tiny-rust-llama/tiny-rust-llama-q8_0.gguf");
const EMBEDDED_PROMPT: &str = "Ownership is";

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    loading: Loading,
    /// The beginning of the text, or what an encoder-decoder reads; `-` reads standard input
    #[arg(short, long, default_value = EMBEDDED_PROMPT, value_name = "TEXT")]
    prompt: String,
    /// A file with the beginning of the text
    #[arg(short, long, value_name = "PATH", conflicts_with = "prompt")]
    file: Option<PathBuf>,
    /// A PNG or JPEG file that the text is about, in the place of an `<image>` of the prompt or before it; as often as there
    /// are pictures
    #[arg(long, value_name = "FILE")]
    image: Vec<PathBuf>,
    /// Answer the prompt as a message, written as the model's chat template writes it
    #[arg(long)]
    chat: bool,
    /// What the model is told before the message
    #[arg(long, value_name = "TEXT", requires = "chat")]
    system: Option<String>,
    /// The most tokens to write; -1 until the model ends the text or the context is full
    #[arg(short = 'n', long, default_value_t = 128, value_name = "N", allow_negative_numbers = true, value_parser = tokens)]
    tokens: usize,
    #[command(flatten)]
    choosing: Choosing,
    #[command(flatten)]
    drafting: Drafting,
    /// Print one JSON document at the end instead of streaming
    #[arg(long)]
    json: bool,
}

/// Why the text ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Stop {
    /// The model ended it.
    End,
    /// As many tokens as asked for.
    Length,
    /// The context is full.
    Context,
    /// A stop string.
    #[serde(rename = "stop")]
    Text,
    /// Ctrl-C.
    Interrupted,
}

impl Stop {
    fn of(finish: Finish) -> Stop {
        match finish {
            Finish::End => Stop::End,
            Finish::Stop => Stop::Text,
            Finish::Length => Stop::Length,
            Finish::Context => Stop::Context,
            Finish::Cancelled => Stop::Interrupted,
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
    #[serde(skip_serializing_if = "Option::is_none")]
    drafts: Option<Drafts>,
}

pub(crate) fn run(args: &Args) -> Result<Outcome, CliError> {
    let prompt = text_of(&args.prompt, args.file.as_deref())?;
    let started = Instant::now();
    let mut writer = args.loading.load(&args.choosing, &args.drafting)?;
    writer.look(&args.image)?;
    let ids = match args.chat {
        true => {
            let template = writer.chat()?;
            let system = args.system.iter();
            let system = system.map(|s| writer.message(Role::System, 0, s));
            let mut messages: Vec<_> = system.collect();
            messages.push(writer.message(Role::User, writer.pictures(), &prompt));
            writer.conversation(&template, &messages)?
        }
        false => writer.prompt(&prompt)?,
    };
    interrupt::listen();
    let load = started.elapsed();
    // Not before the prefill: its progress bar would overwrite the line.
    let goes_on = !args.chat && !writer.reads_sources();
    let mut before = goes_on.then_some(&*prompt);
    let mut begun = false;
    let written = writer.write(
        &ids,
        args.tokens,
        &args.choosing.stop,
        &mut |piece| match args.json {
            true => Ok(()),
            false => {
                begun = true;
                output::text(&format!("{}{piece}", before.take().unwrap_or_default()))
            }
        },
    );
    // Whatever follows, an error or the summary, begins a line.
    if !args.json && (begun || written.is_ok()) {
        output::text(&format!("{}\n", before.unwrap_or_default()))?;
    }
    let written = written?;
    let ids = writer.spelled(ids);
    let report = Report {
        device: writer.device.name(),
        seed: args.choosing.seed,
        prompt: &prompt,
        text: written.text,
        prompt_tokens: &ids,
        tokens: written.tokens,
        stop: Stop::of(written.finish),
        load_seconds: load.as_secs_f64(),
        prefill: written.prefill,
        decode: written.decode,
        drafts: written.drafts,
    };
    if args.json {
        output::json(&report)?;
    } else {
        output::note(format_args!(
            "{}",
            summary(&report, args.choosing.temp > 0.0)
        ));
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
    let all = arguments.iter();
    all.map(|argument| scaled_adapter(argument, config))
        .collect()
}

/// As [`adapters`], of one argument.
pub(crate) fn scaled_adapter(
    argument: &str,
    config: Option<&DecoderSpec>,
) -> Result<ScaledAdapter, CliError> {
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
    let adapter = adapter.map_err(CliError::model(format!("cannot load the adapter {path}")))?;
    Ok(ScaledAdapter::new(adapter).scaled(scale))
}

/// Where tokens were drawn, the seed is said: with it they are drawn again.
fn summary(report: &Report<'_>, drawn: bool) -> String {
    let Report {
        prefill,
        decode,
        stop,
        seed,
        drafts,
        ..
    } = report;
    let ended = match stop {
        Stop::End => "end of text",
        Stop::Length => "length",
        Stop::Context => "context full",
        Stop::Text => "stop string",
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
    let drafts = drafts.map_or(String::new(), |drafts| format!("{drafts}; "));
    format!(
        "{}; {}; {drafts}loaded in {:.2} s; {seed}stopped: {ended}",
        phase("prefill", prefill),
        phase("decode", decode),
        report.load_seconds,
    )
}
