//! Tests of recognizers that read raw samples: encoder output, decoder logits, and the tokens of
//! `generate`.

use std::path::Path;

use serde_json::Value as Json;
use tercet::{Device, Tensor};
use tercet_models::speech::{Recognizer, SpeechOptions};
use tercet_models::{ModelFiles, MoonshineModel};

use super::{BoxError, json, logits_in_parts, near, numbers, samples, tokens};

/// Checks the hidden states and the logits of the test recording.
fn check_graphs(
    model: &MoonshineModel,
    device: &Device,
    (samples, reference): (&[f32], &Json),
) -> Result<(), BoxError> {
    let [mut encoder, mut decoder] = model.compile(device)?;
    let inputs = MoonshineModel::inputs(samples)?;
    let inputs: Vec<(&str, &Tensor)> = inputs.iter().map(|(name, x)| (*name, x)).collect();
    let heard = encoder.run(&inputs)?;
    let names: Vec<String> = (encoder.signature().outputs.iter())
        .map(|output| output.name.clone())
        .collect();
    let rows = |name: &str| reference[name].as_array().into_iter().flatten();
    let (hidden, width) = (heard[0].to_f64s(), model.spec.width);
    let positions = tokens(&reference["positions"]);
    let last = positions.last().copied().ok_or("positions")? as usize;
    if hidden.len() != (last + 1) * width {
        return Err(format!("found {} rows, expected {}", hidden.len() / width, last + 1).into());
    }
    for (at, want) in positions.iter().zip(rows("hidden")) {
        let got = &hidden[*at as usize * width..][..width];
        near(&format!("position {at}"), got, &numbers(want))?;
    }
    let prompt = &reference["prompt"];
    let last = tokens(prompt).len() as i32 - 2;
    let logits = logits_in_parts(&mut *decoder, prompt, (&names, &heard), last)?;
    for (got, want) in logits.iter().zip(rows("logits")) {
        near("logits", got, &numbers(want))?;
    }
    Ok(())
}

/// Checks one `generate` run of the reference. The recording arrives in chunks of different sizes.
fn check_run(recognizer: &mut Recognizer, samples: &[f32], run: &Json) -> Result<(), BoxError> {
    let repeat = run["repeat"].as_u64().ok_or("repeat")? as usize;
    for piece in samples.repeat(repeat).chunks(7777) {
        recognizer.push(piece)?;
    }
    let mut heard = 0;
    let transcript = recognizer.finish(&SpeechOptions::default(), &mut |progress| {
        heard += progress.segments.len();
        true
    })?;
    let wanted = run["segments"].as_array().ok_or("segments")?;
    let count = transcript.segments.len();
    if count != wanted.len() || heard != count {
        let wanted = wanted.len();
        return Err(
            format!("found {count} segments, {heard} of them reported, expected {wanted}").into(),
        );
    }
    let mut end = 0;
    for (at, (got, want)) in transcript.segments.iter().zip(wanted).enumerate() {
        end += want["samples"].as_u64().ok_or("samples")?;
        let written = tokens(&want["tokens"]);
        if got.tokens != written {
            let got = &got.tokens;
            return Err(
                format!("segment {at}: found tokens\n{got:?}, expected\n{written:?}").into(),
            );
        }
        if (got.end - end as f64 / 16_000.0).abs() > 1e-6 {
            return Err(format!("segment {at} ends at {} s", got.end).into());
        }
        let text = want["text"].as_str().ok_or("text")?;
        if got.text.trim_start() != text.trim_start() {
            return Err(format!("segment {at}: found {:?}, expected {text:?}", got.text).into());
        }
    }
    Ok(())
}

/// Checks the runs with at most `most` repetitions.
pub(super) fn check(dir: &Path, device: &Device, most: u64) -> Result<(), BoxError> {
    let reference = json(&dir.join("reference.json"))?;
    let files = ModelFiles::open(dir)?;
    let samples = samples()?;
    check_graphs(&files.moonshine()?, device, (&samples, &reference))?;
    let mut recognizer = files.recognizer(device)?;
    let runs = reference["runs"].as_array().into_iter().flatten();
    for run in runs.filter(|run| run["repeat"].as_u64().is_some_and(|n| n <= most)) {
        check_run(&mut recognizer, &samples, run)
            .map_err(|e| format!("{} times: {e}", run["repeat"]))?;
    }
    Ok(())
}
