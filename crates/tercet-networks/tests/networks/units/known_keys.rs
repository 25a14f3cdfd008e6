use serde_json::{Map, Value, json};
use tercet_networks::config::{RopeScaling, family_names, with_notes};
use tercet_networks::internals::{ConfigClass, KEYS, is_base, is_same, scaling_reads};
use tercet_networks::{ConfigError, DecoderSpec};

#[test]
fn every_line_is_read() {
    for (i, line) in KEYS.lines().enumerate() {
        let parsed: Map<String, Value> = serde_json::from_str(line).unwrap();
        assert_eq!(parsed.contains_key("model_type"), i > 0, "{line}");
    }
    assert!(is_base("architectures") && scaling_reads("yarn", "beta_fast"));
    assert!(!scaling_reads("linear", "beta_fast"));
}

#[test]
fn every_family_has_its_class() {
    let kinds = family_names().into_iter();
    let names = kinds.flat_map(|of| of.model_types);
    for name in names.chain(["gemma3_text", "qwen3_5_moe_text"]) {
        // Kimi K2 has the class of DeepSeek V3.
        let known = ConfigClass::new(name).is_some();
        assert_eq!(known, name != "kimi_k2", "{name}");
    }
}

#[test]
fn defaults_are_compared_as_numbers_and_null_as_off() {
    assert!(is_same(&json!(1), &json!(1.0)) && is_same(&json!(false), &Value::Null));
    assert!(is_same(&json!([]), &Value::Null) && !is_same(&json!(2), &Value::Null));
    assert!(!is_same(&json!(false), &json!(true)) && !is_same(&json!(0), &json!(1)));
}

