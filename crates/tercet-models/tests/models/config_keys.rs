//! Tests of the rule for configuration keys: read, refused because they change the result, or
//! ignored with a note.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use tercet::Device;
use tercet_models::config::{RopeScaling, ignored_keys};
use tercet_models::gguf::Gguf;
use tercet_models::mmap::MappedFile;
use tercet_models::{DecoderOptions, DecoderSpec, EncoderSpec, HfFolder, ModelFiles, SafeTensors};

use crate::common::{GgufWriter, safetensors, temp_dir};

/// The configurations that `save_pretrained` of transformers 5.24 writes after reading those of the
/// committed folders, one a line.
const SAVED: &str = include_str!("saved_configs.jsonl");

fn object(json: Value) -> Map<String, Value> {
    match json {
        Value::Object(map) => map,
        other => panic!("{other} is not an object"),
    }
}

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/data")
        .join(name)
}

/// A configuration with the sizes that all decoders have, and `more`.
fn decoder(model_type: &str, more: Value) -> Map<String, Value> {
    let mut config = object(json!({
        "model_type": model_type, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3,
        "num_key_value_heads": 3, "head_dim": 8, "intermediate_size": 32, "vocab_size": 48,
        "max_position_embeddings": 128, "hidden_act": "silu", "rms_norm_eps": 1e-5,
    }));
    if model_type.starts_with("gemma") {
        config.insert("hidden_act".into(), "gelu_pytorch_tanh".into());
    }
    for (name, value) in object(more) {
        config.insert(name, value);
    }
    config
}

fn encoder(model_type: &str, more: Value) -> Map<String, Value> {
    let mut config = decoder(model_type, json!({"hidden_act": "gelu", "pad_token_id": 0}));
    for name in ["num_key_value_heads", "head_dim", "rms_norm_eps"] {
        config.remove(name);
    }
    config.extend(object(more));
    config
}

#[test]
fn published_forms_open() {
    let phi = decoder(
        "phi3",
        json!({
            "original_max_position_embeddings": 100, "sliding_window": 9, "full_attn_mod": 1,
            "interpolate_factor": 1, "lm_head_bias": false, "mlp_bias": false,
            "rope_scaling": {
                "type": "longrope", "rope_type": "longrope", "rope_theta": 10000.0,
                "short_factor": [1.0, 1.1, 1.3, 1.7], "long_factor": [1.0, 1.5, 3.0, 6.0],
                "partial_rotary_factor": 1.0, "original_max_position_embeddings": 100,
            },
        }),
    );
    let qwen = decoder(
        "qwen2",
        json!({
            "rope_theta": 1e6, "sliding_window": 32, "max_window_layers": 1, "use_sliding_window": false,
            "use_mrope": false,
        }),
    );
    let gemma2 = decoder(
        "gemma2",
        json!({
            "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 8, "sliding_window": 20,
            "attn_logit_softcapping": null, "final_logit_softcapping": 8.0, "cache_implementation": "hybrid",
        }),
    );
    let gemma3 = decoder(
        "gemma3_text",
        json!({
            "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 8, "sliding_window": 7,
            "sliding_window_pattern": 6, "rope_theta": 1e6, "rope_local_base_freq": 1e4,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0}, "cache_implementation": "hybrid",
        }),
    );
    let of_phi = [
        "full_attn_mod",
        "interpolate_factor",
        "lm_head_bias",
        "mlp_bias",
    ];
    for (config, ignored) in [
        (phi, &of_phi[..]),
        (qwen, &["use_mrope"]),
        (gemma2, &["cache_implementation"]),
        (gemma3, &["cache_implementation"]),
    ] {
        assert_eq!(ignored_keys(&config).unwrap(), ignored, "{config:?}");
        // The keys change nothing.
        let mut without = config.clone();
        without.retain(|name, _| !ignored.contains(&name.as_str()));
        assert_eq!(
            DecoderSpec::from_json(&config).unwrap(),
            DecoderSpec::from_json(&without).unwrap()
        );
        assert!(ignored_keys(&without).unwrap().is_empty());
    }
}

