//! Encoders of texts and pictures, and speech recognizers: milliseconds of what goes through them at once.

use std::io::Write;
use std::time::{Duration, Instant};

use serde::Serialize;
use tercet::{DType, Executable, Tensor, TensorType, Wanted};
use tercet_models::speech::WindowTime;
use tercet_models::{
    Embedder, Encoder, EncoderOptions, EncoderOutput, Error, Family, ModelError, VisionOutput,
};

use super::super::writing::Opened;
use super::{Args, warm_up};
use crate::error::{CliError, Outcome};
use crate::{output, progress};

/// Texts and pictures that run at once where nothing is said.
const TEXTS: usize = 32;
const PICTURES: usize = 8;
/// A repetition is as many runs as fill this.
const REPETITION: Duration = Duration::from_millis(200);

#[derive(Serialize)]
struct Timed {
    test: &'static str,
    /// Texts or pictures; seconds of a recording.
    items: f64,
    /// Of each text; those that were written, of a recording.
    tokens: Option<usize>,
    /// The mean over the repetitions.
    milliseconds: f64,
    /// The standard deviation over the repetitions; 0 of one.
    deviation: f64,
    items_per_second: f64,
    /// A run of each repetition.
    seconds: Vec<f64>,
}

#[derive(Serialize)]
struct Report<'a> {
    model: String,
    device: &'a str,
    dtype: String,
    load_seconds: f64,
    tests: Vec<Timed>,
}

/// Measures a model that is no language model; `None` for one.
pub(super) fn run(args: &Args) -> Result<Option<Outcome>, CliError> {
    let started = Instant::now();
    let Some(family) = args.loading.family_of_encoders()? else {
        return Ok(None);
    };
    let spinner = progress::spinner("measuring");
    let opened = args.loading.open()?;
    let measured = match family {
        Family::Vision => pictures(args, &opened),
        Family::Speech => recordings(args, &opened),
        Family::Encoder | Family::Decoder | Family::VisionLanguage | Family::TextToText => {
            texts(args, &opened)
        }
    };
    let (loaded, tests) = measured.map_err(CliError::model("cannot measure the model"))?;
    spinner.finish_and_clear();
    let report = Report {
        model: args.loading.name(),
        device: opened.device.name(),
        dtype: args.loading.dtype().to_string(),
        load_seconds: loaded.duration_since(started).as_secs_f64(),
        tests,
    };
    match args.json {
        true => output::json(&report)?,
        false => output::people(|out| table(out, &report))?,
    }
    Ok(Some(Outcome::Done))
}

type Tests = (Instant, Vec<Timed>);

/// Tokens of a batch, and the texts of a file from text to vector.
fn texts(args: &Args, opened: &Opened) -> Result<Tests, Error> {
    let files = &opened.files;
    let said = files.sentence()?;
    let output = EncoderOutput::Embedding(said.modules);
    let mut encoder = files.encoder(&output, args.loading.dtype())?;
    encoder.products = args.loading.products();
    let batch = Batch::of(args, &encoder, files.encoder_spec()?.vocab);
    let mut exe = encoder.compile(&opened.device, batch.texts, batch.tokens)?;
    let loaded = Instant::now();
    let mut tests = vec![batch.timed(args, exe.as_mut())?];
    drop(exe);
    if let Some(lines) = lines(args)? {
        let options = EncoderOptions {
            dtype: args.loading.dtype(),
            products: args.loading.products(),
            batch: args.batch,
            cut: true,
            ..EncoderOptions::default()
        };
        let mut embedder = files.embedder(&opened.device, &options)?;
        tests.push(file(args, &mut embedder, &lines)?);
    }
    Ok((loaded, tests))
}

fn file(args: &Args, embedder: &mut Embedder, lines: &[String]) -> Result<Timed, Error> {
    let mut once = || -> Result<(), Error> {
        embedder.embed(lines, &mut |_| true)?;
        Ok(())
    };
    timed(args, ("file", lines.len(), None), &mut once)
}

/// The lines of `--file`.
fn lines(args: &Args) -> Result<Option<Vec<String>>, Error> {
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

/// Texts of as many tokens each.
struct Batch {
    texts: usize,
    tokens: usize,
    inputs: Vec<(String, Tensor)>,
}

impl Batch {
    fn of(args: &Args, encoder: &Encoder, vocab: usize) -> Batch {
        let texts = args.batch.unwrap_or(TEXTS);
        let tokens = args.prompt.min(encoder.context);
        let all = [texts, tokens];
        let numbers = |shape: &[usize], of: &dyn Fn(usize) -> f64| {
            let n = shape.iter().product();
            let values: Vec<f64> = (0..n).map(of).collect();
            Tensor::from_f64s(TensorType::new(DType::I32, shape), &values).ok()
        };
        let seen = || Tensor::from_bools(&all, &vec![true; texts * tokens]).ok();
        // Any tokens will do; the same in every run.
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
        Batch {
            texts,
            tokens,
            inputs: inputs.into_iter().filter_map(named).collect(),
        }
    }

    fn timed(&self, args: &Args, exe: &mut dyn Executable) -> Result<Timed, Error> {
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

/// Pixels of a batch, in memory and on the device, and texts where the model reads some.
fn pictures(args: &Args, opened: &Opened) -> Result<Tests, Error> {
    if args.file.is_some() {
        let reason = "--file is for encoders of texts alone";
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
        exe.submit(inputs, Wanted::All).map_err(ModelError::from)?;
        Ok(exe.wait(&mut outputs).map_err(ModelError::from)?)
    };
    let mut tests = Vec::new();
    {
        // A GPU keeps what is the same as in the run before: two that take turns are sent.
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
        let encoder = Encoder::of_texts(&spec, &files.weights(), dtype)?;
        let batch = Batch::of(args, &encoder, text.spec.vocab);
        let mut exe = encoder.compile(&opened.device, batch.texts, batch.tokens)?;
        tests.push(batch.timed(args, exe.as_mut())?);
    }
    Ok((loaded, tests))
}

/// A window of a recording: its features, its encoder, its text, and all of them.
fn recordings(args: &Args, opened: &Opened) -> Result<Tests, Error> {
    let refused = match (&args.file, args.batch, args.loading.dtype()) {
        (Some(_), _, _) => Some("--file is for encoders of texts"),
        (None, Some(_), _) => {
            Some("a speech recognizer hears one window at a time; leave out --batch")
        }
        (None, None, DType::F32) => None,
        (None, None, _) => Some("speech recognizers are computed in f32; leave out --dtype"),
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

/// The time of `once` over so many items, each of so many tokens.
fn timed(
    args: &Args,
    (test, items, tokens): (&'static str, usize, Option<usize>),
    once: &mut dyn FnMut() -> Result<(), Error>,
) -> Result<Timed, Error> {
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

fn summed((test, items, tokens): (&'static str, f64, Option<usize>), seconds: Vec<f64>) -> Timed {
    let n = seconds.len().max(1) as f64;
    let mean = seconds.iter().sum::<f64>() / n;
    let squares: f64 = seconds.iter().map(|s| (s - mean).powi(2)).sum();
    let deviation = (squares / (n - 1.0).max(1.0)).sqrt();
    Timed {
        test,
        items,
        tokens,
        milliseconds: mean * 1e3,
        deviation: deviation * 1e3,
        items_per_second: items / mean.max(1e-9),
        seconds,
    }
}

fn table(out: &mut dyn Write, report: &Report<'_>) -> Result<(), std::io::Error> {
    let Report {
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
