//! Tests of every decoder family against transformers (`tests/data/decoders`), with tiny models and
//! random weights. Each model is loaded from a folder and from a GGUF file, and runs at once, in
//! chunks and token by token.

mod batch;
mod drafts;
mod products;

use std::path::{Path, PathBuf};

use libtest_mimic::Failed;
use serde_json::Value as Json;
use tercet::{Device, one_line};
use tercet_models::{DecoderOptions, Generator, ModelFiles};

use crate::{SuiteTest, data, executors};

/// Maximum error of logits against transformers, relative to their standard deviation.
const LOGITS: f64 = 2e-3;
/// Maximum difference between two summation orders of the same model.
const REORDERED: f64 = 1e-3;
/// Context length in tokens: enough for prompts and generated tokens, below the original context of
/// LongRoPE models.
const CONTEXT: usize = 96;

type BoxError = Box<dyn std::error::Error>;

/// The results of transformers.
struct DecoderReference {
    prompt: Vec<u32>,
    logits: Vec<f64>,
    greedy: Vec<u32>,
    last_logits: Vec<f64>,
}

fn reference(dir: &Path) -> Result<DecoderReference, BoxError> {
    let json: Json = serde_json::from_slice(&std::fs::read(dir.join("reference.json"))?)?;
    let numbers = |name: &str| -> Vec<f64> {
        let all = json[name].as_array().into_iter().flatten();
        all.filter_map(Json::as_f64).collect()
    };
    let ids = |name: &str| numbers(name).into_iter().map(|x| x as u32).collect();
    Ok(DecoderReference {
        prompt: ids("prompt"),
        logits: numbers("logits"),
        greedy: ids("greedy"),
        last_logits: numbers("last_logits"),
    })
}

fn generator(path: &Path, device: &Device, chunk: usize) -> Result<Generator, BoxError> {
    let files = ModelFiles::open(path)?;
    let decoder = files.decoder(|spec| DecoderOptions {
        context: CONTEXT,
        chunk,
        ..DecoderOptions::new(spec)
    })?;
    Ok(decoder.generator(device)?)
}

/// The maximum difference divided by the standard deviation of the expected values.
fn distance(got: &[f32], want: &[f64]) -> Result<f64, BoxError> {
    if got.len() != want.len() || want.is_empty() {
        return Err(format!("found {} logits, expected {}", got.len(), want.len()).into());
    }
    let n = want.len() as f64;
    let mean = want.iter().sum::<f64>() / n;
    let spread = (want.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n).sqrt();
    let off = got.iter().zip(want).map(|(a, b)| (f64::from(*a) - b).abs());
    // `f64::max` would ignore NaN.
    let worst = off.fold(0.0, |a, b| if b > a || b.is_nan() { b } else { a });
    Ok(worst / spread)
}

fn near(what: &str, got: &[f32], want: &[f64], most: f64) -> Result<(), BoxError> {
    let off = distance(got, want)?;
    match off <= most {
        true => Ok(()),
        false => {
            Err(format!("{what}: logits differ by {off:.2e} of their standard deviation").into())
        }
    }
}

fn check(path: &Path, dir: &Path, device: &Device) -> Result<(), BoxError> {
    let want = reference(dir)?;
    let mut whole = generator(path, device, CONTEXT)?;
    let step = whole.forward(&want.prompt)?;
    near("the prompt", step.logits, &want.logits, LOGITS)?;
    let mut next = step.next;
    let mut written = Vec::new();
    let mut last = Vec::new();
    for _ in 0..want.greedy.len() {
        let token = next.ok_or("the graph does not sample")?;
        written.push(token);
        let step = whole.forward(&[token])?;
        next = step.next;
        last = step.logits.to_vec();
    }
    if written != want.greedy {
        let at = written.iter().zip(&want.greedy).position(|(a, b)| a != b);
        return Err(format!("greedy tokens differ from {at:?} on").into());
    }
    near("the last token", &last, &want.last_logits, LOGITS)?;
    // The loop above runs the tokens one by one. One run of all tokens, and a run in chunks, must
    // give the same logits.
    let tokens = [want.prompt, want.greedy].concat();
    let by_tokens: Vec<f64> = last.iter().map(|x| f64::from(*x)).collect();
    whole.reset();
    near(
        "at once",
        whole.forward(&tokens)?.logits,
        &by_tokens,
        REORDERED,
    )?;
    let mut parts = generator(path, device, 7)?;
    near(
        "in parts",
        parts.forward(&tokens)?.logits,
        &by_tokens,
        REORDERED,
    )
}

/// The tests of this suite.
pub(super) fn tests() -> Vec<SuiteTest> {
    let entries = std::fs::read_dir(data("decoders")).into_iter().flatten();
    let mut dirs: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.join("reference.json").is_file())
        .collect();
    dirs.sort();
    assert!(!dirs.is_empty(), "tests/data/decoders has no models");
    let mut tests = Vec::new();
    for executor in executors() {
        tests.extend(products::tests(executor));
        tests.extend(batch::tests(executor, &dirs));
        tests.extend(drafts::tests(executor, &dirs));
        for dir in &dirs {
            let name = dir.file_name().unwrap_or_default().to_string_lossy();
            let kinds = [("folder", dir.clone()), ("gguf", dir.join("model.gguf"))];
            // Some models exist only as folders, because no converter supports them.
            for (kind, path) in kinds.into_iter().filter(|(_, path)| path.exists()) {
                let dir = dir.clone();
                let test = move |device: &Device| {
                    check(&path, &dir, device).map_err(|e| Failed::from(one_line(&*e)))
                };
                // A software driver takes a second to compile the kernels of each model. The CPU
                // suffices to test file formats.
                let variant = match !name.ends_with("-a") {
                    true if executor.name != "cpu" => "/more",
                    _ => "",
                };
                let name = format!("decoders/{name}/{kind}");
                tests.push(SuiteTest::variant_on(executor, name, variant, test));
            }
        }
    }
    tests
}
