//! Attention windows in configurations: 0, null, negative ones, ones above the context, and lists
//! of layer types without a window. The expectations are those of transformers 5.24.

use serde_json::{Map, Value, json};
use tercet::{DType, Device, Tensor};
use tercet_models::{DecoderSpec, EncoderOutput, EncoderSpec, ModelFiles};

fn config(model_type: &str, more: &[(&str, Value)]) -> Map<String, Value> {
    let sizes = json!({
        "model_type": model_type, "hidden_size": 24, "num_hidden_layers": 4, "num_attention_heads": 3,
        "num_key_value_heads": 3, "head_dim": 8, "intermediate_size": 32, "vocab_size": 48,
        "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "layer_norm_eps": 1e-5,
        "norm_epsilon": 1e-5, "num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "pad_token_id": 0,
        "norm_eps": 1e-5,
    });
    let mut config = sizes.as_object().unwrap().clone();
    if model_type == "ministral3" {
        let rope = json!({
            "rope_type": "default", "rope_theta": 1e6, "llama_4_scaling_beta": 0.1,
            "original_max_position_embeddings": 64,
        });
        config.insert("rope_parameters".into(), rope);
    }
    for (name, value) in more {
        config.insert((*name).to_string(), value.clone());
    }
    config
}

/// The windows of the layers, or the error.
fn windows(model_type: &str, more: &[(&str, Value)]) -> Result<Vec<Option<usize>>, String> {
    let config = config(model_type, more);
    if model_type == "modernbert" {
        let spec = EncoderSpec::from_json(&config).map_err(|e| e.to_string())?;
        return Ok(spec.layers.iter().map(|layer| layer.window).collect());
    }
    let spec = DecoderSpec::from_json(&config).map_err(|e| e.to_string())?;
    Ok(spec.layers.iter().map(|layer| layer.window).collect())
}

