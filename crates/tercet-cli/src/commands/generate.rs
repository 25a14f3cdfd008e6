//! `tercet generate`: streams text from a decoder-only or encoder-decoder language model.

use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::Serialize;
use tercet::counted;
use tercet_models::dataset::Role;
use tercet_models::{Adapter, DecoderSpec, FinishReason, ModelFiles, ScaledAdapter};

use super::generation::{
    AnswerPrinter, AnswerReport, ChatTemplateArgs, LoadRequest, ModelArgs, PhaseTiming,
    SpeculationStats, SpeculativeArgs, TextGenerator,
};
use super::open::open_files;
use super::sampling_args::{GivenArgs, SamplingArgs, text_of};
use super::tokens;
use crate::error::{CliError, CommandOutcome};
use crate::{interrupt, output, output_path};

/// Embedded model: a llama with 3.5 million parameters, trained on the Rust documentation.
pub(crate) const EMBEDDED: &[u8] = include_bytes!("../../model/tiny-rust-llama-q8_0.gguf");
const EMBEDDED_PROMPT: &str = "Ownership is";

#[derive(clap::Args)]
pub(crate) struct GenerateArgs {
    #[command(flatten)]
    given: GivenArgs,
    #[command(flatten)]
    loading: ModelArgs,
    /// Prompt, or input of an encoder-decoder; `-` reads standard input
    #[arg(short, long, default_value = EMBEDDED_PROMPT, value_name = "TEXT")]
    prompt: String,
    /// File with the prompt
    #[arg(short, long, value_name = "PATH", conflicts_with = "prompt")]
    file: Option<PathBuf>,
    /// Prompt as token ids, such as 1,2,3; `-` reads them from standard input. Special tokens are not
    /// added. A model without tokenizer then generates token ids
    #[arg(long, value_name = "IDS", conflicts_with_all = ["prompt", "file", "image", "chat"], value_parser = PromptIds::parse)]
    ids: Option<PromptIds>,
    /// PNG, JPEG, WebP or GIF file; it replaces an `<image>` in the prompt, or precedes the prompt; repeatable
    #[arg(long, value_name = "FILE")]
    image: Vec<PathBuf>,
    /// Format the prompt as a user message with the model's chat template
    #[arg(long)]
    chat: bool,
    #[command(flatten)]
    template: ChatTemplateArgs,
    /// System prompt
    #[arg(long, alias = "system-prompt", value_name = "TEXT", requires = "chat")]
    system: Option<String>,
    /// Maximum tokens to generate; -1: until end of text or context
    #[arg(short = 'n', long, visible_aliases = ["n-predict", "predict", "max-tokens"], default_value_t = 128, value_name = "N", allow_negative_numbers = true, value_parser = tokens)]
    tokens: usize,
    #[command(flatten)]
    choosing: SamplingArgs,
    #[command(flatten)]
    drafting: SpeculativeArgs,
    /// Write the logits to a .npy file: float32, shape (tokens, vocabulary), with a row for each token
    /// of the prompt and each generated one: the logits after it
    #[arg(long, value_name = "OUT", conflicts_with = "draft")]
    logits: Option<PathBuf>,
    /// Print one JSON document at the end instead of streaming
    #[arg(long)]
    json: bool,
}

/// The prompt of `--ids`; `None` is standard input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromptIds(pub Option<Vec<u32>>);

impl PromptIds {
    /// Parses ids with commas or white space between them, and optional brackets around them.
    pub fn parse(text: &str) -> Result<PromptIds, String> {
        let text = text.trim();
        if text == "-" {
            return Ok(PromptIds(None));
        }
        let inner = text.strip_prefix('[').and_then(|t| t.strip_suffix(']'));
        let inner = inner.unwrap_or(text).trim();
        let parts = inner
            .split(',')
            .flat_map(|part| match part.trim().is_empty() {
                true => vec![""],
                false => part.split_whitespace().collect(),
            });
        let id = |part: &str| {
            let reason = || {
                format!(
                    "expected token ids such as 1,2,3, found `{}`",
                    output::clip(part, 32)
                )
            };
            part.parse::<u32>().map_err(|_| reason())
        };
        parts
            .map(id)
            .collect::<Result<_, _>>()
            .map(|ids| PromptIds(Some(ids)))
    }

