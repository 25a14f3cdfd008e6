//! Tests of invalid vision-language folders, and of images with too many tiles, with the messages
//! of their errors.

use std::path::Path;

use crate::common::temp_dir;
use serde_json::{Value, json};
use tercet_models::{DecoderOptions, Image, ImageError, ModelFiles, VisionLanguageSpec};

const A: &str = "idefics3-a";

/// The error of building the first test folder with a changed file.
fn refused(file: &str, change: impl FnOnce(&mut Value)) -> String {
    let own = crate::common::data("vision-language").join(A);
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

fn built(dir: &Path) -> Result<tercet_models::VisionLanguageGraphs, tercet_models::Error> {
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
    check(
        CONFIG,
        |v| v["text_config"]["hidden_act"] = json!("mish"),
        &["`text_config.hidden_act`"],
    );
    check(
        CONFIG,
        |v| v["vision_config"]["num_channels"] = json!(4),
        &["`vision_config.num_channels`"],
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
fn what_is_not_said_is_assumed() {
    let config = json!({
        "model_type": "smolvlm", "image_token_id": 49190, "scale_factor": 4, "vocab_size": 49280, "use_cache": true,
        "text_config": {
            "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 24, "vocab_size": 49280,
            "_flash_attn_2_enabled": true, "is_llama_config": true, "qk_layer_norms": false, "use_resampler": false,
            "perceiver_config": {"resampler_depth": 6}, "rope_scaling": null, "rope_theta": 130_000.0, "pad_token_id": 2
        },
        "vision_config": {
            "hidden_size": 768, "image_size": 512, "patch_size": 16, "num_attention_heads": 12, "use_base_siglip": true,
            "max_image_size": {"longest_edge": 512}, "size": {"longest_edge": 2048}, "model_type": "smolvlm_vision"
        }
    });
    let spec = VisionLanguageSpec::from_json(config.as_object().unwrap()).unwrap();
    assert_eq!((spec.side(), spec.rows_of_tile()), (512, 64));
    let (tower, decoder) = (&spec.tower, &spec.decoder);
    assert_eq!((tower.layers.len(), tower.ffn), (12, 3072));
    assert_eq!((decoder.heads, decoder.kv_heads), (32, 32));
    assert_eq!((decoder.head_dim, decoder.context), (64, 2048));
    assert_eq!(decoder.norm.eps, 1e-6);
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
        &["`image_seq_len` is 5", "4 embeddings per tile"],
    );
    check(
        "tokenizer_config.json",
        |v| v["extra_special_tokens"] = json!({"image_token": "<picture>"}),
        &["<picture>", "<image>"],
    );
}

#[test]
fn long_pictures_have_bounds() {
    let model = built(&crate::common::data("vision-language").join(A)).unwrap();
    // An image one pixel high becomes one row of tiles, whatever its width.
    let tiles = model.processor.tiles(1 << 16, 1).unwrap();
    assert_eq!((tiles.rows, tiles.columns, tiles.count()), (1, 2, 3));
    let line = Image::from_rgb(1 << 16, 1, vec![7; 3 << 16]).unwrap();
    assert_eq!(model.processor.prepare(&line).unwrap().tiles(), tiles);
    let dot = Image::from_rgb(1, 1, vec![7; 3]).unwrap();
    assert_eq!(model.processor.prepare(&dot).unwrap().tiles().count(), 5);
    // Without resizing, there may be too many tiles.
    let dir = temp_dir("unresized");
    let own = crate::common::data("vision-language").join(A);
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
    assert!(matches!(many, ImageError::Tiles { most: 4096, .. }));
}
