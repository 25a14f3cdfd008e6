//! Tests of adapters: round trips, the names and row orders of the formats, and errors.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use tercet::{CompileOptions, Device, Tensor};
use tercet_models::config::LayerSpec;
use tercet_models::training::{FineTuneMode, LoraOptions};
use tercet_models::{
    Adapter, AdapterError, Decoder, DecoderOptions, DecoderSpec, Gguf, LowRank, ModelError,
    ModelFiles, SafeTensors, ScaledAdapter,
};

use crate::common::temp_dir;
use crate::gradients::stir;
use crate::rows::{
    FOLDER, HALVES, PACKED, Rows, TEXTS, cross_entropy, floats, logits, model, near, training,
    try_losses,
};

/// Pseudo-random values of magnitude `width`.
pub(crate) fn drawn(name: &str, shape: &[usize], width: f32) -> Tensor {
    let start = name
        .bytes()
        .fold(1u32, |h, b| h.wrapping_mul(31) ^ u32::from(b));
    floats(shape, |i| {
        let mut x = start.wrapping_add(i as u32).wrapping_mul(2_654_435_761);
        x = (x ^ (x >> 15)).wrapping_mul(2_246_822_519);
        width * ((x >> 8) as f32 / (1 << 23) as f32 - 1.0)
    })
}

/// An adapter of all projections of the small model.
pub(crate) fn adapter(config: &DecoderSpec, name: &str, rank: usize, width: f32) -> Adapter {
    let mut modules = BTreeMap::new();
    let (q, kv) = (
        config.heads * config.head_dim,
        config.kv_heads * config.head_dim,
    );
    for layer in 0..config.layers.len() {
        for (module, rows, cols) in [
            ("self_attn.q_proj", q, config.hidden),
            ("self_attn.k_proj", kv, config.hidden),
            ("self_attn.v_proj", kv, config.hidden),
            ("self_attn.o_proj", config.hidden, q),
            ("mlp.gate_proj", config.ffn, config.hidden),
            ("mlp.up_proj", config.ffn, config.hidden),
            ("mlp.down_proj", config.hidden, config.ffn),
        ] {
            let module = format!("model.layers.{layer}.{module}");
            let a = drawn(&format!("{name}{module}a"), &[rank, cols], 0.1);
            let b = drawn(&format!("{name}{module}b"), &[rows, rank], width);
            let low = LowRank::new(&module, a, b, 8.0).unwrap();
            modules.insert(module, low);
        }
    }
    Adapter::new(modules)
}

fn expect_equal(a: &Adapter, b: &Adapter) {
    assert_eq!(
        a.modules().keys().collect::<Vec<_>>(),
        b.modules().keys().collect::<Vec<_>>()
    );
    for (module, low) in a.modules() {
        let other = &b.modules()[module];
        assert_eq!(low.alpha(), other.alpha(), "{module}");
        assert_eq!(low.a().bytes(), other.a().bytes(), "{module}");
        assert_eq!(low.b().bytes(), other.b().bytes(), "{module}");
        assert_eq!(
            (low.a().shape(), low.b().shape()),
            (other.a().shape(), other.b().shape())
        );
    }
}

/// Logits after the first text, with adapters.
pub(crate) fn with(files: &ModelFiles, adapters: &[ScaledAdapter]) -> Vec<f32> {
    let options = |config: &DecoderSpec| DecoderOptions {
        adapters: adapters.to_vec(),
        ..DecoderOptions::new(config)
    };
    logits(files, options, TEXTS[0]).concat()
}

/// The largest difference relative to the largest logit.
pub(crate) fn distance(got: &[f32], want: &[f32]) -> f32 {
    let most = want.iter().fold(0f32, |m, x| m.max(x.abs()));
    let pairs = got.iter().zip(want);
    pairs.fold(0f32, |m, (a, b)| m.max((a - b).abs())) / most
}