#[test]
fn every_decoder_reads_the_defaults_of_its_class() {
    let kinds = family_names();
    let decoders = kinds.iter().find(|of| of.kind == "language models");
    let mut failed = Vec::new();
    for name in &decoders.unwrap().model_types {
        let start = format!("{{\"model_type\":\"{name}\",");
        let Some(line) = KEYS.lines().find(|line| line.starts_with(&start)) else {
            continue;
        };
        let line: Value = serde_json::from_str(line).unwrap();
        let mut config = line["keys"].as_object().unwrap().clone();
        // Token ids may be those of another vocabulary.
        config.retain(|key, default| !default.is_null() && !key.ends_with("token_id"));
        config.insert("model_type".to_string(), json!(name));
        match DecoderSpec::from_json(&config) {
            Ok(spec) => assert_eq!(&spec.family.model_type(), name),
            // Some classes have no default for a size.
            Err(ConfigError::Missing { .. }) => {}
            Err(e) => failed.push(format!("{name}: {e}")),
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// A small llama, and other keys.
fn small(model_type: &str, keys: Value) -> Map<String, Value> {
    let config = json!({
        "model_type": model_type, "hidden_act": "silu", "hidden_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96,
        "head_dim": 16, "vocab_size": 300, "max_position_embeddings": 128
    });
    let (mut config, more) = match (config, keys) {
        (Value::Object(config), Value::Object(keys)) => (config, keys),
        _ => unreachable!("both are objects"),
    };
    config.extend(more);
    // The class's special tokens are beyond this vocabulary.
    config.extend([
        ("bos_token_id".into(), json!(-1)),
        ("eos_token_id".into(), json!(-1)),
    ]);
    config
}

#[test]
fn keys_that_masks_of_any_decoder_read_are_read() {
    let first: Value = serde_json::from_str(KEYS.lines().next().unwrap()).unwrap();
    let shared = first["shared"].as_object().unwrap();
    assert_eq!(shared.get("is_causal"), Some(&json!(true)));
    for (key, default) in shared {
        let flipped = json!(default.as_bool().map(|on| !on));
        let config = small("llama", json!({key: flipped}));
        let (read, notes) = with_notes(|| DecoderSpec::from_json(&config));
        assert!(!notes.contains(key), "{key} is ignored");
        assert_ne!(
            read.unwrap(),
            DecoderSpec::from_json(&small("llama", json!({}))).unwrap()
        );
    }
}

#[test]
fn attention_without_direction_is_bidirectional() {
    for off in [json!(false), Value::Null] {
        let spec = DecoderSpec::from_json(&small("qwen3", json!({"is_causal": off}))).unwrap();
        assert!(spec.is_bidirectional());
    }
    let spec = DecoderSpec::from_json(&small("qwen3", json!({"is_causal": true}))).unwrap();
    assert!(!spec.is_bidirectional());
}

#[test]
fn files_without_rotary_keys_have_those_of_the_class() {
    let rope = |name: &str, keys: Value| {
        let spec = DecoderSpec::from_json(&small(name, keys)).unwrap();
        spec.ropes[0].clone()
    };
    for (name, theta) in [
        ("llama", 1e4),
        ("mixtral", 1e6),
        ("smollm3", 2e6),
        ("cohere", 5e5),
        ("cohere2", 1e4),
        ("gpt_oss", 150_000.0),
        ("gemma3_text", 1e6),
        ("olmo3", 5e5),
    ] {
        assert_eq!(rope(name, json!({})).theta, theta, "{name}");
        assert_eq!(
            rope(name, json!({"rope_theta": 777.0})).theta,
            777.0,
            "{name}"
        );
    }
    let yarn = |rope: &RopeScaling| {
        matches!(
            rope,
            RopeScaling::Yarn {
                factor: 32.0,
                original: 4096,
                truncate: false,
                ..
            }
        )
    };
    assert!(yarn(&rope("gpt_oss", json!({})).scaling));
    let own = json!({"rope_parameters": {"rope_type": "default", "rope_theta": 5.0}});
    assert_eq!(rope("gpt_oss", own).scaling, RopeScaling::None);
}

#[test]
fn a_third_key_does_not_hide_the_ropes_of_layer_types() {
    let ropes = json!({
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 7e3},
        "rope_type": "default"
    });
    let config = small("gemma3_text", json!({"rope_parameters": ropes}));
    let (spec, notes) = with_notes(|| DecoderSpec::from_json(&config).unwrap());
    let thetas: Vec<f64> = spec.ropes.iter().map(|rope| rope.theta).collect();
    assert_eq!(thetas, [5e5, 7e3]);
    assert_eq!(spec.ropes[0].scaling, RopeScaling::Linear { factor: 8.0 });
    // Gemma reads another name of the activation.
    assert_eq!(notes, ["hidden_act", "rope_parameters.rope_type"]);
}

#[test]
fn older_names_of_longrope_are_read_for_phi_3() {
    for kind in ["yarn", "su", "longrope"] {
        let factors = vec![1.5; 8];
        let scaling = json!({"type": kind, "short_factor": factors, "long_factor": factors});
        let config = small(
            "phi3",
            json!({"rope_scaling": scaling, "original_max_position_embeddings": 64}),
        );
        let spec = DecoderSpec::from_json(&config).unwrap();
        assert!(
            matches!(spec.ropes[0].scaling, RopeScaling::LongRope { .. }),
            "{kind}"
        );
    }
}

#[test]
fn scores_of_gemma_3_are_not_capped() {
    let caps = json!({"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0});
    let (spec, notes) =
        with_notes(|| DecoderSpec::from_json(&small("gemma3_text", caps.clone())).unwrap());
    assert_eq!(
        (spec.attention.softcap, spec.scales.logit_softcap),
        (None, Some(30.0))
    );
    assert_eq!(notes, ["attn_logit_softcapping", "hidden_act"]);
    let spec = DecoderSpec::from_json(&small("gemma2", caps)).unwrap();
    assert_eq!(spec.attention.softcap, Some(50.0));
}

#[test]
fn null_clears_a_flag_that_is_set_by_default() {
    let read = |value: Value| {
        let spec = DecoderSpec::from_json(&small("falcon", json!({"parallel_attn": value})));
        spec.unwrap().residual
    };
    assert_eq!(read(Value::Null), read(json!(false)));
    assert_ne!(read(Value::Null), read(json!(true)));
}

#[test]
fn absent_sizes_and_epsilons_have_the_defaults_of_the_class() {
    let mut config = small("mixtral", json!({}));
    config.remove("num_attention_heads");
    let spec = DecoderSpec::from_json(&config).unwrap();
    assert_eq!((spec.heads, spec.norm.eps), (32, 1e-5));
    let experts = spec.experts.unwrap();
    assert_eq!((experts.count, experts.used), (8, 2));
    assert_eq!((spec.bos, spec.eos.len()), (None, 0));
}
