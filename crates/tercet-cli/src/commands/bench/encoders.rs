//! Benchmarks of text encoders, image encoders and speech recognition models: milliseconds per
//! batch.

use std::io::Write;
use std::time::{Duration, Instant};

use serde::Serialize;
use tercet::{DType, Executable, OutputSelection, Tensor, TensorType};
use tercet_models::speech::WindowTime;
use tercet_models::{
    Embedder, Encoder, EncoderOptions, EncoderOutput, Error, ModelError, ModelFamily, VisionOutput,
};

use super::super::generation::ModelSource;
use super::{BenchArgs, warm_up};
use crate::error::{CliError, CommandOutcome};
use crate::{output, progress};

/// Default batch sizes, for texts and for images.
const TEXTS: usize = 32;
const PICTURES: usize = 8;
/// Duration of a repetition, which consists of several runs.
const REPETITION: Duration = Duration::from_millis(200);

#[derive(Serialize)]
struct EncoderTiming {
    test: &'static str,
    /// Texts or images per batch; for speech recognition, seconds of audio.
    items: f64,
    /// Tokens per text; for speech recognition, generated tokens.
    tokens: Option<usize>,
    /// Mean over the repetitions.
    milliseconds: f64,
    /// Standard deviation over the repetitions; 0 for a single one.
    deviation: f64,
    items_per_second: f64,
    /// Time of one run in each repetition.
    seconds: Vec<f64>,
}

#[derive(Serialize)]
struct EncoderBenchReport<'a> {
    model: String,
    device: &'a str,
    dtype: String,
    load_seconds: f64,
    tests: Vec<EncoderTiming>,
}

/// Benchmarks an encoder or a speech recognition model. Returns `None` for a language model.
pub(super) fn run(args: &BenchArgs) -> Result<Option<CommandOutcome>, CliError> {
    let started = Instant::now();
    let Some(family) = args.loading.family_of_encoders()? else {
        return Ok(None);
    };
    let spinner = progress::spinner("measuring");
    let opened = args.loading.open()?;
    let measured = match family {
        ModelFamily::Vision => bench_images(args, &opened),
        ModelFamily::Speech => recordings(args, &opened),
        ModelFamily::Encoder
        | ModelFamily::Decoder
        | ModelFamily::VisionLanguage
        | ModelFamily::TextToText => texts(args, &opened),
    };
    let (loaded, tests) = measured.map_err(CliError::model("cannot measure the model"))?;
    spinner.finish_and_clear();
    let report = EncoderBenchReport {
        model: args.loading.name(),
        device: opened.device.name(),
        dtype: args.loading.dtype().to_string(),
        load_seconds: loaded.duration_since(started).as_secs_f64(),
        tests,
    };
    match args.json {
        true => output::json(&report)?,
        false => output::print_for_humans(|out| table(out, &report))?,
    }
    Ok(Some(CommandOutcome::Done))
}

type TimedTests = (Instant, Vec<EncoderTiming>);

/// Times a batch of tokens and, with `--file`, the texts of a file from text to vector.
fn texts(args: &BenchArgs, opened: &ModelSource) -> Result<TimedTests, Error> {
    let files = &opened.files;
    let said = files.sentence()?;
    let output = EncoderOutput::Embedding(said.modules);
    let mut encoder = files.encoder(&output, args.loading.dtype())?;
    encoder.matmul_precision = args.loading.matmul_precision();
    let batch = BenchTextBatch::new(args, &encoder, files.encoder_spec()?.vocab);
    let mut exe = encoder.compile(&opened.device, batch.texts, batch.tokens)?;
    let loaded = Instant::now();
    let mut tests = vec![batch.timed(args, exe.as_mut())?];
    drop(exe);
    if let Some(lines) = lines(args)? {
        let options = EncoderOptions {
            dtype: args.loading.dtype(),
            matmul_precision: args.loading.matmul_precision(),
            batch: args.batch,
            truncate: true,
            ..EncoderOptions::default()
        };
        let mut embedder = files.embedder(&opened.device, &options)?;
        tests.push(file(args, &mut embedder, &lines)?);
    }
    Ok((loaded, tests))
}

fn file(
    args: &BenchArgs,
    embedder: &mut Embedder,
    lines: &[String],
) -> Result<EncoderTiming, Error> {
    let mut once = || -> Result<(), Error> {
        embedder.embed(lines)?;
        Ok(())
    };
    timed(args, ("file", lines.len(), None), &mut once)
}