#[test]
fn both_formats_give_back_what_was_written() {
    let dir = temp_dir("adapters-round-trip");
    let config = model(FOLDER).decoder_spec().unwrap();
    let own = adapter(&config, "own", 4, 0.1);
    own.write_peft(dir.join("peft")).unwrap();
    expect_equal(&own, &Adapter::from_peft(dir.join("peft")).unwrap());
    own.write_gguf(dir.join("own.gguf"), &config).unwrap();
    expect_equal(
        &own,
        &Adapter::from_gguf(dir.join("own.gguf"), &config).unwrap(),
    );
    // Read with the packed GGUF model's specification, and with format detection.
    let pairs = model(PACKED).decoder_spec().unwrap();
    expect_equal(&own, &Adapter::open(dir.join("own.gguf"), &pairs).unwrap());
    expect_equal(&own, &Adapter::open(dir.join("peft"), &pairs).unwrap());
    let left = std::fs::read_dir(&dir)
        .unwrap()
        .chain(std::fs::read_dir(dir.join("peft")).unwrap());
    let partial = |e: std::io::Result<std::fs::DirEntry>| {
        e.unwrap().file_name().to_string_lossy().contains("partial")
    };
    assert!(!left.into_iter().any(partial));

    // Modules with different ranks and alphas.
    let mut modules = own.modules().clone();
    let module = "model.layers.1.mlp.up_proj";
    let (a, b) = (drawn("a", &[2, 256], 0.1), drawn("b", &[768, 2], 0.1));
    modules.insert(module.into(), LowRank::new(module, a, b, 3.0).unwrap());
    let mixed = Adapter::new(modules).with_base("some/model");
    mixed.write_peft(dir.join("peft")).unwrap();
    let again = Adapter::from_peft(dir.join("peft")).unwrap();
    expect_equal(&mixed, &again);
    assert_eq!(again.base(), Some("some/model"));
    let error = mixed
        .write_gguf(dir.join("mixed.gguf"), &config)
        .unwrap_err();
    assert!(matches!(error, AdapterError::Unsupported(_)), "{error}");
    assert!(!dir.join("mixed.gguf").exists());
}

#[test]
fn names_and_rows_are_those_of_the_formats() {
    let dir = temp_dir("adapters-names");
    let config = model(FOLDER).decoder_spec().unwrap();
    let own = adapter(&config, "own", 4, 0.1);
    own.write_peft(&dir).unwrap();
    let file = SafeTensors::open(dir.join("adapter_model.safetensors")).unwrap();
    let a = "base_model.model.model.layers.3.self_attn.q_proj.lora_A.weight";
    assert_eq!(file.tensor(a).unwrap().shape(), [4, 256]);
    assert_eq!(file.tensors().len(), 2 * 7 * 4);
    let json: Value =
        serde_json::from_slice(&std::fs::read(dir.join("adapter_config.json")).unwrap()).unwrap();
    let wanted = json!({"peft_type": "LORA", "r": 4, "lora_alpha": 8.0, "task_type": "CAUSAL_LM"});
    for (key, value) in wanted.as_object().unwrap() {
        assert_eq!(&json[key], value, "{key}");
    }
    let targets: Vec<&str> = json["target_modules"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| t.as_str().unwrap())
        .collect();
    assert_eq!(
        targets,
        [
            "down_proj",
            "gate_proj",
            "k_proj",
            "o_proj",
            "q_proj",
            "up_proj",
            "v_proj"
        ]
    );

    own.write_gguf(dir.join("own.gguf"), &config).unwrap();
    let gguf = Gguf::open(dir.join("own.gguf")).unwrap();
    assert_eq!(gguf.metadata().get_str("general.type").unwrap(), "adapter");
    assert_eq!(gguf.metadata().get_str("adapter.type").unwrap(), "lora");
    assert_eq!(gguf.metadata().get_f32("adapter.lora.alpha").unwrap(), 8.0);
    let info = gguf.tensor("blk.2.attn_k.weight.lora_b").unwrap();
    assert_eq!(info.dims(), [4, 64], "the contiguous one first");
    let written: Vec<f32> = gguf
        .data(info)
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
        .collect();
    // The same row permutation as `reshape(heads, 2, head_dim / 2, ..).swapaxes(1, 2)`.
    let plain = &own.modules()["model.layers.2.self_attn.k_proj"];
    let plain = plain.b().as_slice::<f32>().unwrap();
    for head in 0..2 {
        for pair in 0..16 {
            for side in 0..2 {
                let (to, from) = (head * 32 + pair * 2 + side, head * 32 + side * 16 + pair);
                assert_eq!(written[to * 4..][..4], plain[from * 4..][..4]);
            }
        }
    }
    let v = gguf.tensor("blk.2.attn_v.weight.lora_b").unwrap();
    assert_eq!(
        gguf.data(v),
        own.modules()["model.layers.2.self_attn.v_proj"].b().bytes()
    );
}

#[test]
fn an_adapter_is_the_same_in_either_file_of_a_model() {
    let (folder, halves) = (model(FOLDER), model(HALVES));
    let own = adapter(&folder.decoder_spec().unwrap(), "own", 4, 0.2);
    let used = [ScaledAdapter::new(own)];
    let (a, b) = (with(&folder, &used), with(&halves, &used));
    assert!(distance(&a, &b) < 1e-5, "{}", distance(&a, &b));
    let bare = with(&folder, &[]);
    assert!(distance(&a, &bare) > 0.05, "it changes something");
}