#[test]
fn keys_without_a_meaning_are_named() {
    let names = |config: &Map<String, Value>| ignored_keys(config).unwrap().join(" ");
    for (config, ignored) in [
        // Keys of training, of files and of runtimes are not worth a note.
        (
            decoder(
                "llama",
                json!({"use_cache": true, "pretraining_tp": 2, "attention_dropout": 0.1}),
            ),
            "",
        ),
        (
            decoder(
                "llama",
                json!({"_name_or_path": "x", "transformers_version": "4.1", "auto_map": {}}),
            ),
            "",
        ),
        (
            decoder(
                "llama",
                json!({"neftune_noise_alpha": 5, "do_sample": true, "temperature": 0.6}),
            ),
            "do_sample neftune_noise_alpha temperature",
        ),
        (
            decoder(
                "llama",
                json!({"sliding_window": 4096, "use_qk_norm": true}),
            ),
            "sliding_window use_qk_norm",
        ),
        (
            decoder(
                "llama",
                json!({"max_sequence_length": 2048, "alibi": false}),
            ),
            "alibi max_sequence_length",
        ),
        (
            decoder(
                "llama",
                json!({"rope_scaling": {"rope_type": "default", "factor": 8.0}}),
            ),
            "rope_scaling.factor",
        ),
        (
            decoder(
                "llama",
                json!({"rope_scaling": {"type": "linear", "factor": 8.0, "finetuned": true}}),
            ),
            "rope_scaling.finetuned",
        ),
        (
            decoder(
                "mistral",
                json!({"rope_scaling": null, "layer_norm_eps": 1e-6}),
            ),
            "layer_norm_eps",
        ),
        (
            decoder(
                "gemma2",
                json!({"use_bidirectional_attention": false, "sliding_window": 4,
            "query_pre_attn_scalar": 8}),
            ),
            "use_bidirectional_attention",
        ),
        (
            encoder(
                "bert",
                json!({"_num_labels": 5, "use_cache": true, "gelu": 1}),
            ),
            "_num_labels gelu",
        ),
        (
            encoder(
                "modernbert",
                json!({"layer_norm_eps": 1e-5, "norm_eps": 1e-5, "hidden_activation": "gelu"}),
            ),
            "hidden_act layer_norm_eps",
        ),
        (
            object(json!({"model_type": "vit", "smooth": true})),
            "smooth",
        ),
        (
            object(
                json!({"model_type": "gpt2", "n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 64,
            "vocab_size": 48, "layer_norm_epsilon": 1e-5, "hidden_size": 24}),
            ),
            "hidden_size",
        ),
    ] {
        assert_eq!(names(&config), ignored, "{config:?}");
    }
}

#[test]
fn keys_with_a_meaning_are_refused_by_name() {
    for (config, said) in [
        (
            decoder(
                "gemma2",
                json!({"use_bidirectional_attention": true, "sliding_window": 4,
            "query_pre_attn_scalar": 8}),
            ),
            "`use_bidirectional_attention` = true",
        ),
        (
            decoder(
                "llama",
                json!({"per_layer_config": {"0": {"mlp_bias": true}}}),
            ),
            "`per_layer_config`",
        ),
        (
            decoder(
                "phi",
                json!({"layer_norm_eps": 1e-5, "hidden_act": "gelu_new", "qk_layernorm": true}),
            ),
            "`qk_layernorm` = true",
        ),
        (
            encoder(
                "vit",
                json!({"image_size": 16, "patch_size": 8, "head_dim": 5}),
            ),
            "`head_dim` = 5",
        ),
        (
            object(
                json!({"model_type": "gpt2", "n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 64,
            "vocab_size": 48, "layer_norm_epsilon": 1e-5, "hidden_size": 25}),
            ),
            "`hidden_size` = 25 is not supported; supported: 24",
        ),
    ] {
        let refused = ignored_keys(&config).unwrap_err().to_string();
        assert!(refused.contains(said), "{refused}");
    }
}

