//! Tests of vision-language models against transformers on the same prompts and image files
//! (`tests/data/vision-language`), with tiny models and random weights. The tests compare tiles,
//! pixels, image embeddings, tokens, logits and greedy tokens.

use std::path::{Path, PathBuf};

use libtest_mimic::Failed;
use serde_json::Value as Json;
use tercet::{Device, one_line};
use tercet_models::dataset::template::TemplateValue;
use tercet_models::dataset::{ChatMessage, ChatTemplate, Role};
use tercet_models::{
    DecoderOptions, Generator, Image, ImageEncoder, ModelError, ModelFiles, Tokenizer,
    VisionLanguageGraphs,
};

use super::encoders::{BoxError, json, near, numbers};
use crate::{SuiteTest, data, executors};

fn widened(row: &[f32]) -> Vec<f64> {
    row.iter().map(|x| f64::from(*x)).collect()
}

fn tokens(json: &Json) -> Vec<u32> {
    numbers(json).iter().map(|x| *x as u32).collect()
}

fn pictures(prompt: &Json) -> Result<Vec<Image>, BoxError> {
    let named = prompt["pictures"].as_array().into_iter().flatten();
    let named = named.filter_map(Json::as_str);
    let open = |name: &str| Image::open(data("vision").join("pictures").join(name));
    Ok(named.map(open).collect::<Result<_, _>>()?)
}

/// Checks that the number of tiles matches, and that pixels differ by at most one 8-bit step.
fn check_pixels(
    model: &VisionLanguageGraphs,
    prompt: &Json,
    pictures: &[Image],
    byte: f64,
) -> Result<(), BoxError> {
    let side = model.spec.side();
    let mut pixels = Vec::new();
    let want = prompt["tiles"].as_array().ok_or("no tiles")?;
    for (picture, want) in pictures.iter().zip(want) {
        let prepared = model.processor.prepare(picture)?;
        let tiles = prepared.tiles();
        let got = vec![tiles.rows as f64, tiles.columns as f64];
        if got != numbers(want) {
            return Err(format!("found tiles {tiles:?}, expected {want}").into());
        }
        for at in 0..tiles.count() {
            let mut tile = vec![0.0; 3 * side * side];
            prepared.write_tile(at, &mut tile);
            pixels.extend(tile);
        }
    }
    let step = prompt["step"].as_u64().ok_or("no step")? as usize;
    let got: Vec<f64> = widened(&pixels).into_iter().step_by(step).collect();
    let want = numbers(&prompt["pixels"]);
    let off = got.iter().zip(&want).map(|(a, b)| (a - b).abs());
    let worst = off.fold(0.0, f64::max);
    // The reference's numbers have five digits.
    match got.len() == want.len() && worst <= byte * 1.001 {
        true => Ok(()),
        false => Err(format!(
            "found {} pixels, expected {}; maximum difference {worst}, one step is {byte}",
            got.len(),
            want.len()
        )
        .into()),
    }
}

/// A compiled vision-language model: image encoder, generator and tokenizer.
struct TestVisionLanguageModel {
    reader: ImageEncoder,
    generator: Generator,
    tokenizer: Tokenizer,
}

impl TestVisionLanguageModel {
    fn open(
        files: &ModelFiles,
        device: &Device,
        chunk: usize,
    ) -> Result<TestVisionLanguageModel, BoxError> {
        let model = files.vision_language(|spec| DecoderOptions {
            context: 320,
            chunk,
            ..DecoderOptions::new(&spec.decoder)
        })?;
        let (reader, generator) = model.compile(device)?;
        Ok(TestVisionLanguageModel {
            reader,
            generator,
            tokenizer: files.tokenizer()?,
        })
    }

    fn ids(&mut self, text: &str, pictures: &[Image]) -> Result<Vec<u32>, BoxError> {
        let TestVisionLanguageModel {
            reader,
            generator,
            tokenizer,
        } = self;
        let ids = reader.read(
            (text, pictures),
            (tokenizer, false),
            generator,
            &mut |_, _| true,
        )?;
        Ok(ids.ok_or("reading was stopped")?)
    }

    /// The logits after a prompt, and `count` greedy tokens.
    fn written(&mut self, ids: &[u32], count: usize) -> Result<(Vec<f64>, Vec<u32>), BoxError> {
        let step = self.generator.forward(ids)?;
        let logits = widened(step.logits);
        let mut next = step.next.ok_or("no token was chosen")?;
        let mut greedy = vec![next];
        while greedy.len() < count {
            next = (self.generator.forward(&[next])?.next).ok_or("no token was chosen")?;
            greedy.push(next);
        }
        Ok((logits, greedy))
    }
}

/// Checks one prompt with an empty cache.
fn check_prompt(ready: &mut TestVisionLanguageModel, prompt: &Json) -> Result<(), BoxError> {
    let pictures = pictures(prompt)?;
    let text = prompt["prompt"].as_str().ok_or("no prompt")?;
    ready.generator.truncate(0);
    let ids = ready.ids(text, &pictures)?;
    if ready.reader.to_tokenizer_ids(&ids) != tokens(&prompt["ids"]) {
        return Err(format!("tokens of {text:?}").into());
    }
    if !pictures.is_empty() {
        let rows = widened(ready.reader.rows());
        near("rows", &rows, &numbers(&prompt["features"]))?;
    }
    let want = tokens(&prompt["greedy"]);
    let (logits, greedy) = ready.written(&ids, want.len())?;
    near("logits", &logits, &numbers(&prompt["logits"]))?;
    match greedy == want {
        true => Ok(()),
        false => Err(format!("found tokens {greedy:?}, expected {want:?}").into()),
    }
}

