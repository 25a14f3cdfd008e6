//! Folders of every family as `save_pretrained` of transformers 5.24 writes them: the saved
//! configuration, the tensor names that are saved with it, and a model that opens and computes.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use tercet::{DType, Device};
use tercet_models::{
    DecoderOptions, EncoderOptions, EncoderOutput, ModelFamily, ModelFiles, Seq2SeqOptions,
    VisionOutput,
};

use crate::common::{safetensors, temp_dir};

/// The saved configurations of the committed folders, one a line.
const SAVED: &str = include_str!("saved_configs.jsonl");
/// The names and shapes of the saved tensors, for folders whose committed tensors have others.
const TENSORS: &str = include_str!("saved_tensors.jsonl");

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/data")
        .join(name)
}

/// Weights of these shapes: small numbers that differ, and gains near one.
fn weights(shapes: &Map<String, Value>) -> Vec<u8> {
    let (mut header, mut data) = (Map::new(), Vec::new());
    for (name, shape) in shapes {
        let sizes = shape.as_array().unwrap().iter();
        let n: u64 = sizes.map(|n| n.as_u64().unwrap()).product();
        let begin = data.len();
        let base = if name.contains("norm") { 1.0 } else { 0.0 };
        let values = (0..n).map(|i| base + ((begin as u64 + 7 * i) as f32).sin() / 8.0);
        data.extend(values.flat_map(f32::to_le_bytes));
        let row = json!({"dtype": "F32", "shape": shape, "data_offsets": [begin, data.len()]});
        header.insert(name.clone(), row);
    }
    safetensors(&Value::Object(header).to_string(), &data)
}

/// A folder with the saved configuration and tensors, and the other files of the committed one.
fn saved(name: &str, config: &Value) -> PathBuf {
    let dir = temp_dir(&format!("saved-{}", name.replace('/', "-")));
    for entry in std::fs::read_dir(data(name)).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            std::fs::copy(&path, dir.join(path.file_name().unwrap())).unwrap();
        }
    }
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
    let rows = TENSORS
        .lines()
        .map(|line| serde_json::from_str(line).unwrap());
    let own = rows.into_iter().find(|row: &Value| row["folder"] == name);
    if let Some(own) = own {
        let tensors = own["tensors"].as_object().unwrap();
        std::fs::write(dir.join("model.safetensors"), weights(tensors)).unwrap();
    }
    dir
}

/// Builds the model and, for decoders and encoders, runs it.
fn open(files: &ModelFiles) -> Result<(), tercet_models::Error> {
    let (device, f32) = (Device::cpu(), DType::F32);
    match files.family()? {
        ModelFamily::Decoder if files.embeds_texts()? => {
            files.encoder(&EncoderOutput::mean_normalized(), f32)?;
        }
        ModelFamily::Decoder => {
            let decoder = files.decoder(|spec| DecoderOptions {
                context: 16.min(spec.context),
                chunk: 16.min(spec.context),
                ..DecoderOptions::new(spec)
            })?;
            let mut generator = decoder.generator(&device)?;
            let logits = generator.forward(&[3, 1, 2])?.logits;
            assert!(logits.iter().all(|x| x.is_finite()));
        }
        ModelFamily::Encoder => {
            let encoder = files.encoder(&EncoderOutput::Hidden, f32)?;
            encoder.compile(&device, 1, 8)?;
        }
        ModelFamily::Vision => {
            files.vision_model(VisionOutput::Features, f32)?;
            files.image_embedder(&device, &EncoderOptions::default())?;
        }
        ModelFamily::VisionLanguage => {
            files.vision_language(|spec| DecoderOptions::new(&spec.decoder))?;
        }
        ModelFamily::TextToText => drop(files.seq2seq(Seq2SeqOptions::new)?),
        ModelFamily::Speech if files.is_moonshine() => drop(files.moonshine()?),
        ModelFamily::Speech => drop(files.speech()?),
    }
    Ok(())
}

#[test]
fn saved_folders_of_every_family_open_and_compute() {
    let mut failed = Vec::new();
    let mut kinds = Vec::new();
    for line in SAVED.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let name = line["folder"].as_str().unwrap();
        let dir = saved(name, &line["config"]);
        let opened = ModelFiles::open(&dir).and_then(|files| {
            kinds.push(files.family()?);
            open(&files)
        });
        if let Err(e) = opened {
            failed.push(format!("{name}: {}", tercet::one_line(&e)));
        }
        std::fs::remove_dir_all(dir).unwrap();
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    for kind in [
        ModelFamily::Decoder,
        ModelFamily::Encoder,
        ModelFamily::Vision,
        ModelFamily::VisionLanguage,
        ModelFamily::TextToText,
        ModelFamily::Speech,
    ] {
        assert!(kinds.contains(&kind), "{kind:?}");
    }
}

#[test]
fn every_listed_family_of_language_models_is_saved() {
    let saved: Vec<String> = SAVED
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .map(|line| line["config"]["model_type"].as_str().unwrap().to_string())
        .collect();
    let kinds = tercet_models::config::family_names().into_iter();
    let missing: Vec<&str> = kinds
        .flat_map(|names| names.model_types)
        .filter(|name| !saved.iter().any(|own| own == name))
        .collect();
    // transformers has no class of its own for Kimi K2.
    let elsewhere = ["kimi_k2"];
    let unexplained: Vec<&&str> = missing.iter().filter(|n| !elsewhere.contains(n)).collect();
    assert!(unexplained.is_empty(), "not saved: {unexplained:?}");
}