#[test]
fn a_rotated_part_is_read_where_the_family_reads_it() {
    for (model_type, more, dims) in [
        ("llama", json!({}), 8),
        ("mistral", json!({}), 8),
        ("qwen2", json!({}), 8),
        ("qwen3", json!({}), 8),
        ("olmo2", json!({}), 8),
        ("granite", json!({}), 8),
        ("phi3", json!({}), 4),
        ("stablelm", json!({"layer_norm_eps": 1e-5}), 4),
        (
            "phi",
            json!({"layer_norm_eps": 1e-5, "hidden_act": "gelu_new"}),
            4,
        ),
    ] {
        let mut config = decoder(model_type, more);
        let ropes =
            json!({"rope_theta": 1e4, "rope_type": "default", "partial_rotary_factor": 0.5});
        config.insert("rope_parameters".into(), ropes);
        let spec = DecoderSpec::from_json(&config).unwrap();
        assert_eq!(spec.rope_dims, dims, "{model_type}");
        let noted = ignored_keys(&config).unwrap();
        let name = "rope_parameters.partial_rotary_factor".to_string();
        assert_eq!(noted.contains(&name), dims == 8, "{model_type}: {noted:?}");
    }
    // Rotary frequencies for half a head cannot rotate a whole head.
    let ropes = json!({"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5});
    let config = decoder("llama", json!({"rope_parameters": ropes}));
    let refused = ignored_keys(&config).unwrap_err().to_string();
    assert!(
        refused.contains("`rope_parameters.partial_rotary_factor` = 0.5"),
        "{refused}"
    );
}

#[test]
fn the_outer_trained_length_is_read_where_the_class_has_it() {
    let ropes = json!({
        "type": "longrope", "short_factor": [1.0, 1.0, 1.0, 1.0], "long_factor": [2.0, 2.0, 2.0, 2.0],
        "original_max_position_embeddings": 64,
    });
    let original = |config: &Map<String, Value>| {
        let spec = DecoderSpec::from_json(config).unwrap();
        match spec.ropes[0].scaling {
            RopeScaling::LongRope { original, .. } => original,
            ref other => panic!("{other:?}"),
        }
    };
    let outer = json!({"rope_scaling": ropes, "original_max_position_embeddings": 32});
    assert_eq!(original(&decoder("phi3", outer.clone())), 32);
    let llama = decoder("llama", outer);
    assert_eq!(original(&llama), 64);
    assert_eq!(
        ignored_keys(&llama).unwrap(),
        ["original_max_position_embeddings"]
    );
}

#[test]
fn what_transformers_saves_means_the_same() {
    for line in SAVED.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let name = line["folder"].as_str().unwrap();
        let saved = object(line["config"].clone());
        let read = ignored_keys(&saved);
        assert!(read.is_ok(), "{name}: {}", read.unwrap_err());
        let folder = HfFolder::open(data(name)).unwrap();
        if name.starts_with("decoders/") && !name.contains("mistral3") {
            let mut first = DecoderSpec::from_json(folder.config()).unwrap();
            let mut then = DecoderSpec::from_json(&saved).unwrap();
            // Absent tokens have the defaults of the class.
            for spec in [&mut first, &mut then] {
                (spec.bos, spec.eos) = (None, Vec::new());
            }
            assert_eq!(then, first, "{name}");
        } else if name.starts_with("encoders/") && !name.contains("gemma") {
            let first = EncoderSpec::from_json(folder.config()).unwrap();
            assert_eq!(EncoderSpec::from_json(&saved).unwrap(), first, "{name}");
        }
    }
}

/// The keys of a `model_type` that the committed list has, and their defaults.
fn class_keys(model_type: &str) -> Map<String, Value> {
    let list = include_str!("../../../tercet-networks/src/config/transformers_keys.jsonl");
    let line = list
        .lines()
        .map(|line| object(serde_json::from_str(line).unwrap()))
        .find(|line| line.get("model_type") == Some(&json!(model_type)));
    object(line.unwrap()["keys"].clone())
}

#[test]
fn absent_keys_have_the_defaults_of_the_class() {
    let (mut compared, mut differing) = (0, Vec::new());
    for line in SAVED.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let name = line["folder"].as_str().unwrap();
        if !name.starts_with("decoders/") || name.contains("mistral3") {
            continue;
        }
        let saved = object(line["config"].clone());
        let model_type = saved["model_type"].as_str().unwrap();
        for (key, default) in class_keys(model_type) {
            // Skip sizes, without which a model is refused, and token ids, which other files may
            // also specify.
            if default.is_null() || key.ends_with("token_id") {
                continue;
            }
            let (mut with, mut without) = (saved.clone(), saved.clone());
            with.insert(key.clone(), default);
            without.remove(&key);
            let (Ok(with), Ok(without)) = (
                DecoderSpec::from_json(&with),
                DecoderSpec::from_json(&without),
            ) else {
                continue;
            };
            compared += 1;
            if with != without {
                differing.push(format!("{name} {key}"));
            }
        }
    }
    assert!(compared > 300, "{compared}");
    assert!(differing.is_empty(), "{differing:?}");
}

