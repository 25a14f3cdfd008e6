//! Tests of speech recognizers against transformers on the same recording (`tests/data/speech`),
//! with tiny models and random weights. The tests compare features, encoder output and decoder
//! logits, and the tokens and segments of `generate` exactly.

mod raw;

use std::path::{Path, PathBuf};

use libtest_mimic::Failed;
use serde_json::Value as Json;
use tercet::{Device, Executable, Tensor, one_line};
use tercet_models::speech::{Recognizer, SpeechOptions, SpeechTask, Transcript, audio};
use tercet_models::{ModelFiles, SpeechModel};

use super::encoders::{BoxError, json, near, numbers};
use crate::{SuiteTest, data, executors};

/// The samples of the test recording.
fn samples() -> Result<Vec<f32>, BoxError> {
    let mut samples = Vec::new();
    audio::read(data("speech").join("speech.flac"), &mut |part| {
        samples.extend_from_slice(part);
        Ok(())
    })?;
    Ok(samples)
}

fn tokens(json: &Json) -> Vec<u32> {
    numbers(json).iter().map(|x| *x as u32).collect()
}

/// The logits of row `first` for a prompt: all tokens except the last at once, then the last one.
fn logits_in_parts(
    decoder: &mut dyn Executable,
    prompt: &Json,
    (names, heard): (&[String], &[Tensor]),
    first: i32,
) -> Result<Vec<Vec<f64>>, BoxError> {
    let prompt: Vec<i32> = tokens(prompt).iter().map(|t| *t as i32).collect();
    let n = prompt.len() - 1;
    let mut logits = Vec::new();
    for (part, start, row) in [(&prompt[..n], 0, first), (&prompt[n..], n as i32, 0)] {
        let len = part.len() as i32;
        let positions: Vec<i32> = (start..start + len).collect();
        let own = [
            ("tokens", Tensor::from_slice(&[part.len()], part)?),
            ("positions", Tensor::from_slice(&[part.len()], &positions)?),
            ("start", Tensor::from_slice(&[4], &[0, start, 0, 0])?),
            ("kv_len", Tensor::scalar(start + len)),
            ("rows", Tensor::from_slice(&[1], &[row])?),
        ];
        let own = own.iter().map(|(name, tensor)| (*name, tensor));
        let cross = names.iter().zip(heard).skip(1);
        let cross = cross.map(|(name, tensor)| (name.as_str(), tensor));
        let inputs: Vec<(&str, &Tensor)> = own.chain(cross).collect();
        logits.push(decoder.run(&inputs)?.remove(0).to_f64s());
    }
    Ok(logits)
}

/// Checks the features, hidden states and logits of the first window of the recording.
fn check_graphs(
    speech: &SpeechModel,
    device: &Device,
    (samples, reference): (&[f32], &Json),
) -> Result<(), BoxError> {
    let [mut features, mut encoder, mut decoder] = speech.compile(device)?;
    let spec = &speech.spec;
    let (frames, mels) = (spec.frames(), spec.mels);
    let window = windowed(samples, frames, &mut |part| {
        Ok(features.run(&[("samples", part)])?.remove(0))
    })?;
    let column = |frame: usize| -> Vec<f64> {
        let band = |band: usize| f64::from(window[band * frames + frame]);
        (0..mels).map(band).collect()
    };
    let rows = |name: &str| reference[name].as_array().into_iter().flatten();
    for (frame, want) in tokens(&reference["frames"]).iter().zip(rows("features")) {
        let got = column(*frame as usize);
        let want = numbers(want);
        let off = got.iter().zip(&want).map(|(a, b)| (a - b).abs());
        let worst = off.fold(0.0, f64::max);
        if got.len() != want.len() || worst > 2e-4 {
            return Err(format!("features of frame {frame} differ by {worst:.1e}").into());
        }
    }
    let window = Tensor::from_slice(&[1, mels, frames], &window)?;
    let heard = encoder.run(&[("features", &window)])?;
    let names: Vec<String> = (encoder.signature().outputs.iter())
        .map(|output| output.name.clone())
        .collect();
    let hidden = heard[0].to_f64s();
    for (at, want) in tokens(&reference["positions"]).iter().zip(rows("hidden")) {
        let got = &hidden[*at as usize * spec.width..][..spec.width];
        near(&format!("position {at}"), got, &numbers(want))?;
    }
    let logits = logits_in_parts(&mut *decoder, &reference["prompt"], (&names, &heard), 0)?;
    for (got, want) in logits.iter().zip(rows("logits")) {
        near("logits", got, &numbers(want))?;
    }
    Ok(())
}

