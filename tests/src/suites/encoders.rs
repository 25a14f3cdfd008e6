//! Tests of every encoder family against transformers (`tests/data/encoders`), with tiny models and
//! random weights. The tests compare hidden states and heads for batched and single texts, and
//! vectors and scores of sentence encoder folders.

use std::path::{Path, PathBuf};

use libtest_mimic::Failed;
use serde_json::Value as Json;
use tercet::{DType, Device, Tensor, one_line};
use tercet_models::{EmbeddingPrompt, Encoder, EncoderOptions, EncoderOutput, Entity, ModelFiles};

use crate::{SuiteTest, data, executors};

/// Maximum error against transformers, relative to the standard deviation.
const NEAR: f64 = 1e-4;

pub(super) type BoxError = Box<dyn std::error::Error>;

/// A tokenized text with the results of transformers.
struct EncoderReference {
    ids: Vec<i32>,
    type_ids: Vec<i32>,
    hidden: Vec<f64>,
    logits: Option<Vec<f64>>,
}

pub(super) fn json(path: &Path) -> Result<Json, BoxError> {
    Ok(serde_json::from_slice(&std::fs::read(path)?)?)
}

pub(super) fn numbers(json: &Json) -> Vec<f64> {
    let all = json.as_array().into_iter().flatten();
    all.filter_map(Json::as_f64).collect()
}

fn reference(dir: &Path) -> Result<Vec<EncoderReference>, BoxError> {
    let json = json(&dir.join("reference.json"))?;
    let of = |name: &str, at: usize| json[name].get(at).map(numbers);
    let ids = |found: Option<Vec<f64>>| -> Vec<i32> {
        found
            .unwrap_or_default()
            .iter()
            .map(|x| *x as i32)
            .collect()
    };
    let count = json["ids"].as_array().map_or(0, Vec::len);
    let texts = (0..count).map(|at| EncoderReference {
        ids: ids(of("ids", at)),
        type_ids: ids(of("type_ids", at)),
        hidden: of("hidden", at).unwrap_or_default(),
        logits: of("logits", at),
    });
    Ok(texts.collect())
}

/// Checks the maximum difference divided by the standard deviation of the expected values.
pub(super) fn near(what: &str, got: &[f64], want: &[f64]) -> Result<(), BoxError> {
    if got.len() != want.len() || want.is_empty() {
        return Err(format!(
            "{what}: found {} numbers, expected {}",
            got.len(),
            want.len()
        )
        .into());
    }
    let n = want.len() as f64;
    let mean = want.iter().sum::<f64>() / n;
    let spread = (want.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n).sqrt();
    // A single number has no standard deviation.
    let spread = if want.len() == 1 {
        want[0].abs()
    } else {
        spread
    };
    let off = got.iter().zip(want).map(|(a, b)| (a - b).abs());
    // `f64::max` would ignore NaN.
    let worst = off.fold(0.0, |a, b| if b > a || b.is_nan() { b } else { a }) / spread;
    match worst <= NEAR {
        true => Ok(()),
        false => Err(format!("{what}: differs by {worst:.2e} of the standard deviation").into()),
    }
}

/// Runs texts as one batch; returns the output values of each text without those of padding.
fn run(
    encoder: &Encoder,
    device: &Device,
    texts: &[&EncoderReference],
) -> Result<Vec<Vec<f64>>, BoxError> {
    let (rows, len) = (
        texts.len(),
        texts.iter().map(|t| t.ids.len()).max().unwrap_or(0),
    );
    let mut exe = encoder.compile(device, 4, len.max(20))?;
    let padded = |of: &dyn Fn(&EncoderReference) -> Vec<i32>| {
        let row = |text: &&EncoderReference| {
            let mut own = of(text);
            own.resize(len, 0);
            own
        };
        Tensor::from_slice(
            &[rows, len],
            &texts.iter().flat_map(row).collect::<Vec<i32>>(),
        )
    };
    let ids = padded(&|text| text.ids.clone())?;
    let type_ids = padded(&|text| text.type_ids.clone())?;
    let mask =
        |text: &&EncoderReference| (0..len).map(|i| i < text.ids.len()).collect::<Vec<bool>>();
    let mask: Vec<bool> = texts.iter().flat_map(mask).collect();
    let mask = Tensor::from_bools(&[rows, len], &mask)?;
    let all = [("ids", &ids), ("type_ids", &type_ids), ("mask", &mask)];
    let signature = exe.signature();
    let inputs: Vec<(&str, &Tensor)> = (all.into_iter())
        .filter(|(name, _)| signature.inputs.iter().any(|i| i.name == *name))
        .collect();
    let out = exe.run(&inputs)?.remove(0);
    let by_token = out.shape().len() == 3;
    let each: usize = out.shape()[1..].iter().product();
    let values = out.to_f64s();
    let own = texts
        .iter()
        .zip(values.chunks_exact(each))
        .map(|(text, row)| {
            let width = each / if by_token { len } else { 1 };
            let count = if by_token { text.ids.len() } else { 1 };
            row[..count * width].to_vec()
        });
    Ok(own.collect())
}