    /// The ids of the argument or of standard input.
    fn read(&self) -> Result<Vec<u32>, CliError> {
        if let Some(ids) = &self.0 {
            return Ok(ids.clone());
        }
        let parsed = PromptIds::parse(&text_of("-", None)?);
        let parsed = parsed.map_err(|e| CliError::Usage(format!("standard input: {e}")))?;
        parsed.0.ok_or_else(|| {
            CliError::Usage("standard input: expected token ids such as 1,2,3".into())
        })
    }
}

/// Why generation stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum StopReason {
    /// The model generated an end-of-text token.
    End,
    /// The maximum number of tokens was generated.
    Length,
    /// The context is full.
    Context,
    /// A stop string was generated.
    #[serde(rename = "stop")]
    Text,
    /// The user pressed Ctrl-C.
    Interrupted,
}

impl StopReason {
    fn new(finish: FinishReason) -> StopReason {
        match finish {
            FinishReason::End => StopReason::End,
            FinishReason::Stop => StopReason::Text,
            FinishReason::Length => StopReason::Length,
            FinishReason::Context => StopReason::Context,
            FinishReason::Cancelled => StopReason::Interrupted,
        }
    }
}

#[derive(Serialize)]
struct GenerateReport<'a> {
    device: &'a str,
    seed: u64,
    prompt: &'a str,
    #[serde(flatten)]
    answer: AnswerReport,
    prompt_tokens: &'a [u32],
    tokens: Vec<u32>,
    stop: StopReason,
    #[serde(skip_serializing_if = "Option::is_none")]
    logits: Option<LogitsReport>,
    load_seconds: f64,
    prefill: PhaseTiming,
    decode: PhaseTiming,
    #[serde(skip_serializing_if = "Option::is_none")]
    drafts: Option<SpeculationStats>,
}

/// The file of `--logits`.
#[derive(Serialize)]
struct LogitsReport {
    file: String,
    shape: [usize; 2],
}

pub(crate) fn run(args: &GenerateArgs) -> Result<CommandOutcome, CliError> {
    let given = args.ids.as_ref().map(PromptIds::read).transpose()?;
    let mut prompt = match given {
        Some(_) => String::new(),
        None => text_of(&args.prompt, args.file.as_deref())?,
    };
    if let Some(path) = &args.logits {
        output_path::check(path)?;
    }
    let started = Instant::now();
    let loading = &args.loading;
    let request = LoadRequest {
        prompt: given.is_none().then_some(&*prompt),
        ids: given.as_deref(),
        logits: args.logits.is_some(),
    };
    let ollama = loading.ollama()?.unwrap_or_default();
    let choosing = args.choosing.with_params(&ollama.params);
    let mut writer = loading.load_as(&choosing, &args.drafting, &request)?;
    writer.add_images(&args.image)?;
    let mut printer: Option<AnswerPrinter> = None;
    let ids = match args.chat {
        _ if given.is_some() => {
            let ids = given.unwrap_or_default();
            prompt = writer.text_of_ids(&ids)?;
            ids
        }
        true => {
            let system = args.system.as_deref().or(ollama.system.as_deref());
            let (ids, of_answer) = chat_prompt(&mut writer, args, (system, &prompt))?;
            printer = Some(of_answer);
            ids
        }
        false => writer.prompt(&prompt)?,
    };
    interrupt::listen();
    let load = started.elapsed();
    let logits = args.logits.as_deref();
    let recorder = logits.map(|path| writer.record_logits(path)).transpose()?;
    // The prompt is printed after the prefill, because the progress bar of the prefill would
    // overwrite the line.
    let goes_on = !args.chat && !writer.model.has_source_encoder();
    let mut before = goes_on.then_some(&*prompt);
    let mut begun = false;
    let written = writer.write(
        &ids,
        args.given.tokens(args.tokens, &ollama.params),
        &choosing.stop,
        &mut |piece| match &mut printer {
            Some(printer) => printer.push(piece),
            None if args.json => Ok(()),
            None => {
                begun = true;
                output::text(&format!("{}{piece}", before.take().unwrap_or_default()))
            }
        },
    );
    // End the line of generated text, so that the error or the summary starts on a new line.
    let answer = match &mut printer {
        Some(printer) => Some(printer.finish(written.is_ok())?.clone()),
        None => {
            if !args.json && (begun || written.is_ok()) {
                output::text(&format!("{}\n", before.unwrap_or_default()))?;
            }
            None
        }
    };
    let written = written?;
    let shape = match recorder {
        Some(recorder) => Some(writer.finish_logits(recorder, &ids, &written.tokens)?),
        None => None,
    };
    let ids = writer.normalize_tokens(ids);
    let report = GenerateReport {
        device: writer.model.device().name(),
        seed: choosing.seed,
        prompt: &prompt,
        answer: AnswerReport::new(written.text, answer),
        prompt_tokens: &ids,
        tokens: written.tokens,
        stop: StopReason::new(written.finish),
        logits: logits.zip(shape).map(|(path, shape)| LogitsReport {
            file: path.display().to_string(),
            shape,
        }),
        load_seconds: load.as_secs_f64(),
        prefill: written.prefill,
        decode: written.decode,
        drafts: written.drafts,
    };
    print_report(args, &report, choosing.temperature() > 0.0)?;
    Ok(if report.stop == StopReason::Interrupted {
        CommandOutcome::Interrupted
    } else {
        CommandOutcome::Done
    })
}