/// The features of a recording as the library computes them, `[mels, frames]`: padded with silence,
/// reflected at both ends.
fn windowed(
    samples: &[f32],
    frames: usize,
    run: &mut dyn FnMut(&Tensor) -> Result<Tensor, BoxError>,
) -> Result<Vec<f32>, BoxError> {
    let mut padded = samples.to_vec();
    padded.resize(160 * frames, 0.0);
    let n = padded.len();
    let reflected: Vec<f32> = (1..=200).rev().map(|i| padded[i]).collect();
    let end: Vec<f32> = (2..=201).map(|i| padded[n - i]).collect();
    let mut all = [reflected, padded, end].concat();
    let mut logs = Vec::new();
    let mut mels = 0;
    for from in (0..frames).step_by(1000) {
        let begin = 160 * from;
        all.resize(all.len().max(begin + 160 * 999 + 400), 0.0);
        let part = Tensor::from_slice(&[160 * 999 + 400], &all[begin..][..160 * 999 + 400])?;
        let out = run(&part)?;
        mels = out.shape()[1];
        let kept = (frames - from).min(1000) * mels;
        logs.extend_from_slice(&out.as_slice::<f32>()?[..kept]);
    }
    let top = logs.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut window = vec![0.0; logs.len()];
    for (frame, row) in logs.chunks_exact(mels).enumerate() {
        for (band, log) in row.iter().enumerate() {
            window[band * frames + frame] = (log.max(top - 8.0) + 4.0) / 4.0;
        }
    }
    Ok(window)
}

/// The options of a `generate` run in the reference file.
fn options(json: &Json) -> Result<SpeechOptions, BoxError> {
    let known = [
        "language",
        "task",
        "return_timestamps",
        "condition_on_prev_tokens",
        "temperature",
        "logprob_threshold",
        "no_speech_threshold",
    ];
    let fields = json.as_object().ok_or("options")?;
    if let Some(name) = fields.keys().find(|name| !known.contains(&name.as_str())) {
        return Err(format!("option {name}").into());
    }
    let flag = |name: &str| json[name].as_bool().unwrap_or(false);
    Ok(SpeechOptions {
        language: json["language"].as_str().map(str::to_string),
        task: match json["task"].as_str() {
            Some("translate") => Some(SpeechTask::Translate),
            Some("transcribe") => Some(SpeechTask::Transcribe),
            Some(task) => return Err(format!("task {task}").into()),
            None => None,
        },
        timestamps: flag("return_timestamps"),
        condition_on_previous: flag("condition_on_prev_tokens"),
        temperatures: vec![json["temperature"].as_f64().unwrap_or(0.0)],
        min_log_probability: json["logprob_threshold"].as_f64(),
        max_no_speech_probability: json["no_speech_threshold"].as_f64(),
        ..SpeechOptions::default()
    })
}

fn same(got: &Transcript, want: &Json) -> Result<(), BoxError> {
    let wanted = want["segments"].as_array().ok_or("segments")?;
    for (at, (got, want)) in got.segments.iter().zip(wanted).enumerate() {
        let written = tokens(&want["tokens"]);
        if got.tokens != written {
            let (got, want) = (&got.tokens, written);
            return Err(format!("segment {at}: found tokens\n{got:?}, expected\n{want:?}").into());
        }
        for (name, time) in [("start", got.start), ("end", got.end)] {
            let want = want[name].as_f64().ok_or("time")?;
            if (time - want).abs() > 0.006 {
                return Err(format!("segment {at}: {name} at {time} s, expected {want}").into());
            }
        }
    }
    if got.segments.len() != wanted.len() {
        let (got, want) = (got.segments.len(), wanted.len());
        return Err(format!("found {got} segments, expected {want}").into());
    }
    let want = want["text"].as_str().ok_or("text")?;
    match got.text() == want {
        true => Ok(()),
        false => Err(format!("found text {:?}, expected {want:?}", got.text()).into()),
    }
}