fn check(dir: &Path, device: &Device) -> Result<(), BoxError> {
    let texts = reference(dir)?;
    let all: Vec<&EncoderReference> = texts.iter().collect();
    let files = ModelFiles::open(dir)?;
    let encoder = files.encoder(&EncoderOutput::Hidden, DType::F32)?;
    let together = run(&encoder, device, &all)?;
    for (at, (text, got)) in texts.iter().zip(&together).enumerate() {
        near(&format!("text {at}"), got, &text.hidden)?;
    }
    // The short text alone must give the same result as with padding.
    let short = texts.last().ok_or("no texts")?;
    let alone = run(&encoder, device, &[short])?;
    near("the short text alone", &alone[0], &short.hidden)?;
    if short.logits.is_none() {
        return Ok(());
    }
    let head = files.class_head()?;
    let kind = if head.per_token { "tokens" } else { "texts" };
    let want: Vec<String> = (0..head.labels.len())
        .map(|i| format!("{kind}-{i}"))
        .collect();
    if head.labels != want {
        return Err(format!("labels {:?}", head.labels).into());
    }
    let output = match head.per_token {
        true => EncoderOutput::TokenClasses(head.labels.len()),
        false => EncoderOutput::Classes(head.labels.len()),
    };
    let encoder = files.encoder(&output, DType::F32)?;
    for (text, got) in texts.iter().zip(run(&encoder, device, &all)?) {
        let want = text.logits.as_ref().ok_or("no logits")?;
        near("logits", &got, want)?;
    }
    Ok(())
}

/// Checks a folder or GGUF file of a sentence encoder with the cases of a `sentences.json`.
fn check_sentences(model: &Path, cases: &Path, device: &Device) -> Result<(), BoxError> {
    let json = json(cases)?;
    let texts: Vec<&str> = json["texts"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Json::as_str)
        .collect();
    let files = ModelFiles::open(model)?;
    let cases = json["cases"].as_array().ok_or("no cases")?;
    for case in cases {
        let options = EncoderOptions {
            truncate: true,
            batch: Some(3),
            prompt: match case["prompt"].as_str() {
                Some(name) => EmbeddingPrompt::Named(name.to_string()),
                None => EmbeddingPrompt::Default,
            },
            dims: case["dims"].as_u64().map(|n| n as usize),
            ..EncoderOptions::default()
        };
        if let Some(want) = case["entities"].as_array() {
            let mut classifier = files.classifier(device, &options)?;
            let found = classifier.entities(&texts)?;
            for ((text, found), want) in texts.iter().zip(&found).zip(want) {
                check_entities(text, found, want)?;
            }
            continue;
        }
        let rows: Vec<Vec<f32>> = match case["query"].as_str() {
            Some(query) => {
                let mut reranker = files.reranker(device, &options)?;
                let scores = reranker.rerank(query, &texts)?;
                scores.into_iter().map(|score| vec![score]).collect()
            }
            None => {
                let mut embedder = files.embedder(device, &options)?;
                embedder.embed(&texts)?
            }
        };
        let got: Vec<f64> = rows.iter().flatten().map(|x| f64::from(*x)).collect();
        near(&case["prompt"].to_string(), &got, &numbers(&case["want"]))?;
    }
    Ok(())
}

fn check_entities(text: &str, found: &[Entity], want: &Json) -> Result<(), BoxError> {
    let shown = |entity: &Entity| format!("{} {:?}", entity.name, entity.span);
    // All texts are ASCII, so character offsets equal byte offsets.
    let told = |json: &Json| {
        format!(
            "{} {}..{}",
            json["name"].as_str().unwrap_or(""),
            json["start"],
            json["end"]
        )
    };
    let got: Vec<String> = found.iter().map(shown).collect();
    let wanted: Vec<String> = want.as_array().into_iter().flatten().map(told).collect();
    if got != wanted {
        return Err(format!("{text}: found {got:?}, expected {wanted:?}").into());
    }
    let scores = want
        .as_array()
        .into_iter()
        .flatten()
        .map(|json| json["score"].as_f64());
    for (entity, want) in found.iter().zip(scores) {
        let want = want.ok_or("no score")?;
        if (f64::from(entity.score) - want).abs() > 1e-5 {
            return Err(format!("{text}: {entity:?}, expected a score of {want}").into());
        }
    }
    Ok(())
}

