//! Tests that unsupported configuration fields and inconsistent sizes are errors with the field's
//! name.

use std::path::Path;

use crate::common::temp_dir;
use serde_json::{Map, Value, json};
use tercet_models::{DecoderOptions, DecoderSpec, HfFolder, ModelFiles};

/// The configuration of a tiny model with one field changed.
fn changed(model: &str, field: &str, value: Value) -> Map<String, Value> {
    let opened = HfFolder::open(folder(model)).expect("the model is committed");
    let mut config = opened.config().clone();
    assert!(DecoderSpec::from_json(&config).is_ok(), "{model}");
    config.insert(field.to_string(), value);
    config
}

fn folder(model: &str) -> std::path::PathBuf {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/decoders");
    data.join(model)
}

#[test]
fn what_is_not_honoured_is_refused_by_name() {
    let method = |name: &str| json!({"quant_method": name});
    let gptq = json!({"quant_method": "gptq", "bits": 9, "group_size": 32});
    let awq = json!({"quant_method": "awq", "bits": 4, "group_size": 0});
    let both = json!({"quant_method": "bitsandbytes", "load_in_4bit": true, "load_in_8bit": true});
    let af4 = json!({"quant_method": "bitsandbytes", "bnb_4bit_quant_type": "af4"});
    let sparse = json!({"quant_method": "compressed-tensors", "format": "marlin-24"});
    for (model, field, value) in [
        ("falcon-a", "alibi", json!(true)),
        ("falcon-a", "parallel_attn", json!(false)),
        ("falcon-a", "num_ln_in_parallel_attn", json!(3)),
        ("gpt2-a", "scale_attn_by_inverse_layer_idx", json!(true)),
        ("gpt2-a", "scale_attn_weights", json!(false)),
        ("gpt2-a", "add_cross_attention", json!(true)),
        ("mamba-a", "is_causal", json!(false)),
        ("granitehybrid-a", "is_causal", json!(false)),
        ("gpt_oss-a", "swiglu_alpha", json!(1.0)),
        ("gpt_oss-a", "experts_per_token", json!(1)),
        ("gpt_oss-a", "quantization_config", method("quanto")),
        ("llama-a", "quantization_config", method("mxfp4")),
        ("deepseek_v3-a", "quantization_config", method("aqlm")),
        ("llama-a", "quantization_config", both),
        ("llama-a", "quantization_config", af4),
        ("llama-a", "quantization_config", gptq),
        ("llama-a", "quantization_config", awq),
        ("llama-a", "quantization_config", sparse),
        ("deepseek_v3-a", "scoring_func", json!("softmax")),
        ("deepseek_v3-a", "topk_method", json!("greedy")),
        ("deepseek_v3-a", "num_key_value_heads", json!(1)),
        ("deepseek_v2-a", "norm_topk_prob", json!(true)),
        ("deepseek_v2-a", "moe_layer_freq", json!(2)),
        ("mamba-a", "d_inner", json!(31)),
        ("mamba-a", "rms_norm", json!(false)),
        ("mamba2-a", "norm_before_gate", json!(true)),
        ("mamba2-a", "time_step_limit", json!([0.0])),
        ("granitehybrid-a", "layer_types", json!(["mamba"])),
        (
            "granitehybrid-a",
            "position_embedding_type",
            json!("learned"),
        ),
        ("granitehybrid-a", "mamba_d_head", json!(5)),
        ("nemotron_h-a", "hybrid_override_pattern", json!("M-*MX")),
        ("nemotron_h-a", "mlp_hidden_act", json!("silu")),
        ("nemotron_moe-a", "n_shared_experts", json!(2)),
        ("nemotron_moe-a", "n_routed_experts", json!(null)),
        ("falcon_h1-a", "hidden_act", json!("gelu")),
        ("falcon_h1-a", "ssm_multipliers", json!([0.5, 2.0])),
        ("falcon_h1-a", "mamba_d_head", json!(5)),
        ("falcon_h1-a", "mamba_use_mlp", json!(false)),
        ("falcon_h1-a", "attn_layer_indices", json!([1])),
        ("qwen3_next-a", "layer_types", json!(["full_attention"])),
        ("qwen3_next-a", "use_sliding_window", json!(true)),
        ("qwen3_next-a", "head_dim", json!(null)),
        ("qwen3_5-a", "attn_output_gate", json!(false)),
        ("ministral3-a", "rope_parameters", json!(null)),
        ("mistral3-a", "text_config", json!(null)),
        ("mistral3-a", "quantization_config", method("aqlm")),
    ] {
        let refused = DecoderSpec::from_json(&changed(model, field, value)).unwrap_err();
        let refused = refused.to_string();
        assert!(refused.contains(field), "{model}: {refused}");
    }
}

