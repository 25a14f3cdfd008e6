//! `tercet transcribe`: speech to text, printed as plain text, subtitles or JSON.

use std::path::PathBuf;

use clap::ValueEnum;
use serde::Serialize;
use tercet_models::ModelFamily;
use tercet_models::speech::{Recognizer, SpeechOptions, SpeechTask, Transcript, audio};

use super::DeviceArgs;
use super::open::{check_family, open_files};
use crate::error::{CliError, CommandOutcome};
use crate::interrupt::{self, interrupted};
use crate::{output, progress};

#[derive(clap::Args)]
pub(crate) struct TranscribeArgs {
    /// Folder of a speech recognition model: config.json, generation_config.json,
    /// model.safetensors, tokenizer.json
    #[arg(short, long, value_name = "DIR")]
    model: PathBuf,
    /// Audio file: WAV, FLAC or MP3, any sample rate, any number of channels
    audio: PathBuf,
    /// Language code of the speech, such as `en` [default: detected in the first window]
    #[arg(long, value_name = "CODE")]
    language: Option<String>,
    /// Transcribe, or translate to English [default: transcribe]
    #[arg(long, value_name = "TASK", value_enum)]
    task: Option<TaskName>,
    /// Print timestamps before the lines of text
    #[arg(long)]
    timestamps: bool,
    /// Output format; subtitles always have timestamps
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = TranscriptFormat::Text)]
    format: TranscriptFormat,
    /// Condition each window on the text of the previous windows
    #[arg(long)]
    condition_on_previous: bool,
    /// Decode greedily and accept every result. By default a window with repetitive or uncertain
    /// text is decoded again at higher temperatures, and silence is skipped
    #[arg(long)]
    no_fallback: bool,
    /// Random seed for higher temperatures; -1 draws one
    #[arg(long, default_value_t = 0, value_name = "N", allow_negative_numbers = true, value_parser = super::seed)]
    seed: u64,
    #[command(flatten)]
    device: DeviceArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TaskName {
    /// Transcribe in the spoken language
    Transcribe,
    /// Translate to English
    Translate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TranscriptFormat {
    /// Text; with `--timestamps` one line per segment
    Text,
    /// SubRip subtitles
    Srt,
    /// WebVTT subtitles
    Vtt,
    /// Text, segments, tokens and probabilities
    Json,
}

#[derive(Serialize)]
struct TranscriptDocument<'a> {
    language: Option<&'a str>,
    /// In seconds.
    duration: f64,
    text: String,
    segments: Vec<TranscriptSegmentRow<'a>>,
}

#[derive(Serialize)]
struct TranscriptSegmentRow<'a> {
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

pub(crate) fn run(args: &TranscribeArgs) -> Result<CommandOutcome, CliError> {
    let device = args.device.open()?;
    let what = format!("cannot load the model {}", args.model.display());
    let files = open_files(&args.model, &what)?;
    check_family(&files, &what, &[ModelFamily::Speech])?;
    let spinner = progress::spinner("loading");
    let recognizer = files.recognizer(&device);
    let mut recognizer = recognizer.map_err(CliError::model(what))?;
    spinner.finish_and_clear();
    let options = options(args, &recognizer);

    interrupt::listen();
    let what = format!("cannot transcribe {}", args.audio.display());
    let spinner = progress::spinner("reading");
    let mut stopped = false;
    let info = audio::read(&args.audio, &mut |samples| {
        stopped = stopped || interrupted();
        // An interrupted window is discarded.
        if stopped {
            return Ok(());
        }
        recognizer.push(samples)
    });
    let info = info.map_err(CliError::model(what.clone()))?;
    spinner.finish_and_clear();
    if interrupted() {
        return Ok(CommandOutcome::Interrupted);
    }
    if info.damaged > 0 {
        let damaged = info.damaged;
        output::print_note(format_args!(
            "note: skipped {damaged} damaged packets of the audio file"
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
        true => Ok(CommandOutcome::Interrupted),
        false => Ok(CommandOutcome::Done),
    }
}

fn options(args: &TranscribeArgs, recognizer: &Recognizer) -> SpeechOptions {
    let task = match args.task {
        Some(TaskName::Translate) => Some(SpeechTask::Translate),
        Some(TaskName::Transcribe) => Some(SpeechTask::Transcribe),
        None => recognizer.default_task(),
    };
    let base = match args.no_fallback {
        true => SpeechOptions::default(),
        false => SpeechOptions::with_fallback(),
    };
    SpeechOptions {
        language: args.language.clone(),
        task,
        timestamps: args.timestamps
            || matches!(args.format, TranscriptFormat::Srt | TranscriptFormat::Vtt),
        condition_on_previous: args.condition_on_previous,
        seed: args.seed,
        ..base
    }
}

fn print(args: &TranscribeArgs, transcript: &Transcript) -> Result<(), CliError> {
    match args.format {
        TranscriptFormat::Json => output::json(&document(transcript)),
        TranscriptFormat::Text if args.timestamps => output::text(&transcript.lines()),
        TranscriptFormat::Text => output::text(&format!("{}\n", transcript.text().trim())),
        TranscriptFormat::Srt => output::text(&transcript.srt()),
        TranscriptFormat::Vtt => output::text(&transcript.vtt()),
    }
}

fn document(transcript: &Transcript) -> TranscriptDocument<'_> {
    let rows = transcript.segments.iter().enumerate();
    let rows = rows.map(|(id, segment)| TranscriptSegmentRow {
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
    TranscriptDocument {
        language: transcript.language.as_deref(),
        duration: transcript.seconds,
        text: transcript.text(),
        segments: rows.collect(),
    }
}

/// Rounds to milliseconds, which is finer than the resolution of timestamps.
fn rounded(seconds: f64) -> f64 {
    (seconds * 1000.0).round() / 1000.0
}
