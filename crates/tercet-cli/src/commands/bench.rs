//! `tercet bench`: prefill and decode throughput of a language model in tokens per second; latency
//! per batch of other models (`encoders`); throughput and latency through HTTP (`serve`).

mod encoders;
#[cfg(feature = "serve")]
mod serve;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::Serialize;
use tercet_models::{BatchEventKind, BatchGenerator, Sampling, Sequence};

use super::generation::{ModelArgs, SpeculationStats, SpeculativeArgs, TextGenerator};
use super::positive;
use crate::error::{CliError, CommandOutcome};
use crate::{output, progress};

/// Minimum warm-up time. Idle devices, for example after a model was loaded, are slow at first.
const WARM: Duration = Duration::from_millis(500);

#[derive(clap::Args)]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    loading: ModelArgs,
    /// Prompt tokens, or tokens per text of an encoder
    #[arg(short, long, visible_alias = "n-prompt", default_value_t = 512, value_name = "N", value_parser = positive)]
    prompt: usize,
    /// Tokens to decode, or for one audio window
    #[arg(short = 'n', long, visible_aliases = ["n-predict", "n-gen"], default_value_t = 128, value_name = "N", value_parser = positive)]
    tokens: usize,
    /// Tokens in the cache before the prompt and before decoding
    #[arg(
        short,
        long,
        visible_alias = "n-depth",
        default_value_t = 0,
        value_name = "N"
    )]
    depth: usize,
    /// Measured repetitions, after a warm-up of half a second and at least one run; with --serve,
    /// requests of each client
    #[arg(short, long, default_value_t = 3, value_name = "N", value_parser = positive)]
    repetitions: usize,
    /// Also measure N sequences decoded in parallel, as total throughput; for encoders, texts or
    /// images per batch [default: 32 texts, 8 images]
    #[arg(short, long, value_name = "N", value_parser = positive)]
    batch: Option<usize>,
    /// Measure requests to a server of the model on this machine instead, with these numbers of
    /// clients; each request has --prompt tokens and generates --tokens
    #[cfg(feature = "serve")]
    #[arg(long, value_name = "CLIENTS", value_delimiter = ',', value_parser = clients)]
    serve: Vec<usize>,
    /// With --serve, sequences that the server generates in parallel
    #[cfg(feature = "serve")]
    #[arg(long, visible_alias = "slots", default_value_t = 4, value_name = "N", value_parser = positive, requires = "serve")]
    parallel: usize,
    /// Also measure an encoder on the texts of this file, one per line: from text to vector
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// `--draft` also measures speculative decoding; the acceptance rate depends on the text
    #[command(flatten)]
    drafting: SpeculativeArgs,
    /// Print one JSON document instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct GenerationMeasurement {
    test: &'static str,
    /// Tokens per sequence.
    tokens: usize,
    /// Tokens in the cache before.
    depth: usize,
    /// Sequences decoded in parallel; the rate is their total.
    sequences: usize,
    /// Mean over the repetitions.
    tokens_per_second: f64,
    /// Standard deviation over the repetitions; 0 for a single one.
    deviation: f64,
    seconds: Vec<f64>,
    /// Counts of proposed and accepted draft tokens in all repetitions, if decoding is speculative.
    #[serde(skip_serializing_if = "Option::is_none")]
    drafts: Option<SpeculationStats>,
}

#[derive(Serialize)]
struct BenchReport<'a> {
    model: String,
    device: &'a str,
    dtype: String,
    load_seconds: f64,
    tests: Vec<GenerationMeasurement>,
}

