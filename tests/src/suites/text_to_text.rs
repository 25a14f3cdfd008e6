//! Tests of text encoder-decoders against transformers (`tests/data/text-to-text`), with tiny
//! models and random weights. The tests compare hidden states, logits and greedy tokens.

use std::path::{Path, PathBuf};

use libtest_mimic::Failed;
use serde_json::Value as Json;
use tercet::{Device, one_line};
use tercet_models::{ModelFiles, Seq2SeqOptions};

use super::encoders::{BoxError, json, near, numbers};
use crate::{SuiteTest, data, executors};

fn tokens(json: &Json) -> Vec<u32> {
    numbers(json).iter().map(|x| *x as u32).collect()
}

fn check(dir: &Path, device: &Device) -> Result<(), BoxError> {
    let reference = json(&dir.join("reference.json"))?;
    let texts = reference["texts"].as_array().ok_or("no texts")?;
    let files = ModelFiles::open(dir)?;
    let model = files.seq2seq(|spec| Seq2SeqOptions {
        context: 40,
        ..Seq2SeqOptions::new(spec)
    })?;
    let (mut reader, mut generator) = model.compile(device)?;
    // Run each text twice, so that the test detects state that an earlier text did not reset.
    for (at, text) in texts.iter().chain(texts).enumerate() {
        let want = tokens(&text["tokens"]);
        reader.read(&tokens(&text["ids"]), &mut generator)?;
        let hidden = reader.hidden()?.to_f64s();
        near(&format!("text {at}"), &hidden, &numbers(&text["hidden"]))?;
        let mut last = reader.start();
        for (number, token) in want.iter().enumerate() {
            let step = generator.forward(&[last])?;
            let logits: Vec<f64> = step.logits.iter().map(|x| f64::from(*x)).collect();
            let name = match number {
                0 => "first",
                _ if number + 1 == want.len() => "last",
                _ => "",
            };
            if !name.is_empty() {
                near(
                    &format!("text {at}, {name} logits"),
                    &logits,
                    &numbers(&text[name]),
                )?;
            }
            if step.next != Some(*token) {
                let next = step.next;
                return Err(
                    format!("text {at}, token {number}: found {next:?}, expected {token}").into(),
                );
            }
            last = *token;
        }
        // Feed all tokens at once: causal masking must hide later tokens.
        reader.read(&tokens(&text["ids"]), &mut generator)?;
        let begin = [&[reader.start()], &want[..want.len() - 1]].concat();
        let step = generator.forward(&begin)?;
        let logits: Vec<f64> = step.logits.iter().map(|x| f64::from(*x)).collect();
        near(
            &format!("text {at}, at once"),
            &logits,
            &numbers(&text["last"]),
        )?;
    }
    Ok(())
}

/// The tests of this suite.
pub(super) fn tests() -> Vec<SuiteTest> {
    let entries = std::fs::read_dir(data("text-to-text"))
        .into_iter()
        .flatten();
    let mut dirs: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.join("config.json").is_file())
        .collect();
    dirs.sort();
    assert!(!dirs.is_empty(), "tests/data/text-to-text has no models");
    let mut tests = Vec::new();
    for executor in executors() {
        for dir in &dirs {
            let name = dir.file_name().unwrap_or_default().to_string_lossy();
            let dir = dir.clone();
            // A software driver takes a second to compile the kernels of each model.
            let variant = match !name.ends_with("-a") {
                true if executor.name != "cpu" => "/more",
                _ => "",
            };
            let name = format!("text-to-text/{name}");
            let test =
                move |device: &Device| check(&dir, device).map_err(|e| Failed::from(one_line(&*e)));
            tests.push(SuiteTest::variant_on(executor, name, variant, test));
        }
    }
    tests
}