#[test]
fn nomic_bert_with_new_keys_and_old_tensors_opens() {
    let old = data("encoders/nomic_bert-a");
    let was = HfFolder::open(&old).unwrap();
    let config = was.config();
    let new = json!({
        "model_type": "nomic_bert", "hidden_size": config["n_embd"], "num_hidden_layers": config["n_layer"],
        "num_attention_heads": config["n_head"], "intermediate_size": config["n_inner"],
        "max_position_embeddings": config["n_positions"], "layer_norm_eps": config["layer_norm_epsilon"],
        "vocab_size": config["vocab_size"], "type_vocab_size": config.get("type_vocab_size"),
        "hidden_act": "silu", "pad_token_id": config.get("pad_token_id"),
        "rope_parameters": {"rope_theta": config["rotary_emb_base"], "rope_type": "default"},
    });
    let dir = temp_dir("nomic-new-keys");
    std::fs::copy(old.join("model.safetensors"), dir.join("model.safetensors")).unwrap();
    std::fs::write(dir.join("config.json"), new.to_string()).unwrap();
    let spec = HfFolder::open(&dir).unwrap().encoder_spec().unwrap();
    assert_eq!(spec, was.encoder_spec().unwrap());
    assert!(spec.old_names && spec.fused_qkv);
}

/// A folder like `from`, with three tensors for each expert.
fn with_experts_apart(from: &Path, dir: &Path) {
    let path = from.join("model.safetensors");
    let file = SafeTensors::open(&path).unwrap();
    let (mut header, mut bytes) = (Map::new(), Vec::new());
    let mut add = |name: String, dtype: &str, shape: &[usize], data: &[u8]| {
        let begin = bytes.len();
        bytes.extend_from_slice(data);
        let offsets = [begin, bytes.len()];
        header.insert(
            name,
            json!({"dtype": dtype, "shape": shape, "data_offsets": offsets}),
        );
    };
    for tensor in file.tensors() {
        let (name, shape, data) = (tensor.name(), tensor.shape(), file.data(tensor));
        let dtype = tensor.dtype().name();
        let split: &[&str] = match name.rsplit('.').next() {
            Some("gate_up_proj") => &["gate_proj", "up_proj"],
            Some("down_proj") if name.contains("mlp.experts") => &["down_proj"],
            _ => {
                add(name.to_string(), dtype, shape, data);
                continue;
            }
        };
        let base = name.rsplit_once('.').unwrap().0;
        let part = [shape[1] / split.len(), shape[2]];
        let len = data.len() / (shape[0] * split.len());
        for (i, chunk) in data.chunks(len).enumerate() {
            let (expert, own) = (i / split.len(), split[i % split.len()]);
            add(format!("{base}.{expert}.{own}.weight"), dtype, &part, chunk);
        }
    }
    let file = safetensors(&Value::from(header).to_string(), &bytes);
    std::fs::write(dir.join("model.safetensors"), file).unwrap();
    std::fs::copy(from.join("config.json"), dir.join("config.json")).unwrap();
}

#[test]
fn a_tensor_for_each_expert_gives_the_same_logits() {
    let from = data("decoders/qwen3_5_moe-a");
    let dir = temp_dir("qwen3-5-experts");
    with_experts_apart(&from, &dir);
    let logits = |dir: &Path| {
        let files = ModelFiles::open(dir).unwrap();
        let decoder = files.decoder(DecoderOptions::new).unwrap();
        let mut generator = decoder.generator(&Device::cpu()).unwrap();
        generator.forward(&[3, 1, 4, 1, 5]).unwrap().logits.to_vec()
    };
    let (apart, together) = (logits(&dir), logits(&from));
    assert_eq!(apart.len(), together.len());
    let off = apart.iter().zip(&together).map(|(a, b)| (a - b).abs());
    let off = off.fold(0.0, f32::max);
    assert!(off < 1e-5, "{off}");
}