const LISTED: &[&str] = &["gemma2", "gemma3_text", "cohere2", "gpt_oss"];
const OF_ALL: &[&str] = &["mistral", "mixtral", "phi3", "starcoder2", "ministral3"];
const SWITCHED: &[&str] = &["qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "smollm3"];

fn types(of: &str) -> (&'static str, Value) {
    ("layer_types", json!([of, of, of, of]))
}

#[test]
fn a_window_of_both_sides_may_be_the_token_itself() {
    let both = ("use_bidirectional_attention", json!(true));
    for (whole, half) in [(0, 0), (1, 0), (2, 1), (3, 1), (8, 4), (999, 499)] {
        let own = [
            both.clone(),
            ("sliding_window", json!(whole)),
            types("sliding_attention"),
        ];
        assert_eq!(
            windows("gemma3_text", &own).unwrap(),
            [Some(half); 4],
            "{whole}"
        );
        let own = [
            ("local_attention", json!(whole)),
            types("sliding_attention"),
        ];
        assert_eq!(
            windows("modernbert", &own).unwrap(),
            [Some(half); 4],
            "{whole}"
        );
    }
    for whole in [json!(null), json!(-1), json!(0.5), json!("auto")] {
        let own = [both.clone(), ("sliding_window", whole.clone())];
        let error = windows("gemma3_text", &own).unwrap_err();
        assert!(error.contains("sliding_window"), "{whole}: {error}");
        let error = windows("modernbert", &[("local_attention", whole.clone())]).unwrap_err();
        assert!(error.contains("local_attention"), "{whole}: {error}");
    }
}

#[test]
fn a_causal_window_leaves_a_key() {
    let on = ("use_sliding_window", json!(true));
    let first = ("max_window_layers", json!(0));
    for model_type in LISTED.iter().chain(OF_ALL).chain(SWITCHED) {
        let mut base = vec![];
        if SWITCHED.contains(model_type) {
            base.push(on.clone());
            // Qwen2-MoE has windows below the number, the others from it on.
            let first = if *model_type == "qwen2_moe" {
                ("max_window_layers", json!(4))
            } else {
                first.clone()
            };
            base.push(first);
        }
        for window in [json!(0), json!(-1), json!(1.5)] {
            let own = [&base[..], &[("sliding_window", window.clone())]].concat();
            let error = windows(model_type, &own).unwrap_err();
            assert!(
                error.contains("sliding_window") && error.contains("null"),
                "{model_type} {window}: {error}"
            );
        }
        // A window above the context is stated and covers all keys.
        let own = [&base[..], &[("sliding_window", json!(1000))]].concat();
        let found = windows(model_type, &own).unwrap();
        assert!(found.contains(&Some(1000)), "{model_type}: {found:?}");
    }
}

#[test]
fn null_is_full_attention_unless_layers_slide() {
    let null = ("sliding_window", json!(null));
    for model_type in OF_ALL {
        assert_eq!(
            windows(model_type, std::slice::from_ref(&null)).unwrap(),
            [None; 4],
            "{model_type}"
        );
    }
    for model_type in ["qwen2", "qwen3", "qwen3_moe", "smollm3"] {
        let own = [
            ("use_sliding_window", json!(true)),
            ("max_window_layers", json!(0)),
            null.clone(),
        ];
        assert_eq!(
            windows(model_type, &own).unwrap(),
            [None; 4],
            "{model_type}"
        );
    }
    for model_type in LISTED {
        for own in [
            vec![null.clone(), types("sliding_attention")],
            vec![null.clone()],
        ] {
            let error = windows(model_type, &own).unwrap_err();
            assert!(
                error.contains("sliding_window") && error.contains("full_attention"),
                "{model_type}: {error}"
            );
        }
    }
}

#[test]
fn layers_without_a_window_do_not_read_it() {
    for window in [json!(0), json!(-1), json!(null), json!(7)] {
        for model_type in LISTED {
            let own = [("sliding_window", window.clone()), types("full_attention")];
            assert_eq!(
                windows(model_type, &own).unwrap(),
                [None; 4],
                "{model_type} {window}"
            );
        }
        for model_type in SWITCHED {
            let own = [
                ("use_sliding_window", json!(false)),
                ("sliding_window", window.clone()),
            ];
            assert_eq!(
                windows(model_type, &own).unwrap(),
                [None; 4],
                "{model_type} {window}"
            );
        }
    }
}

#[test]
fn smollm3_has_windows_in_layers_without_rotation() {
    let own = [("use_sliding_window", json!(true))];
    assert_eq!(windows("smollm3", &own).unwrap(), [None; 4]);
    let own = [
        ("use_sliding_window", json!(true)),
        ("sliding_window", json!(5)),
    ];
    let found = windows("smollm3", &own).unwrap();
    assert_eq!(found, [None, None, None, Some(5)]);
}

/// Hidden states that transformers 5.24 computes for folders of `tests/data/encoders` whose window
/// is 0.
const ZERO: &str = include_str!("zero_windows.json");

#[test]
fn windows_of_zero_compute_as_the_reference_does() {
    let references: Map<String, Value> = serde_json::from_str(ZERO).unwrap();
    assert_eq!(references.len(), 2);
    for (name, reference) in references {
        let from = crate::common::data("encoders").join(&name);
        let dir = crate::common::temp_dir(&format!("zero-window-{name}"));
        let weights = "model.safetensors";
        std::fs::copy(from.join(weights), dir.join(weights)).unwrap();
        let text = std::fs::read_to_string(from.join("config.json")).unwrap();
        let mut config: Value = serde_json::from_str(&text).unwrap();
        config[reference["field"].as_str().unwrap()] = json!(0);
        std::fs::write(dir.join("config.json"), config.to_string()).unwrap();

        let files = ModelFiles::open(&dir).unwrap();
        let encoder = files.encoder(&EncoderOutput::Hidden, DType::F32).unwrap();
        let ids: Vec<i32> = serde_json::from_value(reference["ids"].clone()).unwrap();
        let want: Vec<f64> = serde_json::from_value(reference["hidden"].clone()).unwrap();
        let len = ids.len();
        let mut run = encoder.compile(&Device::cpu(), 1, len).unwrap();
        let ids = Tensor::from_slice(&[1, len], &ids).unwrap();
        let mask = Tensor::from_bools(&[1, len], &vec![true; len]).unwrap();
        let inputs: Vec<(&str, &Tensor)> = [("ids", &ids), ("mask", &mask)]
            .into_iter()
            .filter(|(name, _)| run.signature().inputs.iter().any(|i| i.name == *name))
            .collect();
        let found = run.run(&inputs).unwrap().remove(0).to_f64s();
        assert_eq!(found.len(), want.len(), "{name}");
        for (x, y) in found.iter().zip(&want) {
            assert!((x - y).abs() < 1e-3, "{name}: {x} {y}");
        }
    }
}