/// Checks one `generate` run of the reference. The recording arrives in chunks of different sizes.
fn check_run(recognizer: &mut Recognizer, samples: &[f32], run: &Json) -> Result<(), BoxError> {
    let repeat = run["repeat"].as_u64().ok_or("repeat")? as usize;
    let all = samples.repeat(repeat);
    for (at, piece) in all.chunks(7777).enumerate() {
        let (first, rest) = piece.split_at((at % 50).min(piece.len()));
        recognizer.push(first)?;
        recognizer.push(rest)?;
    }
    let options = options(&run["options"])?;
    let mut heard = 0;
    let transcript = recognizer.finish(&options, &mut |progress| {
        heard += progress.segments.len();
        true
    })?;
    same(&transcript, run)?;
    match heard == transcript.segments.len() {
        true => Ok(()),
        false => Err("progress did not report all segments".into()),
    }
}

/// Selects the runs of a reference to test, by index and number of runs.
type RunFilter = fn(usize, usize) -> bool;

/// The first run, and the run that conditions each window on the previous text.
const FIRST_AND_CONDITIONED: RunFilter = |at, count| at == 0 || at + 2 == count;

fn check(dir: &Path, device: &Device, chosen: RunFilter) -> Result<(), BoxError> {
    let reference = json(&dir.join("reference.json"))?;
    let files = ModelFiles::open(dir)?;
    let samples = samples()?;
    check_graphs(&files.speech()?, device, (&samples, &reference))?;
    let mut recognizer = files.recognizer(device)?;
    let runs = reference["runs"].as_array().ok_or("runs")?;
    let chosen = (runs.iter().enumerate()).filter(|(at, _)| chosen(*at, runs.len()));
    for (_, run) in chosen {
        check_run(&mut recognizer, &samples, run)
            .map_err(|e| format!("{} times with {}: {e}", run["repeat"], run["options"]))?;
    }
    Ok(())
}

/// The tests of this suite.
pub(super) fn tests() -> Vec<SuiteTest> {
    let entries = std::fs::read_dir(data("speech")).into_iter().flatten();
    let mut dirs: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.join("config.json").is_file())
        .collect();
    dirs.sort();
    assert!(!dirs.is_empty(), "tests/data/speech has no models");
    let mut tests = Vec::new();
    for executor in executors() {
        for dir in &dirs {
            let name = dir.file_name().unwrap_or_default().to_string_lossy();
            let first = name.ends_with("-a");
            let is_raw = name.starts_with("moonshine");
            let name = format!("speech/{name}");
            if is_raw {
                let (dir, is_cpu) = (dir.clone(), executor.name == "cpu");
                let test = move |device: &Device| {
                    let most = if is_cpu { u64::MAX } else { 4 };
                    raw::check(&dir, device, most).map_err(|e| Failed::from(one_line(&*e)))
                };
                let variant = if is_cpu || first { "" } else { "/more" };
                tests.push(SuiteTest::variant_on(executor, name, variant, test));
                continue;
            }
            // A software driver takes seconds per window.
            let parts: &[(&str, RunFilter)] = match executor.name {
                "cpu" => &[("", |_, _| true)],
                _ if first => &[
                    ("", FIRST_AND_CONDITIONED),
                    ("/more", |at, count| !FIRST_AND_CONDITIONED(at, count)),
                ],
                _ => &[("/more", |_, _| true)],
            };
            for &(variant, chosen) in parts {
                let dir = dir.clone();
                let test = move |device: &Device| {
                    check(&dir, device, chosen).map_err(|e| Failed::from(one_line(&*e)))
                };
                tests.push(SuiteTest::variant_on(executor, name.clone(), variant, test));
            }
        }
    }
    tests
}