/// Prints the report as JSON, or the summary after the text; `is_random` if the seed matters.
fn print_report(
    args: &GenerateArgs,
    report: &GenerateReport<'_>,
    is_random: bool,
) -> Result<(), CliError> {
    if args.json {
        output::json(report)?;
    } else {
        output::print_note(format_args!("{}", summary(report, is_random)));
        if let Some(LogitsReport { file, shape }) = &report.logits {
            let [tokens, vocab] = shape;
            output::print_note(format_args!("{file}: logits, float32 ({tokens}, {vocab})"));
        }
    }
    Ok(())
}

/// The tokens of a conversation of one message, and the printer of its answer.
fn chat_prompt(
    writer: &mut TextGenerator,
    args: &GenerateArgs,
    (system, prompt): (Option<&str>, &str),
) -> Result<(Vec<u32>, AnswerPrinter), CliError> {
    let template = writer.chat(&args.template)?;
    let system = system.into_iter();
    let system = system.map(|s| writer.message(Role::System, 0, s));
    let mut messages: Vec<_> = system.collect();
    messages.push(writer.message(Role::User, writer.image_count(), prompt));
    let (ids, text) = writer.conversation(&template, &messages)?;
    let printer = writer.answer_printer(&text, args.json);
    Ok((ids, printer))
}

/// Opens a model's files, or the embedded model. Also returns the message for errors that occur
/// when the model is loaded.
pub fn open_model(path: Option<&Path>) -> Result<(ModelFiles, String), CliError> {
    match path {
        Some(path) => {
            let what = format!("cannot load the model {}", path.display());
            Ok((open_files(path, &what)?, what))
        }
        None => {
            let what = "cannot load the embedded model".to_string();
            let files = ModelFiles::from_gguf_bytes(EMBEDDED);
            Ok((files.map_err(CliError::model(what.clone()))?, what))
        }
    }
}

/// Reads adapters from arguments such as `PATH` and `PATH=0.5`. Without the configuration of a
/// language model, only adapter folders are accepted.
pub(crate) fn adapters(
    arguments: &[String],
    config: Option<&DecoderSpec>,
) -> Result<Vec<ScaledAdapter>, CliError> {
    let all = arguments.iter();
    all.map(|argument| scaled_adapter(argument, config))
        .collect()
}

/// Reads one adapter; see [`adapters`].
pub(crate) fn scaled_adapter(
    argument: &str,
    config: Option<&DecoderSpec>,
) -> Result<ScaledAdapter, CliError> {
    // The path may contain `=` too: the part after the last one is the scale if it is a number.
    let scaled = argument.rsplit_once('=');
    let scaled = scaled.and_then(|(path, scale)| Some((path, scale.parse::<f64>().ok()?)));
    let (path, scale) = scaled.unwrap_or((argument, 1.0));
    if !scale.is_finite() {
        let text = format!("--lora {argument}: the scale must be a finite number");
        return Err(CliError::Usage(text));
    }
    let adapter = match config {
        Some(config) => Adapter::open(path, config),
        None => Adapter::from_peft(path),
    };
    let adapter = adapter.map_err(CliError::model(format!("cannot load the adapter {path}")))?;
    Ok(ScaledAdapter::new(adapter).scaled(scale))
}

/// Summary line of a generation. If tokens were sampled, the line contains the seed, so that the
/// output can be reproduced.
fn summary(report: &GenerateReport<'_>, drawn: bool) -> String {
    let GenerateReport {
        prefill,
        decode,
        stop,
        seed,
        drafts,
        ..
    } = report;
    let ended = match stop {
        StopReason::End => "end of text",
        StopReason::Length => "length",
        StopReason::Context => "context full",
        StopReason::Text => "stop string",
        StopReason::Interrupted => "interrupted",
    };
    let phase = |name: &str, phase: &PhaseTiming| match phase.tokens {
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