pub(crate) fn run(args: &BenchArgs) -> Result<CommandOutcome, CliError> {
    if let Some(done) = encoders::run(args)? {
        return Ok(done);
    }
    if args.file.is_some() {
        let text = "--file requires a text encoder; a language model is measured on tokens of its vocabulary";
        return Err(CliError::Usage(text.into()));
    }
    #[cfg(feature = "serve")]
    if !args.serve.is_empty() {
        if args.drafting.is_enabled() || args.batch.is_some() || args.depth > 0 {
            let text = "--serve measures the server alone; leave out --draft, --batch and --depth";
            return Err(CliError::Usage(text.into()));
        }
        return serve::run(args);
    }
    let started = Instant::now();
    let context = args.prompt.max(args.tokens.saturating_add(1));
    let context = context.saturating_add(args.depth);
    let rows = args.drafting.rows();
    let load = args.loading.load_with(|_, options| {
        let options = options.context(context).chunk(512);
        options.logit_rows(rows)
    });
    let mut writer = load?;
    let load_seconds = started.elapsed().as_secs_f64();
    let vocab = writer.model.vocab();
    // Arbitrary tokens, the same in every run.
    let prompt: Vec<u32> = (0..args.depth.saturating_add(args.prompt))
        .map(|i| (i.wrapping_mul(2_654_435_761) % vocab) as u32)
        .collect();
    let spinner = progress::spinner("measuring");
    let mut tests = vec![
        measure(("prompt", 1), args, args.prompt, || {
            feed(&mut writer, (&prompt, args.depth), 0)
        })?,
        measure(("decode", 1), args, args.tokens, || {
            feed(
                &mut writer,
                (&prompt[..=args.depth], args.depth),
                args.tokens,
            )
        })?,
    ];
    spinner.finish_and_clear();
    if args.drafting.is_enabled() {
        tests.push(measure_speculative(
            args,
            &mut writer,
            &prompt[..=args.depth],
        )?);
    }
    writer.report_fallback();
    let (device, dtype) = (
        writer.model.device().name().to_string(),
        writer.dtype.clone(),
    );
    if let Some(sequences) = args.batch {
        // Free the memory of this model before the next one is loaded.
        drop(writer);
        let depth = args.depth;
        let context =
            (args.tokens.saturating_add(depth)).saturating_add(before(sequences, depth) + 1);
        let mut batch = args.loading.load_batch(sequences, context)?;
        let spinner = progress::spinner("measuring");
        let test = ("decode", sequences);
        tests.push(measure(test, args, args.tokens, || {
            time_batch(&mut batch, (&prompt, depth), args.tokens)
        })?);
        spinner.finish_and_clear();
        if let Some(note) = batch.fallback_message() {
            output::print_note(format_args!("note: {note}"));
        }
    }
    let report = BenchReport {
        model: args.loading.name(),
        device: &device,
        dtype,
        load_seconds,
        tests,
    };
    match args.json {
        true => output::json(&report)?,
        false => output::print_for_humans(|out| table(out, &report))?,
    }
    Ok(CommandOutcome::Done)
}

/// Seconds to process the tokens of a prompt after the first `depth`. If `generated` is not 0, the
/// seconds to generate this number of tokens after the prompt instead.
fn feed(
    writer: &mut TextGenerator,
    (prompt, depth): (&[u32], usize),
    generated: usize,
) -> Result<f64, CliError> {
    let generator = writer.generator();
    let failed = "cannot measure the model";
    generator.reset();
    let (before, rest) = prompt.split_at(depth);
    if !before.is_empty() {
        generator.forward(before).map_err(CliError::model(failed))?;
    }
    let started = Instant::now();
    let first = generator.forward(rest).map_err(CliError::model(failed))?;
    let mut next = first.next;
    if generated == 0 {
        return Ok(started.elapsed().as_secs_f64());
    }
    let started = Instant::now();
    for _ in 0..generated {
        let token = next.unwrap_or(0);
        let step = generator.forward(&[token]);
        next = step.map_err(CliError::model(failed))?.next;
    }
    Ok(started.elapsed().as_secs_f64())
}

/// A number of clients.
#[cfg(feature = "serve")]
fn clients(text: &str) -> Result<usize, String> {
    let most = serve::MAX_CLIENTS;
    let count = text.parse().ok().filter(|n| (1..=most).contains(n));
    count
        .ok_or_else(|| format!("expected numbers of clients from 1 to {most}, separated by commas"))
}

