//! `tercet bench`: tokens per second of a language model, over a prompt and one by one; milliseconds of a batch of other
//! models (`encoders`).

mod encoders;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::Serialize;
use tercet_models::{BatchGenerator, DecoderOptions, Happened, Sampling, Sequence};

use super::positive;
use super::writing::{Drafting, Drafts, Loading, Writer};
use crate::error::{CliError, Outcome};
use crate::{output, progress};

/// What runs before anything is measured: devices that rest, as while a model is loaded, are slow at first.
const WARM: Duration = Duration::from_millis(500);

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    loading: Loading,
    /// Tokens of the prompt, or of each text of an encoder
    #[arg(short, long, default_value_t = 512, value_name = "N", value_parser = positive)]
    prompt: usize,
    /// Tokens written one by one, from an empty cache, or for a window of a recording
    #[arg(short = 'n', long, default_value_t = 128, value_name = "N", value_parser = positive)]
    tokens: usize,
    /// How often each is measured, after half a second, and one time at least, that are not
    #[arg(short, long, default_value_t = 3, value_name = "N", value_parser = positive)]
    repetitions: usize,
    /// Also measure so many texts written side by side, all their tokens together; of encoders so many texts or pictures
    /// at once [default: 32 texts, 8 pictures]
    #[arg(short, long, value_name = "N", value_parser = positive)]
    batch: Option<usize>,
    /// Also measure this file, one text a line, through an encoder: from texts to vectors
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// `--draft` also measures tokens that are proposed and checked; how many are accepted is a matter of the text
    #[command(flatten)]
    drafting: Drafting,
    /// Print one JSON document instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Measured {
    test: &'static str,
    /// Of each sequence.
    tokens: usize,
    /// Side by side; the rate is that of all.
    sequences: usize,
    /// The mean over the repetitions.
    tokens_per_second: f64,
    /// The standard deviation over the repetitions; 0 of one.
    deviation: f64,
    seconds: Vec<f64>,
    /// What became of proposed tokens in all repetitions, where some were.
    #[serde(skip_serializing_if = "Option::is_none")]
    drafts: Option<Drafts>,
}

#[derive(Serialize)]
struct Report<'a> {
    model: String,
    device: &'a str,
    dtype: String,
    load_seconds: f64,
    tests: Vec<Measured>,
}

pub(crate) fn run(args: &Args) -> Result<Outcome, CliError> {
    if let Some(done) = encoders::run(args)? {
        return Ok(done);
    }
    if args.file.is_some() {
        let text = "--file is for encoders of texts; a language model is measured on tokens of its vocabulary";
        return Err(CliError::Usage(text.into()));
    }
    let started = Instant::now();
    let context = args.prompt.max(args.tokens.saturating_add(1));
    let mut writer = args.loading.load_with(|config| DecoderOptions {
        context,
        chunk: 512.min(context),
        sampling: Some(Sampling::GREEDY),
        logit_rows: args.drafting.rows().min(context),
        ..DecoderOptions::new(config)
    })?;
    writer.generator.skip_logits();
    writer.generator.run_ahead();
    let load_seconds = started.elapsed().as_secs_f64();
    let vocab = writer.vocab;
    // Any tokens will do; the same in every run.
    let prompt: Vec<u32> = (0..args.prompt)
        .map(|i| (i.wrapping_mul(2_654_435_761) % vocab) as u32)
        .collect();
    let spinner = progress::spinner("measuring");
    let mut tests = vec![
        measured(("prompt", 1), args.prompt, args.repetitions, || {
            feed(&mut writer, &prompt, 0)
        })?,
        measured(("decode", 1), args.tokens, args.repetitions, || {
            feed(&mut writer, &prompt[..1], args.tokens)
        })?,
    ];
    spinner.finish_and_clear();
    if args.drafting.is_asked() {
        tests.push(drafted(args, &mut writer, &prompt[..1])?);
    }
    writer.note();
    let (device, dtype) = (writer.device.name().to_string(), writer.dtype.clone());
    if let Some(sequences) = args.batch {
        // The memory of the model above is free before.
        drop(writer);
        let context = args.tokens.saturating_add(before(sequences) + 1);
        let mut batch = args.loading.load_batch(sequences, context)?;
        let spinner = progress::spinner("measuring");
        let test = ("decode", sequences);
        tests.push(measured(test, args.tokens, args.repetitions, || {
            together(&mut batch, &prompt, args.tokens)
        })?);
        spinner.finish_and_clear();
        if let Some(note) = batch.note() {
            output::note(format_args!("note: {note}"));
        }
    }
    let report = Report {
        model: args.loading.name(),
        device: &device,
        dtype,
        load_seconds,
        tests,
    };
    match args.json {
        true => output::json(&report)?,
        false => output::people(|out| table(out, &report))?,
    }
    Ok(Outcome::Done)
}

