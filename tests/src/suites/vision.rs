//! Tests of every vision model family against transformers (`tests/data/vision`), with tiny models
//! and random weights. The tests compare preprocessing, features and classes of image files, and
//! text vectors of models that have them.

use std::path::{Path, PathBuf};

use libtest_mimic::Failed;
use serde_json::Value as Json;
use tercet::{DType, Device, Tensor, one_line};
use tercet_models::{
    Encoder, EncoderOptions, HfFolder, Image, ImageEmbedder, ModelFiles, VisionOutput,
};

use super::encoders::{BoxError, json, near, numbers};
use crate::{SuiteTest, data, executors};

fn rows(json: &Json) -> Vec<Vec<f64>> {
    let all = json.as_array().into_iter().flatten();
    all.map(numbers).collect()
}

fn widened(row: &[f32]) -> Vec<f64> {
    row.iter().map(|x| f64::from(*x)).collect()
}

/// Checks that each row is close to the expected one.
fn all_near(what: &str, got: &[Vec<f32>], want: &Json) -> Result<(), BoxError> {
    let want = rows(want);
    if got.len() != want.len() || want.is_empty() {
        return Err(format!("{what}: found {} rows, expected {}", got.len(), want.len()).into());
    }
    for (at, (got, want)) in got.iter().zip(&want).enumerate() {
        near(&format!("{what} {at}"), &widened(got), want)?;
    }
    Ok(())
}

/// Checks that pixels differ by at most one 8-bit step.
fn check_pixels(
    dir: &Path,
    json: &Json,
    files: &[PathBuf],
    size: [usize; 2],
) -> Result<(), BoxError> {
    let folder = HfFolder::open(dir)?;
    let processor = folder.image_processor(folder.vision_spec()?.family)?;
    let byte = json["byte"].as_f64().ok_or("no step size")?;
    let step = json["step"].as_u64().ok_or("no step")? as usize;
    let want = rows(&json["pixels"]);
    let [height, width] = size;
    for (file, want) in files.iter().zip(&want) {
        let mut pixels = vec![0.0; 3 * height * width];
        processor.apply(&Image::open(file)?, size, &mut pixels)?;
        let got: Vec<f64> = widened(&pixels).into_iter().step_by(step).collect();
        let off = got.iter().zip(want).map(|(a, b)| (a - b).abs());
        let worst = off.fold(0.0, f64::max);
        // The reference's numbers have five digits.
        if got.len() != want.len() || worst > byte * 1.001 {
            let (got, want) = (got.len(), want.len());
            let file = file.display();
            return Err(format!(
                "{file}: found {got} pixels, expected {want}; maximum difference {worst}"
            )
            .into());
        }
    }
    Ok(())
}

/// Checks the text encoder, and the similarity of images and texts.
fn check_texts(
    files: &ModelFiles,
    device: &Device,
    json: &Json,
    features: &[Vec<f32>],
) -> Result<(), BoxError> {
    let encoder = Encoder::from_text_tower(&files.vision_spec()?, &files.weights(), DType::F32)?;
    let mut exe = encoder.compile(device, 1, encoder.context)?;
    let places = numbers(&json["places"]);
    let mut texts = Vec::new();
    for (ids, place) in rows(&json["ids"]).iter().zip(places) {
        let ids: Vec<i32> = ids.iter().map(|id| *id as i32).collect();
        let ids = Tensor::from_slice(&[1, ids.len()], &ids)?;
        let place = Tensor::from_slice(&[1, 1], &[place as i32])?;
        let out = exe.run(&[("ids", &ids), ("place", &place)])?.remove(0);
        texts.push(out.as_slice::<f32>()?.to_vec());
    }
    all_near("text", &texts, &json["texts"])?;
    if let Some(words) = json.get("words") {
        let named = words["texts"].as_array().into_iter().flatten();
        let named: Vec<&str> = named.filter_map(Json::as_str).collect();
        let mut embedder = files.embedder(device, &EncoderOptions::default())?;
        let got = embedder.embed(&named)?;
        all_near("words", &got, &words["features"])?;
    }
    let likeness = files.similarity_head()?;
    for (picture, want) in features.iter().zip(rows(&json["likeness"])) {
        let mut want: Vec<f32> = want.iter().map(|x| *x as f32).collect();
        likeness.scoring.apply(&mut want);
        for (got, want) in likeness.scores(picture, &texts).iter().zip(&want) {
            if (got - want).abs() > 1e-4 {
                return Err(format!("found a similarity of {got}, expected {want}").into());
            }
        }
    }
    Ok(())
}

fn check(dir: &Path, device: &Device) -> Result<(), BoxError> {
    let json = json(&dir.join("reference.json"))?;
    let named = json["pictures"].as_array().into_iter().flatten();
    let pictures = data("vision").join("pictures");
    let pictures: Vec<PathBuf> = named
        .filter_map(|name| Some(pictures.join(name.as_str()?)))
        .collect();
    let files = ModelFiles::open(dir)?;
    let model = files.vision_model(VisionOutput::Features, DType::F32)?;
    check_pixels(dir, &json, &pictures, model.size)?;
    let options = EncoderOptions {
        batch: Some(2),
        ..EncoderOptions::default()
    };
    let mut encoder = files.image_embedder(device, &options)?;
    let features = encoder.embed_files(&pictures)?;
    all_near("features", &features, &json["features"])?;
    let alone = encoder.embed_files(&pictures[..1])?;
    all_near(
        "the first alone",
        &alone,
        &Json::from(vec![json["features"][0].clone()]),
    )?;
    if json.get("ids").is_some() {
        check_texts(&files, device, &json, &features)?;
    }
    if json.get("logits").is_none() {
        return Ok(());
    }
    let folder = HfFolder::open(dir)?;
    let spec = folder.vision_spec()?;
    let labels = folder.image_labels(&spec)?.labels;
    let want: Vec<String> = (0..labels.len()).map(|i| format!("class-{i}")).collect();
    if labels != want {
        return Err(format!("labels {labels:?}").into());
    }
    let output = VisionOutput::Classes(labels.len());
    let model = files.vision_model(output, DType::F32)?;
    let processor = folder.image_processor(spec.family)?;
    let mut encoder = ImageEmbedder::new(&model, processor, device, Some(2))?;
    let logits = encoder.embed_files(&pictures)?;
    all_near("logits", &logits, &json["logits"])
}

/// The tests of this suite.
pub(super) fn tests() -> Vec<SuiteTest> {
    let entries = std::fs::read_dir(data("vision")).into_iter().flatten();
    let mut dirs: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.join("config.json").is_file())
        .collect();
    dirs.sort();
    assert!(!dirs.is_empty(), "tests/data/vision has no models");
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
            let name = format!("vision/{name}");
            let test =
                move |device: &Device| check(&dir, device).map_err(|e| Failed::from(one_line(&*e)));
            tests.push(SuiteTest::variant_on(executor, name, variant, test));
        }
    }
    tests
}
