//! Tests that a model with adapters equals the model into which they were merged.

use tercet::DType;
use tercet_models::adapter::merge;
use tercet_models::save::RepackFormat;
use tercet_models::{Adapter, LowRank, ModelFiles, SaveOptions, ScaledAdapter};

use crate::adapters::{adapter, distance, drawn, with};
use crate::common::temp_dir;
use crate::rows::{FOLDER, HALVES, PACKED, model};

#[test]
fn merged_models_give_the_logits_of_their_adapters() {
    let dir = temp_dir("merging");
    let floats = |dtype| SaveOptions {
        floats: Some(dtype),
        packed: RepackFormat::F16,
    };
    let q8_0 = SaveOptions {
        packed: RepackFormat::Q8_0,
        ..SaveOptions::default()
    };
    for (i, (file, options, stored, tolerance)) in [
        (FOLDER, SaveOptions::default(), "F16", 2e-3),
        (FOLDER, floats(DType::F32), "F32", 5e-6),
        (FOLDER, floats(DType::BF16), "BF16", 2e-2),
        (HALVES, SaveOptions::default(), "F16", 2e-3),
        (HALVES, floats(DType::F32), "F32", 5e-6),
        (PACKED, SaveOptions::default(), "F16", 2e-3),
        (PACKED, q8_0, "Q8_0", 3e-2),
    ]
    .into_iter()
    .enumerate()
    {
        let files = model(file);
        let config = files.decoder_spec().unwrap();
        let used = [
            ScaledAdapter::new(adapter(&config, "one", 4, 0.2)),
            ScaledAdapter::new(adapter(&config, "two", 2, 0.1)).scaled(-0.5),
        ];
        let to = dir.join(i.to_string());
        let saved = merge(&files, &used, &to, &options).unwrap();
        assert_eq!(saved.changed.len(), 4 * 7);
        assert!(saved.changed.iter().all(|(_, s)| *s == stored), "{saved:?}");
        let unpacked = file == PACKED && stored != "Q8_0";
        assert_eq!(saved.unpacked.len(), if unpacked { 28 } else { 0 });
        let merged = ModelFiles::open(&to).unwrap();
        assert_eq!(merged.decoder_spec().unwrap(), config);
        merged.tokenizer().unwrap();
        let (got, want) = (with(&merged, &[]), with(&files, &used));
        let off = distance(&got, &want);
        assert!(off < tolerance, "{file} as {stored}: {off}");
        assert!(
            distance(&got, &with(&files, &[])) > 0.05,
            "{file}: it changes something"
        );
    }
}

#[test]
fn what_cannot_be_merged_is_refused() {
    let dir = temp_dir("merging-refused");
    let files = model(FOLDER);
    let config = files.decoder_spec().unwrap();
    let refused = |adapter: Adapter, scale: f64| {
        let to = dir.join("merged");
        let used = [ScaledAdapter::new(adapter).scaled(scale)];
        let error = merge(&files, &used, &to, &SaveOptions::default()).expect_err("refused");
        assert!(!to.join("model.safetensors").exists());
        error.to_string()
    };
    let own = adapter(&config, "own", 2, 0.1);
    assert!(refused(own.clone(), f64::INFINITY).contains("the scale"));
    let single = |module: &str, rows: usize| {
        let low = LowRank::new(
            module,
            drawn("a", &[2, 256], 0.1),
            drawn("b", &[rows, 2], 0.1),
            1.0,
        );
        Adapter::new([(module.to_string(), low.unwrap())].into())
    };
    let text = refused(single("lm_head", 2048), 1.0);
    assert!(
        text.contains("`lm_head`") && text.contains("embedding"),
        "{text}"
    );
    assert!(refused(single("model.layers.7.mlp.up_proj", 768), 1.0).contains("layers.7"));
    assert!(refused(single("model.layers.0.mlp.up_proj", 512), 1.0).contains("up_proj.lora_B"));
    let mut modules = own.modules().clone();
    let module = "model.layers.0.mlp.up_proj";
    let (a, b) = (drawn("a", &[2, 256], 1e3), drawn("b", &[768, 2], 1e3));
    modules.insert(module.into(), LowRank::new(module, a, b, 2.0).unwrap());
    let to = dir.join("merged");
    let used = [ScaledAdapter::new(Adapter::new(modules))];
    let error = merge(&files, &used, &to, &SaveOptions::default()).expect_err("beyond F16");
    assert!(error.to_string().contains(module), "{error}");
    assert_eq!(
        std::fs::read_dir(&to).unwrap().count(),
        0,
        "nothing is left"
    );
    let saved = [("score.weight".to_string(), drawn("x", &[2, 256], 1.0))].into();
    let text = refused(own.clone().with_saved(saved), 1.0);
    assert!(text.contains("`score.weight`"), "{text}");
    let saved = [("model.norm.weight".to_string(), drawn("x", &[255], 1.0))].into();
    let text = refused(own.with_saved(saved), 1.0);
    assert!(text.contains("`model.norm.weight`"), "{text}");
}
