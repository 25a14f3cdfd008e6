//! `tercet transcribe`: speech to text, as plain text, subtitles or JSON.

use std::path::PathBuf;

use clap::ValueEnum;
use serde::Serialize;
use tercet_models::ModelFiles;
use tercet_models::speech::{Recognizer, SpeechOptions, Task, Transcript, audio};

use super::device;
use crate::error::{CliError, Outcome};
use crate::interrupt::{self, interrupted};
use crate::{output, progress};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// A folder with a speech recognizer: config.json, generation_config.json, model.safetensors, tokenizer.json
    #[arg(short, long, value_name = "DIR")]
    model: PathBuf,
    /// The recording: WAV, FLAC or MP3, of any rate and number of channels
    audio: PathBuf,
    /// The code of the language that is spoken, as `en` [default: found out by the first window]
    #[arg(long, value_name = "CODE")]
    language: Option<String>,
    /// What to write: what is said, or that in English [default: what is said]
    #[arg(long, value_name = "TASK", value_enum)]
    task: Option<TaskName>,
    /// Put times before the lines of text
    #[arg(long)]
    timestamps: bool,
    /// How to print the transcript; subtitles have times always
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Tell each window the text of those before it
    #[arg(long)]
    condition_on_previous: bool,
    /// Take the likeliest tokens, once, whatever comes out; else a window that repeats itself or is unsure is written again at
    /// higher temperatures, and silence is left out
    #[arg(long)]
    no_fallback: bool,
    /// Seed of the random numbers for higher temperatures; -1 draws one
    #[arg(long, default_value_t = 0, value_name = "N", allow_negative_numbers = true, value_parser = super::seed)]
    seed: u64,
    /// Where to run; see `tercet devices`
    #[arg(long, default_value = "auto", value_name = "NAME")]
    device: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TaskName {
    /// What is said
    Transcribe,
    /// What is said, in English
    Translate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Text, with `--timestamps` a line for each segment
    Text,
    /// Subtitles as SubRip has them
    Srt,
    /// Subtitles as WebVTT has them
    Vtt,
    /// Text, segments, tokens and probabilities
    Json,
}

#[derive(Serialize)]
struct Document<'a> {
    language: Option<&'a str>,
    /// Seconds.
    duration: f64,
    text: String,
    segments: Vec<Row<'a>>,
}

#[derive(Serialize)]
struct Row<'a> {
    id: usize,
    start: f64,
    end: f64,
    text: &'a str,
    tokens: &'a [u32],
    temperature: f64,
    avg_logprob: f64,
    compression_ratio: f64,
    no_speech_prob: f64,
}

pub(crate) fn run(args: &Args) -> Result<Outcome, CliError> {
    let device = device(&args.device)?;
    let what = format!("cannot load the model {}", args.model.display());
    let spinner = progress::spinner("loading");
    let recognizer = ModelFiles::open(&args.model).and_then(|files| files.recognizer(&device));
    let mut recognizer = recognizer.map_err(CliError::model(what))?;
    spinner.finish_and_clear();
    let options = options(args, &recognizer);

    interrupt::listen();
    let what = format!("cannot transcribe {}", args.audio.display());
    let spinner = progress::spinner("reading");
    let mut stopped = false;
    let info = audio::read(&args.audio, &mut |samples| {
        stopped = stopped || interrupted();
        // Nothing is kept of the rest.
        if stopped {
            return Ok(());
        }
        recognizer.push(samples)
    });
    let info = info.map_err(CliError::model(what.clone()))?;
    spinner.finish_and_clear();
    if interrupted() {
        return Ok(Outcome::Interrupted);
    }
    if info.damaged > 0 {
        let damaged = info.damaged;
        output::note(format_args!(
            "note: {damaged} damaged packets of the recording are left out"
        ));
    }
    let seconds = (info.samples as f64 / f64::from(info.rate)).ceil();
    let bar = progress::bar("transcribe", seconds as usize, "s");
    let transcript = recognizer.finish(&options, &mut |progress| {
        bar.set_position(progress.done as u64);
        !interrupted()
    });
    let transcript = transcript.map_err(CliError::model(what))?;
    bar.finish_and_clear();
    print(args, &transcript)?;
    match interrupted() {
        true => Ok(Outcome::Interrupted),
        false => Ok(Outcome::Done),
    }
}

fn options(args: &Args, recognizer: &Recognizer) -> SpeechOptions {
    let task = match args.task {
        Some(TaskName::Translate) => Some(Task::Translate),
        Some(TaskName::Transcribe) => Some(Task::Transcribe),
        None => recognizer.task_to_tell(),
    };
    let base = match args.no_fallback {
        true => SpeechOptions::default(),
        false => SpeechOptions::with_fallback(),
    };
    SpeechOptions {
        language: args.language.clone(),
        task,
        timestamps: args.timestamps || matches!(args.format, Format::Srt | Format::Vtt),
        condition_on_previous: args.condition_on_previous,
        seed: args.seed,
        ..base
    }
}

fn print(args: &Args, transcript: &Transcript) -> Result<(), CliError> {
    match args.format {
        Format::Json => output::json(&document(transcript)),
        Format::Text if args.timestamps => output::text(&transcript.lines()),
        Format::Text => output::text(&format!("{}\n", transcript.text().trim())),
        Format::Srt => output::text(&transcript.srt()),
        Format::Vtt => output::text(&transcript.vtt()),
    }
}

fn document(transcript: &Transcript) -> Document<'_> {
    let rows = transcript.segments.iter().enumerate();
    let rows = rows.map(|(id, segment)| Row {
        id,
        start: rounded(segment.start),
        end: rounded(segment.end),
        text: &segment.text,
        tokens: &segment.tokens,
        temperature: segment.temperature,
        avg_logprob: segment.log_probability,
        compression_ratio: segment.compression,
        no_speech_prob: segment.no_speech,
    });
    Document {
        language: transcript.language.as_deref(),
        duration: transcript.seconds,
        text: transcript.text(),
        segments: rows.collect(),
    }
}

/// Milliseconds are more than timestamps have.
fn rounded(seconds: f64) -> f64 {
    (seconds * 1000.0).round() / 1000.0
}