/// A file with every occurrence of a text replaced by another of the same length.
fn patched(bytes: &[u8], from: &str, to: &str) -> Vec<u8> {
    let (from, to) = (from.as_bytes(), to.as_bytes());
    let mut all = bytes.to_vec();
    let places: Vec<usize> = (0..all.len())
        .filter(|at| all[*at..].starts_with(from))
        .collect();
    for at in places {
        all[at..at + to.len()].copy_from_slice(to);
    }
    all
}

/// Damaged GGUF files of encoders give errors that name the cause.
fn check_damaged(device: &Device) -> Result<(), BoxError> {
    let bytes = std::fs::read(data("encoders/gguf/bert.gguf"))?;
    let embeds = |bytes: &[u8]| -> Result<(), tercet_models::Error> {
        let files = ModelFiles::from_gguf_bytes(bytes)?;
        let options = EncoderOptions::default();
        let mut embedder = files.embedder(device, &options)?;
        embedder.embed(&["a cat"])?;
        Ok(())
    };
    embeds(&bytes)?;
    for (from, to, named) in [
        (
            "bert.context_length",
            "bert.context_lenght",
            "bert.context_length",
        ),
        (
            "blk.1.ffn_up.weight",
            "blk.1.ffn_op.weight",
            "`blk.1.ffn_op.weight`",
        ),
        (
            "blk.0.attn_k.bias",
            "blk.0.attn_q.beas",
            "blk.0.attn_q.beas",
        ),
        (
            "token_types.weight",
            "taken_types.weight",
            "`taken_types.weight`",
        ),
        (
            "tokenizer.ggml.model",
            "tokenizer.ggml.madel",
            "tokenizer.ggml.model",
        ),
    ] {
        match embeds(&patched(&bytes, from, to)) {
            Ok(()) => return Err(format!("{to} instead of {from} is not rejected").into()),
            Err(e) if one_line(&e).contains(named) => {}
            Err(e) => return Err(format!("{to} for {from}: {}", one_line(&e)).into()),
        }
    }
    // No tool knows these keys, so they cannot change the result.
    for (from, to) in [
        ("bert.pooling_type", "bert.pooling_typo"),
        ("bert.attention.causal", "bert.attention.cousal"),
    ] {
        let changed = patched(&bytes, from, to);
        embeds(&changed)?;
        let ignored = ModelFiles::from_gguf_bytes(&changed)?.ignored_keys()?;
        if !ignored.iter().any(|key| key == to) {
            return Err(format!("{to} is not among the ignored keys {ignored:?}").into());
        }
    }
    for cut in 0..64 {
        let len = bytes.len() * cut / 64;
        if embeds(&bytes[..len]).is_ok() {
            return Err(format!("{len} of {} bytes are not rejected", bytes.len()).into());
        }
    }
    Ok(())
}

/// The GGUF files, sorted by name.
fn gguf_files() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(data("encoders/gguf"))
        .into_iter()
        .flatten();
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|end| end == "gguf"))
        .collect();
    files.sort();
    assert!(!files.is_empty(), "tests/data/encoders/gguf has no models");
    files
}

/// The tests of this suite.
pub(super) fn tests() -> Vec<SuiteTest> {
    let entries = std::fs::read_dir(data("encoders")).into_iter().flatten();
    let mut dirs: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.join("config.json").is_file() || path.join("modules.json").is_file())
        .collect();
    dirs.sort();
    assert!(!dirs.is_empty(), "tests/data/encoders has no models");
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
            let name = format!("encoders/{name}");
            let test = move |device: &Device| {
                let checked = match dir.join("sentences.json").is_file() {
                    true => check_sentences(&dir, &dir.join("sentences.json"), device),
                    false => check(&dir, device),
                };
                checked.map_err(|e| Failed::from(one_line(&*e)))
            };
            tests.push(SuiteTest::variant_on(executor, name, variant, test));
        }
        for file in gguf_files() {
            let name = file.file_stem().unwrap_or_default().to_string_lossy();
            let variant = match name != "bert-q8_0" && executor.name != "cpu" {
                true => "/more",
                false => "",
            };
            let name = format!("encoders/gguf-{name}");
            let test = move |device: &Device| {
                let checked = check_sentences(&file, &file.with_extension("json"), device);
                checked.map_err(|e| Failed::from(one_line(&*e)))
            };
            tests.push(SuiteTest::variant_on(executor, name, variant, test));
        }
        if executor.name == "cpu" {
            let test =
                |device: &Device| check_damaged(device).map_err(|e| Failed::from(one_line(&*e)));
            tests.push(SuiteTest::variant_on(
                executor,
                "encoders/gguf-damaged".into(),
                "",
                test,
            ));
        }
    }
    tests
}