#[test]
fn another_name_of_the_same_family_is_read() {
    let json = changed("deepseek_v3-a", "model_type", json!("kimi_k2"));
    let own = DecoderSpec::from_json(&json).unwrap();
    assert_eq!(own.family.model_type(), "kimi_k2");
    let opened = HfFolder::open(folder("deepseek_v3-a")).expect("the model is committed");
    let other = DecoderSpec::from_json(opened.config()).unwrap();
    assert_eq!(
        (own.attention.latent, own.experts),
        (other.attention.latent, other.experts)
    );
}

#[test]
fn experts_that_cannot_be_chosen_are_refused() {
    for (field, value) in [
        ("n_group", json!(4)),
        ("topk_group", json!(7)),
        ("n_routed_experts", json!(7)),
        ("num_experts_per_tok", json!(5)),
    ] {
        let refused = DecoderSpec::from_json(&changed("deepseek_v3-a", field, value)).unwrap_err();
        let refused = refused.to_string();
        assert!(refused.contains("experts"), "{field}: {refused}");
    }
}

#[test]
fn positions_end_with_their_table() {
    let files = ModelFiles::open(folder("gpt2-a")).unwrap();
    let decoder = |context| {
        files.decoder(|spec| DecoderOptions {
            context,
            ..DecoderOptions::new(spec)
        })
    };
    assert!(decoder(96).is_ok());
    let refused = decoder(97).unwrap_err().to_string();
    assert!(
        refused.contains("a row for each of 96 positions"),
        "{refused}"
    );
}

#[test]
fn queries_grow_with_positions_as_said() {
    let spec = |model: &str| ModelFiles::open(folder(model)).unwrap().decoder_spec();
    let growth = spec("ministral3-a").unwrap().attention.temperature.unwrap();
    assert_eq!((growth.beta, growth.original), (0.5, 16));
    assert_eq!([growth.at(0), growth.at(15)], [1.0; 2]);
    assert_eq!(
        [16, 47].map(|p| growth.at(p)),
        [2.0f32, 3.0].map(|x| 1.0 + 0.5 * x.ln())
    );
    assert_eq!(spec("mistral-a").unwrap().attention.temperature, None);
    assert_eq!(spec("mistral3-b").unwrap().attention.temperature, None);

    let mut ropes = json!({
        "rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 64,
    });
    let read = |ropes: &Value| {
        DecoderSpec::from_json(&changed("ministral3-a", "rope_parameters", ropes.clone()))
    };
    let refused = read(&ropes).unwrap_err().to_string();
    assert!(
        refused.contains("rope_parameters.llama_4_scaling_beta"),
        "{refused}"
    );
    ropes["llama_4_scaling_beta"] = json!(-0.1);
    let refused = read(&ropes).unwrap_err().to_string();
    assert!(refused.contains("llama_4_scaling_beta"), "{refused}");
    ropes["llama_4_scaling_beta"] = json!(0);
    assert_eq!(read(&ropes).unwrap().attention.temperature, None);
    // Families without position-dependent query scale ignore the field.
    ropes["llama_4_scaling_beta"] = json!(0.1);
    let other = changed("mistral-a", "rope_parameters", ropes);
    assert_eq!(
        DecoderSpec::from_json(&other)
            .unwrap()
            .attention
            .temperature,
        None
    );
    let ignored = tercet_models::config::ignored_keys(&other).unwrap();
    assert_eq!(ignored, ["rope_parameters.llama_4_scaling_beta"]);
}

/// A folder with this configuration and the tensors of a committed model.
fn with_config(model: &str, config: &Map<String, Value>) -> HfFolder {
    let dir = temp_dir(&format!("decoder-fields-{model}"));
    let tensors = "model.safetensors";
    std::fs::copy(folder(model).join(tensors), dir.join(tensors)).unwrap();
    std::fs::write(
        dir.join("config.json"),
        Value::from(config.clone()).to_string(),
    )
    .unwrap();
    HfFolder::open(dir).unwrap()
}

#[test]
fn decoders_beside_a_tower_open_for_texts_alone() {
    for (model, prefix) in [
        ("mistral3-a", "language_model.model.layers.1."),
        ("mistral3-b", "model.language_model.layers.1."),
    ] {
        let mut config = HfFolder::open(folder(model)).unwrap().config().clone();
        config["text_config"]["num_hidden_layers"] = json!(1);
        let refused = with_config(model, &config).decoder_spec().unwrap_err();
        let refused = tercet::one_line(&refused);
        assert!(refused.contains(prefix), "{refused}");
        for (field, value) in [
            ("hidden_act", json!("mish")),
            ("model_type", json!("mistral4")),
        ] {
            let mut config = HfFolder::open(folder(model)).unwrap().config().clone();
            config["text_config"][field] = value;
            let refused = DecoderSpec::from_json(&config).unwrap_err().to_string();
            let name = format!("`text_config.{field}`");
            assert!(refused.contains(&name), "{refused}");
        }
        let files = ModelFiles::open(folder(model)).unwrap();
        let refused = files.vision_language(|spec| DecoderOptions::new(&spec.decoder));
        let refused = tercet::one_line(&refused.map(|_| ()).unwrap_err());
        assert!(refused.contains("mistral3"), "{refused}");
    }
}