#[test]
fn the_text_selects_the_divisors_of_longrope() {
    let files = ModelFiles::open(data("decoders/phi3-a")).unwrap();
    let logits = |context: usize, text_length: Option<usize>| {
        let decoder = files.decoder(|spec| DecoderOptions {
            context,
            text_length,
            ..DecoderOptions::new(spec)
        });
        let mut generator = decoder.unwrap().generator(&Device::cpu()).unwrap();
        generator.forward(&[3, 1, 4, 1, 5]).unwrap().logits.to_vec()
    };
    let limit = files.decoder_spec().unwrap().longrope_limit();
    assert_eq!(limit, Some(100));
    let (short, long) = (logits(100, None), logits(128, None));
    assert_ne!(short, long);
    assert_eq!(logits(128, Some(5)), short);
    assert_eq!(logits(128, Some(101)), long);
}

fn gguf(change: impl FnOnce(GgufWriter) -> GgufWriter) -> Gguf {
    let writer = GgufWriter::default()
        .str("general.architecture", "llama")
        .u32("llama.context_length", 64)
        .u32("llama.embedding_length", 16)
        .u32("llama.block_count", 1)
        .u32("llama.feed_forward_length", 32)
        .u32("llama.attention.head_count", 2)
        .f32("llama.attention.layer_norm_rms_epsilon", 1e-5);
    let writer = change(writer)
        .tensor("token_embd.weight", &[16, 10], 24, &[0; 160])
        .tensor("blk.0.ffn_up.weight", &[16, 32], 24, &[0; 512]);
    Gguf::parse(MappedFile::from_vec(writer.bytes())).unwrap()
}

/// The keys that llama.cpp's training program adds to those of the model, with their values.
fn finetuned(mut writer: GgufWriter) -> GgufWriter {
    for name in [
        "expert_count",
        "expert_used_count",
        "expert_feed_forward_length",
        "expert_shared_feed_forward_length",
        "expert_shared_count",
        "leading_dense_block_count",
        "pooling_type",
        "rescale_every_n_layers",
        "time_mix_extra_dim",
        "time_decay_extra_dim",
        "attention.q_lora_rank",
        "attention.kv_lora_rank",
        "attention.relative_buckets_count",
        "attention.sliding_window",
        "ssm.inner_size",
        "ssm.conv_kernel",
        "ssm.state_size",
        "ssm.time_step_rank",
        "wkv.head_size",
    ] {
        writer = writer.u32(&format!("llama.{name}"), 0);
    }
    for name in [
        "expert_weights_scale",
        "logit_scale",
        "attn_logit_softcapping",
        "final_logit_softcapping",
        "residual_scale",
        "embedding_scale",
        "attention.max_alibi_bias",
        "attention.clamp_kqv",
        "attention.layer_norm_epsilon",
        "attention.scale",
        "rope.scaling.factor",
        "rope.scaling.yarn_log_multiplier",
    ] {
        writer = writer.f32(&format!("llama.{name}"), 0.0);
    }
    writer
        .u32("llama.decoder_start_token_id", u32::MAX)
        .u32("tokenizer.ggml.bos_token_id", u32::MAX)
        .u32("tokenizer.ggml.eot_token_id", u32::MAX)
        .u32("tokenizer.ggml.eos_token_id", 3)
        .f32("llama.rope.scaling.attn_factor", 1.0)
        .str("llama.rope.scaling.type", "none")
}

#[test]
fn neutral_gguf_keys_are_ignored() {
    let plain =
        DecoderSpec::from_gguf(&gguf(|writer| writer.u32("tokenizer.ggml.eos_token_id", 3)));
    let plain = plain.unwrap();
    let tuned = DecoderSpec::from_gguf(&gguf(finetuned)).unwrap();
    assert_eq!(tuned, plain);
    assert_eq!((tuned.bos, tuned.eos), (None, vec![3]));
    let file = gguf(|writer| {
        writer
            .f32("llama.attention.clamp_kqv", 0.0)
            .u32("llama.own_key", 5)
    });
    let ignored = ModelFiles::Gguf(file).ignored_keys().unwrap();
    assert_eq!(ignored, ["llama.attention.clamp_kqv", "llama.own_key"]);
}

#[test]
fn meaningful_gguf_keys_are_refused() {
    for (name, value) in [
        ("attention.clamp_kqv", 8.0),
        ("attention.max_alibi_bias", 8.0),
        ("residual_scale", 0.5),
        ("final_logit_softcapping", 30.0),
    ] {
        let key = format!("llama.{name}");
        let file = gguf(|writer| writer.f32(&key, value));
        let refused = DecoderSpec::from_gguf(&file).unwrap_err().to_string();
        assert!(refused.contains(&format!("`{key}` = {value}")), "{refused}");
    }
}
