//! Folders of models of pictures and texts that are not sound, and pictures that become too many tiles: errors that say what.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::path::Path;

use common::temp_dir;
use serde_json::{Value, json};
use tercet_models::{DecoderOptions, ModelFiles, Picture, PictureError};

const A: &str = "idefics3-a";

/// What building says of the first folder with a file changed.
fn refused(file: &str, change: impl FnOnce(&mut Value)) -> String {
    let own = common::data("vision-language").join(A);
    let dir = temp_dir(&format!("vision-language-{file}"));
    for entry in std::fs::read_dir(&own).unwrap() {
        let from = entry.unwrap().path();
        std::fs::copy(&from, dir.join(from.file_name().unwrap())).unwrap();
    }
    let path = dir.join(file);
    let read = std::fs::read(&path).ok();
    let mut json: Value = read.map_or(json!({}), |bytes| serde_json::from_slice(&bytes).unwrap());
    change(&mut json);
    std::fs::write(&path, json.to_string()).unwrap();
    let error = built(&dir).map(|_| ()).unwrap_err();
    tercet::one_line(&error)
}

fn built(dir: &Path) -> Result<tercet_models::VisionLanguage, tercet_models::Error> {
    let files = ModelFiles::open(dir)?;
    files.vision_language(|spec| DecoderOptions::new(&spec.decoder))
}

#[track_caller]
fn check(file: &str, change: impl FnOnce(&mut Value), said: &[&str]) {
    let error = refused(file, change);
    for part in [&[file][..], said].concat() {
        assert!(error.contains(part), "{error}: without {part}");
    }
}

#[test]
fn configurations_are_honoured_or_refused() {
    const CONFIG: &str = "config.json";
    check(CONFIG, |v| v["shuffled"] = json!(1), &["`shuffled`"]);
    check(
        CONFIG,
        |v| v["text_config"]["odd"] = json!(1),
        &["`text_config.odd`"],
    );
    check(
        CONFIG,
        |v| v["vision_config"]["odd"] = json!(1),
        &["`vision_config.odd`"],
    );
    check(
        CONFIG,
        |v| v["text_config"]["model_type"] = json!("mistral"),
        &["`text_config.model_type`", "llama"],
    );
    check(
        CONFIG,
        |v| v["text_config"]["use_resampler"] = json!(true),
        &["`text_config.use_resampler`"],
    );
    check(
        CONFIG,
        |v| v["text_config"]["tie_word_embeddings"] = json!(true),
        &["tie_word_embeddings"],
    );
    check(
        CONFIG,
        |v| v["scale_factor"] = json!(3),
        &["4 patches", "3 by 3"],
    );
    check(
        CONFIG,
        |v| v["image_token_id"] = json!(1 << 20),
        &["image_token_id"],
    );
    check(CONFIG, |v| v["vision_config"] = json!(null), &["missing"]);
    check(
        CONFIG,
        |v| v["vision_config"]["num_hidden_layers"] = json!(1),
        &["encoder.layers.1"],
    );
}

#[test]
fn processors_are_honoured_or_refused() {
    const PICTURES: &str = "preprocessor_config.json";
    check(PICTURES, |v| v["sharpen"] = json!(2), &["`sharpen`"]);
    check(
        PICTURES,
        |v| v["max_image_size"]["longest_edge"] = json!(20),
        &["20 pixels", "16"],
    );
    check(
        PICTURES,
        |v| v["size"] = json!({"height": 32, "width": 32}),
        &["size.longest_edge"],
    );
    check(
        PICTURES,
        |v| v["image_processor_type"] = json!("ViTImageProcessor"),
        &["Idefics3 or SmolVLM"],
    );
    check(PICTURES, |v| v["resample"] = json!(0), &["`resample`"]);
    check(
        "processor_config.json",
        |v| v["image_seq_len"] = json!(5),
        &["`image_seq_len` is 5", "4 rows"],
    );
    check(
        "tokenizer_config.json",
        |v| v["extra_special_tokens"] = json!({"image_token": "<picture>"}),
        &["<picture>", "<image>"],
    );
}

#[test]
fn long_pictures_have_bounds() {
    let model = built(&common::data("vision-language").join(A)).unwrap();
    // A line becomes one row of tiles, whatever its length.
    let tiles = model.processor.tiles(1 << 16, 1).unwrap();
    assert_eq!((tiles.rows, tiles.columns, tiles.count()), (1, 2, 3));
    let line = Picture::from_rgb(1 << 16, 1, vec![7; 3 << 16]).unwrap();
    assert_eq!(model.processor.prepare(&line).unwrap().tiles(), tiles);
    let dot = Picture::from_rgb(1, 1, vec![7; 3]).unwrap();
    assert_eq!(model.processor.prepare(&dot).unwrap().tiles().count(), 5);
    // Without resizing there may be too many.
    let dir = temp_dir("unresized");
    let own = common::data("vision-language").join(A);
    for entry in std::fs::read_dir(&own).unwrap() {
        let from = entry.unwrap().path();
        std::fs::copy(&from, dir.join(from.file_name().unwrap())).unwrap();
    }
    let path = dir.join("preprocessor_config.json");
    let mut json: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    json["do_resize"] = json!(false);
    std::fs::write(&path, json.to_string()).unwrap();
    let model = built(&dir).unwrap();
    assert_eq!(model.processor.tiles(40, 16).unwrap().count(), 7);
    let many = model.processor.tiles(1 << 16, 1 << 11).unwrap_err();
    assert!(matches!(many, PictureError::Tiles { most: 4096, .. }));
}