/// The lines of `--file`.
fn lines(args: &BenchArgs) -> Result<Option<Vec<String>>, Error> {
    let Some(path) = &args.file else {
        return Ok(None);
    };
    let refused = |reason: String| {
        let path = path.display();
        Error::from(ModelError::Unsupported(format!("{path}: {reason}")))
    };
    let text = std::fs::read_to_string(path).map_err(|e| refused(e.to_string()))?;
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let lines: Vec<String> = lines.map(str::to_string).collect();
    match lines.is_empty() {
        true => Err(refused("there are no texts".into())),
        false => Ok(Some(lines)),
    }
}

/// A batch of texts with equal token counts.
struct BenchTextBatch {
    texts: usize,
    tokens: usize,
    inputs: Vec<(String, Tensor)>,
}

impl BenchTextBatch {
    fn new(args: &BenchArgs, encoder: &Encoder, vocab: usize) -> BenchTextBatch {
        let texts = args.batch.unwrap_or(TEXTS);
        let tokens = args.prompt.min(encoder.context);
        let all = [texts, tokens];
        let numbers = |shape: &[usize], of: &dyn Fn(usize) -> f64| {
            let n = shape.iter().product();
            let values: Vec<f64> = (0..n).map(of).collect();
            Tensor::from_f64s(TensorType::new(DType::I32, shape), &values).ok()
        };
        let seen = || Tensor::from_bools(&all, &vec![true; texts * tokens]).ok();
        // Arbitrary tokens, the same in every run.
        let ids = |i: usize| (i.wrapping_mul(2_654_435_761) % vocab.max(1)) as f64;
        let inputs = [
            ("ids", numbers(&all, &ids)),
            ("type_ids", numbers(&all, &|_| 0.0)),
            ("mask", seen()),
            ("pooled", seen()),
            ("place", numbers(&[texts, 1], &|_| (tokens - 1) as f64)),
        ];
        let named = |(name, tensor): (&str, Option<Tensor>)| {
            let leaf = encoder.model.graph.leaf(name);
            leaf.and(tensor).map(|tensor| (name.to_string(), tensor))
        };
        BenchTextBatch {
            texts,
            tokens,
            inputs: inputs.into_iter().filter_map(named).collect(),
        }
    }

    fn timed(&self, args: &BenchArgs, exe: &mut dyn Executable) -> Result<EncoderTiming, Error> {
        let inputs = self.inputs.iter();
        let inputs: Vec<(&str, &Tensor)> = inputs.map(|(name, t)| (name.as_str(), t)).collect();
        let mut outputs = Vec::new();
        let mut once = || -> Result<(), Error> {
            let run = exe.run_into(&inputs, &mut outputs);
            Ok(run.map_err(ModelError::from)?)
        };
        timed(args, ("texts", self.texts, Some(self.tokens)), &mut once)
    }
}

/// Times a batch of pixels, in host memory and on the device, and texts if the model has a text
/// encoder.
fn bench_images(args: &BenchArgs, opened: &ModelSource) -> Result<TimedTests, Error> {
    if args.file.is_some() {
        let reason = "--file requires a text encoder; leave it out";
        return Err(ModelError::Unsupported(reason.into()).into());
    }
    let (files, dtype) = (&opened.files, args.loading.dtype());
    let model = files.vision_model(VisionOutput::Features, dtype)?;
    let batch = args.batch.unwrap_or(PICTURES);
    let mut exe = model.compile(&opened.device, batch)?;
    let loaded = Instant::now();
    let [height, width] = model.size;
    let failed = |e: tercet::TensorError| ModelError::Unsupported(format!("pictures: {e}"));
    let ty = TensorType::new(DType::F32, &[batch, 3, height, width]);
    let mut pixels = Tensor::zeros(ty).map_err(failed)?;
    let numbers = pixels.as_slice_mut::<f32>().map_err(failed)?;
    for (at, x) in numbers.iter_mut().enumerate() {
        *x = (at.wrapping_mul(2_654_435_761) % 509) as f32 / 254.0 - 1.0;
    }
    let mut outputs = Vec::new();
    let mut run = |exe: &mut dyn Executable, inputs: &[(&str, &Tensor)]| -> Result<(), Error> {
        exe.submit(inputs, OutputSelection::All)
            .map_err(ModelError::from)?;
        Ok(exe.wait(&mut outputs).map_err(ModelError::from)?)
    };
    let mut tests = Vec::new();
    {
        // A GPU skips the upload of an input that equals that of the previous run, so two images
        // alternate.
        let mut other = pixels.clone();
        other.as_slice_mut::<f32>().map_err(failed)?[0] = 0.0;
        let mut turn = false;
        let mut once = || -> Result<(), Error> {
            turn = !turn;
            let now = if turn { &pixels } else { &other };
            run(exe.as_mut(), &[("pixels", now)])
        };
        tests.push(timed(args, ("pictures", batch, None), &mut once)?);
    }
    let on_device = exe.upload(&pixels).map_err(ModelError::from)?;
    exe.bind("pixels", &on_device).map_err(ModelError::from)?;
    let test = ("pictures on the device", batch, None);
    tests.push(timed(args, test, &mut || run(exe.as_mut(), &[]))?);
    drop(exe);
    let spec = files.vision_spec()?;
    if let Some(text) = &spec.text {
        let encoder = Encoder::from_text_tower(&spec, &files.weights(), dtype)?;
        let batch = BenchTextBatch::new(args, &encoder, text.spec.vocab);
        let mut exe = encoder.compile(&opened.device, batch.texts, batch.tokens)?;
        tests.push(batch.timed(args, exe.as_mut())?);
    }
    Ok((loaded, tests))
}