/// Checks the prompt text that the model's chat template generates for a conversation.
fn check_template(
    files: &ModelFiles,
    ready: &TestVisionLanguageModel,
    prompt: &Json,
) -> Result<(), BoxError> {
    let Some(said) = prompt["chat"].as_str() else {
        return Ok(());
    };
    let template = ChatTemplate::from_model(files, &ready.tokenizer)?;
    let count = prompt["pictures"].as_array().map_or(0, Vec::len);
    let messages = [ChatMessage::from_parts(Role::User, count, said)];
    let got = template.render(&messages, &TemplateValue::None, true)?.text;
    match Some(&*got) == prompt["prompt"].as_str() {
        true => Ok(()),
        false => Err(format!("unexpected output of the chat template: {got:?}").into()),
    }
}

/// Runs a prompt after another one with the same first image. The cached prefix is reused and the
/// result is the same.
fn check_again(ready: &mut TestVisionLanguageModel, prompt: &Json) -> Result<(), BoxError> {
    let pictures = pictures(prompt)?;
    let text = prompt["prompt"].as_str().ok_or("no prompt")?;
    ready.generator.truncate(0);
    let (first, _) = text.split_once("and").ok_or("one picture")?;
    let ids = ready.ids(first, &pictures[..1])?;
    ready.written(&ids, 1)?;
    let cached = ready.generator.position();
    let ids = ready.ids(text, &pictures)?;
    let same = ready.generator.cached().iter().zip(&ids);
    let same = same.take_while(|(a, b)| a == b).count();
    if ready.generator.position() != cached || same + 1 < cached {
        return Err(format!("{same} of {cached} tokens are equal to the cached ones").into());
    }
    ready.generator.truncate(same);
    let (logits, _) = ready.written(&ids[same..], 1)?;
    near("logits behind others", &logits, &numbers(&prompt["logits"]))?;
    // The same images in another order are another prompt, so no cached image rows may remain.
    let turned: Vec<Image> = pictures.iter().rev().cloned().collect();
    ready.ids(text, &turned)?;
    let seen = |id: &u32| ready.reader.to_tokenizer_ids(&[*id]) != [*id];
    match ready.generator.cached().iter().any(seen) {
        false => Ok(()),
        true => Err("rows of other images stayed in the cache".into()),
    }
}

/// Invalid prompts are rejected before anything is computed.
fn check_refusals(ready: &mut TestVisionLanguageModel, prompt: &Json) -> Result<(), BoxError> {
    let one = pictures(prompt)?;
    let mut refused = |text: &str, count: usize| {
        let pictures: Vec<Image> = one.iter().cycle().take(count).cloned().collect();
        let TestVisionLanguageModel {
            reader,
            generator,
            tokenizer,
        } = &mut *ready;
        let read = reader.read(
            (text, &pictures),
            (tokenizer, false),
            generator,
            &mut |_, _| true,
        );
        match read {
            Err(e) => Ok(e),
            Ok(_) => Err(BoxError::from(format!(
                "{text:?} with {count} images was accepted"
            ))),
        }
    };
    let places = refused("<image> and <image>", 1)?;
    let many = refused(&"<image>".repeat(200), 200)?;
    match (&places, &many) {
        (ModelError::Places { places: 2, .. }, ModelError::Context { context: 320, .. }) => Ok(()),
        _ => Err(format!("{places}; {many}").into()),
    }
}

fn check(dir: &Path, device: &Device) -> Result<(), BoxError> {
    let json = json(&dir.join("reference.json"))?;
    let byte = json["byte"].as_f64().ok_or("no step size")?;
    let prompts = json["prompts"].as_array().ok_or("no prompts")?;
    let files = ModelFiles::open(dir)?;
    let model = files.vision_language(|spec| DecoderOptions::new(&spec.decoder))?;
    let mut ready = TestVisionLanguageModel::open(&files, device, 320)?;
    for prompt in prompts {
        if prompt.get("pixels").is_some() {
            check_pixels(&model, prompt, &pictures(prompt)?, byte)?;
        }
        check_template(&files, &ready, prompt)?;
        check_prompt(&mut ready, prompt)?;
    }
    check_again(&mut ready, &prompts[1])?;
    check_refusals(&mut ready, &prompts[0])?;
    // With chunks of seven tokens, prefill chunks end within an image.
    let mut pieces = TestVisionLanguageModel::open(&files, device, 7)?;
    check_prompt(&mut pieces, &prompts[1])
}

/// The tests of this suite.
pub(super) fn tests() -> Vec<SuiteTest> {
    let entries = std::fs::read_dir(data("vision-language"))
        .into_iter()
        .flatten();
    let mut dirs: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.join("config.json").is_file())
        .collect();
    dirs.sort();
    assert!(!dirs.is_empty(), "tests/data/vision-language has no models");
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
            let name = format!("vision-language/{name}");
            let test =
                move |device: &Device| check(&dir, device).map_err(|e| Failed::from(one_line(&*e)));
            tests.push(SuiteTest::variant_on(executor, name, variant, test));
        }
    }
    tests
}