/// Seconds for a prompt from an empty cache or, where tokens are to be written behind it, for those.
fn feed(writer: &mut Writer, prompt: &[u32], written: usize) -> Result<f64, CliError> {
    let generator = &mut writer.generator;
    let failed = "cannot measure the model";
    generator.reset();
    let started = Instant::now();
    let first = generator.feed(prompt).map_err(CliError::model(failed))?;
    let mut next = first.next;
    if written == 0 {
        return Ok(started.elapsed().as_secs_f64());
    }
    let started = Instant::now();
    for _ in 0..written {
        let token = next.unwrap_or(0);
        let step = generator.feed(&[token]);
        next = step.map_err(CliError::model(failed))?.next;
    }
    Ok(started.elapsed().as_secs_f64())
}

/// As decoding, with tokens proposed.
fn drafted(args: &Args, writer: &mut Writer, prompt: &[u32]) -> Result<Measured, CliError> {
    (args.drafting).attach(writer, &args.loading, Sampling::GREEDY)?;
    let spinner = progress::spinner("measuring");
    let before = writer.generator.draft_counts();
    let mut measured = measured(("drafted", 1), args.tokens, args.repetitions, || {
        let failed = "cannot measure the model";
        let generator = &mut writer.generator;
        generator.reset();
        let first = generator.feed(prompt).map_err(CliError::model(failed))?;
        let mut next = first.next.unwrap_or(0);
        let mut left = args.tokens;
        let started = Instant::now();
        while left > 0 {
            let follow = generator.advance(next, left, &[]);
            let follow = follow.map_err(CliError::model(failed))?;
            left -= follow.len();
            next = follow.last().copied().unwrap_or(0);
        }
        Ok(started.elapsed().as_secs_f64())
    })?;
    spinner.finish_and_clear();
    let counts = before.zip(writer.generator.draft_counts());
    measured.drafts = counts.map(|(before, now)| Drafts::between(before, now));
    Ok(measured)
}

/// Tokens that a text has at most before all others are written as well: they begin one after the other.
fn before(slots: usize) -> usize {
    slots + 1
}

/// Seconds for so many tokens of as many texts as there are slots.
fn together(batch: &mut BatchGenerator, prompt: &[u32], tokens: usize) -> Result<f64, CliError> {
    let failed = "cannot measure the model";
    let slots = batch.slots();
    batch.reset();
    for slot in 0..slots {
        let first = prompt[slot % prompt.len()];
        let sequence = Sequence::new(vec![first], tokens + before(slots));
        batch.start(sequence).map_err(CliError::model(failed))?;
    }
    let mut begun = 0;
    while begun < slots {
        let events = batch.step().map_err(CliError::model(failed))?;
        let prompts = events.iter();
        begun += prompts
            .filter(|e| matches!(e.happened, Happened::Prompt(_)))
            .count();
    }
    let started = Instant::now();
    // A run need not write a token of each.
    let mut written = 0;
    while written < tokens * slots {
        let events = batch.step().map_err(CliError::model(failed))?;
        if events.is_empty() {
            break;
        }
        let tokens = events.iter();
        written += tokens
            .filter(|e| matches!(e.happened, Happened::Token(_)))
            .count();
    }
    Ok(started.elapsed().as_secs_f64())
}

/// Runs it for as long as devices need to leave their rest, and one time at least.
fn warm_up<T, E>(mut once: impl FnMut() -> Result<T, E>) -> Result<(), E> {
    let started = Instant::now();
    once()?;
    while started.elapsed() < WARM {
        once()?;
    }
    Ok(())
}

fn measured(
    (test, sequences): (&'static str, usize),
    tokens: usize,
    repetitions: usize,
    mut once: impl FnMut() -> Result<f64, CliError>,
) -> Result<Measured, CliError> {
    warm_up(&mut once)?;
    let seconds: Vec<f64> = (0..repetitions)
        .map(|_| once())
        .collect::<Result<_, CliError>>()?;
    let rates: Vec<f64> = seconds
        .iter()
        .map(|s| (tokens * sequences) as f64 / s.max(1e-9))
        .collect();
    let mean = rates.iter().sum::<f64>() / rates.len() as f64;
    let squares: f64 = rates.iter().map(|r| (r - mean).powi(2)).sum();
    let deviation = (squares / (rates.len().max(2) - 1) as f64).sqrt();
    Ok(Measured {
        test,
        tokens,
        sequences,
        tokens_per_second: mean,
        deviation,
        seconds,
        drafts: None,
    })
}

fn table(out: &mut dyn std::io::Write, report: &Report<'_>) -> Result<(), std::io::Error> {
    let Report {
        model,
        device,
        dtype,
        load_seconds: _,
        tests,
    } = report;
    writeln!(out, "| model | device | dtype | test | tokens/s |")?;
    writeln!(out, "|---|---|---|---|---:|")?;
    for t in tests {
        let (test, n, rate, d) = (t.test, t.tokens, t.tokens_per_second, t.deviation);
        let side_by_side = match t.sequences {
            1 => String::new(),
            n => format!(" x {n}"),
        };
        let drafts = t.drafts.map_or(String::new(), |d| format!(", {d}"));
        writeln!(
            out,
            "| {model} | {device} | {dtype} | {test} {n}{side_by_side}{drafts} | {rate:.2} ± {d:.2} |"
        )?;
    }
    Ok(())
}