/// Measures decoding with draft tokens.
fn measure_speculative(
    args: &BenchArgs,
    writer: &mut TextGenerator,
    prompt: &[u32],
) -> Result<GenerationMeasurement, CliError> {
    (args.drafting).attach(writer, &args.loading, Sampling::GREEDY)?;
    let spinner = progress::spinner("measuring");
    let before = writer.generator().draft_counts();
    let mut measured = measure(("drafted", 1), args, args.tokens, || {
        let failed = "cannot measure the model";
        let generator = writer.generator();
        generator.reset();
        let first = generator.forward(prompt).map_err(CliError::model(failed))?;
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
    let counts = before.zip(writer.generator().draft_counts());
    measured.drafts = counts.map(|(before, now)| SpeculationStats::since(before, now));
    Ok(measured)
}

/// Maximum number of tokens that one sequence can generate before all sequences have started. The
/// sequences start one after the other, and each run processes a part of one prompt.
fn before(slots: usize, depth: usize) -> usize {
    slots * (depth / MIN_CHUNK + 1) + 1
}

/// Minimum tokens of a prompt that a run processes.
const MIN_CHUNK: usize = 64;

/// Seconds to generate `tokens` tokens in each slot of the batch.
fn time_batch(
    batch: &mut BatchGenerator,
    (prompt, depth): (&[u32], usize),
    tokens: usize,
) -> Result<f64, CliError> {
    let failed = "cannot measure the model";
    let slots = batch.slots();
    batch.reset();
    for slot in 0..slots {
        let own = prompt.iter().cycle().skip(slot % prompt.len());
        let own = own.take(depth + 1).copied().collect();
        let sequence = Sequence::new(own, tokens + before(slots, depth));
        batch.start(sequence).map_err(CliError::model(failed))?;
    }
    let mut begun = 0;
    while begun < slots {
        let events = batch.step().map_err(CliError::model(failed))?;
        let prompts = events.iter();
        begun += prompts
            .filter(|e| matches!(e.kind, BatchEventKind::Prompt(_)))
            .count();
    }
    let started = Instant::now();
    // A run does not always generate a token for each sequence.
    let mut written = 0;
    while written < tokens * slots {
        let events = batch.step().map_err(CliError::model(failed))?;
        if events.is_empty() {
            break;
        }
        let tokens = events.iter();
        written += tokens
            .filter(|e| matches!(e.kind, BatchEventKind::Token(_)))
            .count();
    }
    Ok(started.elapsed().as_secs_f64())
}

/// Repeats `once` for the warm-up time, and at least once.
fn warm_up<T, E>(mut once: impl FnMut() -> Result<T, E>) -> Result<(), E> {
    let started = Instant::now();
    once()?;
    while started.elapsed() < WARM {
        once()?;
    }
    Ok(())
}

fn measure(
    (test, sequences): (&'static str, usize),
    args: &BenchArgs,
    tokens: usize,
    mut once: impl FnMut() -> Result<f64, CliError>,
) -> Result<GenerationMeasurement, CliError> {
    warm_up(&mut once)?;
    let seconds: Vec<f64> = (0..args.repetitions)
        .map(|_| once())
        .collect::<Result<_, CliError>>()?;
    let rates: Vec<f64> = seconds
        .iter()
        .map(|s| (tokens * sequences) as f64 / s.max(1e-9))
        .collect();
    let mean = rates.iter().sum::<f64>() / rates.len() as f64;
    let squares: f64 = rates.iter().map(|r| (r - mean).powi(2)).sum();
    let deviation = (squares / (rates.len().max(2) - 1) as f64).sqrt();
    Ok(GenerationMeasurement {
        test,
        tokens,
        depth: args.depth,
        sequences,
        tokens_per_second: mean,
        deviation,
        seconds,
        drafts: None,
    })
}

fn table(out: &mut dyn std::io::Write, report: &BenchReport<'_>) -> Result<(), std::io::Error> {
    let BenchReport {
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
        let depth = match t.depth {
            0 => String::new(),
            n => format!(" at depth {n}"),
        };
        let drafts = t.drafts.map_or(String::new(), |d| format!(", {d}"));
        writeln!(
            out,
            "| {model} | {device} | {dtype} | {test} {n}{depth}{side_by_side}{drafts} | {rate:.2} ± {d:.2} |"
        )?;
    }
    Ok(())
}