/// Times one audio window: feature extraction, encoder, decoder, and all together.
fn recordings(args: &BenchArgs, opened: &ModelSource) -> Result<TimedTests, Error> {
    let refused = match (&args.file, args.batch, args.loading.dtype()) {
        (Some(_), _, _) => Some("--file requires a text encoder; leave it out"),
        (None, Some(_), _) => {
            Some("a speech recognition model processes one window per run; leave out --batch")
        }
        (None, None, DType::F32) => None,
        (None, None, _) => Some("speech recognition models run in f32; leave out --dtype"),
    };
    if let Some(refused) = refused {
        return Err(ModelError::Unsupported(refused.into()).into());
    }
    let mut recognizer = opened.files.recognizer(&opened.device)?;
    let loaded = Instant::now();
    let mut once = || recognizer.time_window(args.tokens);
    warm_up(&mut once)?;
    let times: Vec<WindowTime> = (0..args.repetitions)
        .map(|_| once())
        .collect::<Result<_, _>>()?;
    let of = |test, tokens, seconds: &dyn Fn(&WindowTime) -> f64| {
        let items = times.first().map_or(0.0, |time| time.recording);
        summed((test, items, tokens), times.iter().map(seconds).collect())
    };
    let tokens = times.first().map(|time| time.tokens);
    let tests = vec![
        of("features", None, &|time| time.features),
        of("encoder", None, &|time| time.encoder),
        of("text", tokens, &|time| time.text),
        of("recording", tokens, &WindowTime::total),
    ];
    Ok((loaded, tests))
}

/// Times `once`, which processes `items` items of `tokens` tokens each.
fn timed(
    args: &BenchArgs,
    (test, items, tokens): (&'static str, usize, Option<usize>),
    once: &mut dyn FnMut() -> Result<(), Error>,
) -> Result<EncoderTiming, Error> {
    warm_up(&mut *once)?;
    let mut seconds = Vec::new();
    for _ in 0..args.repetitions {
        let started = Instant::now();
        let mut runs = 0u32;
        while runs == 0 || started.elapsed() < REPETITION {
            once()?;
            runs += 1;
        }
        seconds.push(started.elapsed().as_secs_f64() / f64::from(runs));
    }
    Ok(summed((test, items as f64, tokens), seconds))
}

fn summed(
    (test, items, tokens): (&'static str, f64, Option<usize>),
    seconds: Vec<f64>,
) -> EncoderTiming {
    let n = seconds.len().max(1) as f64;
    let mean = seconds.iter().sum::<f64>() / n;
    let squares: f64 = seconds.iter().map(|s| (s - mean).powi(2)).sum();
    let deviation = (squares / (n - 1.0).max(1.0)).sqrt();
    EncoderTiming {
        test,
        items,
        tokens,
        milliseconds: mean * 1e3,
        deviation: deviation * 1e3,
        items_per_second: items / mean.max(1e-9),
        seconds,
    }
}

fn table(out: &mut dyn Write, report: &EncoderBenchReport<'_>) -> Result<(), std::io::Error> {
    let EncoderBenchReport {
        model,
        device,
        dtype,
        load_seconds: _,
        tests,
    } = report;
    writeln!(out, "| model | device | dtype | test | ms | items/s |")?;
    writeln!(out, "|---|---|---|---|---:|---:|")?;
    for t in tests {
        let (test, items, ms, d, rate) = (
            t.test,
            t.items,
            t.milliseconds,
            t.deviation,
            t.items_per_second,
        );
        let tokens = t.tokens.map_or(String::new(), |n| format!(" x {n} tokens"));
        writeln!(
            out,
            "| {model} | {device} | {dtype} | {test} {items}{tokens} | {ms:.2} ± {d:.2} | {rate:.1} |"
        )?;
    }
    Ok(())
}