#[test]
fn scales_add_up_and_zeros_change_nothing() {
    for file in [FOLDER, PACKED] {
        let files = model(file);
        let config = files.decoder_spec().unwrap();
        let bare = with(&files, &[]);
        let zeros = ScaledAdapter::new(adapter(&config, "zeros", 4, 0.0));
        let own = ScaledAdapter::new(adapter(&config, "own", 4, 0.2));
        assert_eq!(
            with(&files, std::slice::from_ref(&zeros)),
            bare,
            "{file}: B = 0"
        );
        assert_eq!(
            with(&files, &[own.clone().scaled(0.0)]),
            bare,
            "{file}: a scale of 0"
        );
        let once = with(&files, std::slice::from_ref(&own));
        let halves = [own.clone().scaled(0.25), zeros, own.scaled(0.75)];
        let parts = with(&files, &halves);
        assert!(distance(&parts, &once) < 1e-5, "{file}");
        assert!(distance(&bare, &once) > 0.05, "{file}");
    }
}

#[test]
fn what_was_trained_is_what_is_applied() {
    for file in [FOLDER, PACKED] {
        let files = model(file);
        let text = TEXTS[0];
        let rows = Rows::of(&[&[text]], text.len());
        let mut own = training(&files, rows.shape, FineTuneMode::Lora(LoraOptions::new(4)));
        stir(&mut own);
        let mut exe = own.compile(&Device::cpu(), &CompileOptions::new()).unwrap();
        let [_, sum, _] = try_losses(&mut *exe, &rows).unwrap();
        let trained = own
            .adapter(|name| exe.read_state(name).map_err(ModelError::from))
            .unwrap();
        let dir = temp_dir(&format!("adapters-trained-{}", file.len()));
        trained.write_peft(&dir).unwrap();
        let used = ScaledAdapter::new(Adapter::from_peft(&dir).unwrap());
        let options = |config: &DecoderSpec| DecoderOptions {
            adapters: vec![used.clone()],
            ..DecoderOptions::new(config)
        };
        let want = cross_entropy(&logits(&files, options, text), text);
        assert!(
            near(f64::from(sum), want, 2e-5),
            "{file}: {sum}, want {want}"
        );
        let error = own.weights(|_| -> Result<Tensor, ModelError> { panic!("not asked") });
        assert!(error.is_err());
    }
}

fn build(files: &ModelFiles, adapter: Adapter) -> String {
    let config = files.decoder_spec().unwrap();
    let options = DecoderOptions {
        adapters: vec![ScaledAdapter {
            adapter: Arc::new(adapter),
            scale: 1.0,
        }],
        ..DecoderOptions::new(&config)
    };
    let built = Decoder::build(&config, &files.weights(), options);
    built.expect_err("refused").to_string()
}

#[test]
fn adapters_of_other_models_are_refused_by_name() {
    let files = model(FOLDER);
    let config = files.decoder_spec().unwrap();
    let other = |change: fn(&mut DecoderSpec)| {
        let mut other = config.clone();
        change(&mut other);
        adapter(&other, "other", 2, 0.1)
    };
    let text = build(
        &files,
        other(|c| c.layers = vec![LayerSpec::FULL; 5]).with_base("some/larger"),
    );
    assert!(
        text.contains("model.layers.4.mlp.down_proj") && text.contains("some/larger"),
        "{text}"
    );
    let text = build(&files, other(|c| c.hidden = 128));
    assert!(
        text.contains("mlp.") || text.contains("self_attn."),
        "{text}"
    );
    assert!(text.contains("lora_"), "{text}");
    let text = build(&files, other(|c| c.ffn = 512));
    assert!(
        text.contains("model.layers.0.mlp.gate_proj.lora_B"),
        "{text}"
    );
    let saved = BTreeMap::from([("lm_head.weight".to_string(), drawn("x", &[2], 1.0))]);
    let text = build(&files, adapter(&config, "own", 2, 0.1).with_saved(saved));
    assert!(text.contains("`lm_head.weight`"), "{text}");

    let module = "model.layers.0.mlp.up_proj";
    let bad = LowRank::new(
        module,
        drawn("a", &[3, 8], 1.0),
        drawn("b", &[8, 2], 1.0),
        1.0,
    );
    assert!(matches!(
        bad,
        Err(AdapterError::Rank {
            found: 2,
            expected: 3,
            ..
        })
    ));
    let bad = LowRank::new(
        module,
        drawn("a", &[3, 8], 1.0),
        drawn("b", &[8, 3], 1.0),
        f64::NAN,
    );
    assert!(matches!(bad, Err(AdapterError::Number { .. })));
    let bad = LowRank::new(
        module,
        drawn("a", &[24], 1.0),
        drawn("b", &[8, 3], 1.0),
        1.0,
    );
    assert!(matches!(bad, Err(AdapterError::Shape { .. })));
}
