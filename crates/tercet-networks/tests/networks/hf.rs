//! Tests of Hugging Face folders, and of configurations from both sources.

use std::path::Path;

use crate::common::{GgufWriter, data, safetensors, temp_dir};
use serde_json::{Map, Value, json};
use tercet_files::{FolderError, Gguf, MappedFile};
use tercet_networks::{ConfigError, DecoderSpec, EncoderSpec, HfError, HfFolder, RopeLayout};

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        other => panic!("not an object: {other}"),
    }
}

fn llama() -> Map<String, Value> {
    object(json!({
        "model_type": "llama", "hidden_act": "silu", "hidden_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96,
        "vocab_size": 300, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
    }))
}

fn bert() -> Map<String, Value> {
    object(json!({
        "model_type": "bert", "hidden_act": "gelu", "hidden_size": 384, "num_hidden_layers": 6,
        "num_attention_heads": 12, "intermediate_size": 1536, "vocab_size": 30522,
        "max_position_embeddings": 512, "type_vocab_size": 2, "layer_norm_eps": 1e-12,
        "position_embedding_type": "absolute", "pad_token_id": 0, "use_cache": true,
        "directionality": "bidi",
    }))
}

fn with(mut map: Map<String, Value>, field: &str, value: Value) -> Map<String, Value> {
    map.insert(field.to_owned(), value);
    map
}

#[test]
fn the_demo_model_has_one_configuration() {
    let folder = HfFolder::open(data("tiny-rust-llama")).unwrap();
    let from_json = folder.decoder_spec().unwrap();
    assert_eq!(
        (from_json.hidden, from_json.layers.len(), from_json.heads),
        (256, 4, 8)
    );
    assert_eq!(
        (from_json.kv_heads, from_json.head_dim, from_json.ffn),
        (2, 32, 768)
    );
    assert_eq!((from_json.vocab, from_json.context), (2048, 512));
    assert_eq!(
        (from_json.bos, from_json.eos.as_slice()),
        (Some(0), &[0][..])
    );
    assert!(from_json.tied_embeddings && !from_json.biases.qkv && !from_json.biases.mlp);
    for name in ["f16", "q8_0"] {
        let path = data(&format!("tiny-rust-llama/tiny-rust-llama-{name}.gguf"));
        let from_gguf = DecoderSpec::from_gguf(&Gguf::open(path).unwrap()).unwrap();
        assert_eq!(from_gguf.rope_layout, RopeLayout::Pairs);
        let same_layout = DecoderSpec {
            rope_layout: RopeLayout::Halves,
            ..from_gguf
        };
        assert_eq!(same_layout, from_json);
    }
    assert_eq!(folder.weights().tensors().count(), 38);
    assert!(folder.weights().find("lm_head.weight").is_none());
}

#[test]
fn rope_theta_is_found_where_versions_put_it() {
    let theta = |map| DecoderSpec::from_json(&map).unwrap().ropes[0].theta;
    assert_eq!(theta(llama()), 10_000.0);
    assert_eq!(theta(with(llama(), "rope_theta", json!(5e5))), 5e5);
    let inner = json!({"rope_theta": 1e6, "rope_type": "default"});
    assert_eq!(theta(with(llama(), "rope_parameters", inner.clone())), 1e6);
    assert_eq!(theta(with(llama(), "rope_scaling", Value::Null)), 10_000.0);
    let both = with(
        with(llama(), "rope_parameters", inner),
        "rope_theta",
        json!(5e5),
    );
    assert!(matches!(
        DecoderSpec::from_json(&both),
        Err(ConfigError::Inconsistent { .. })
    ));
}

#[test]
fn llama_fields_that_change_the_result_are_refused() {
    for (field, value) in [
        ("hidden_act", json!("mish")),
        ("model_type", json!("rwkv")),
        (
            "rope_scaling",
            json!({"rope_type": "dynamic", "factor": 8.0}),
        ),
        ("rope_scaling", json!({"type": "ntk", "factor": 2.0})),
        ("quantization_config", json!({"bits": 4})),
        ("per_layer_config", json!({"1": {"hidden_act": "relu"}})),
    ] {
        let error = DecoderSpec::from_json(&with(llama(), field, value)).unwrap_err();
        assert!(
            matches!(&error, ConfigError::Unsupported { field: named, .. } if named.starts_with(field)),
            "{error:?}"
        );
    }
    for (field, value) in [
        ("hidden_size", json!(0)),
        ("hidden_size", json!("64")),
        ("vocab_size", json!(1_u64 << 40)),
        ("rms_norm_eps", json!(-1.0)),
        ("bos_token_id", json!(-2)),
        ("eos_token_id", json!([1, "2"])),
        ("tie_word_embeddings", json!(1)),
    ] {
        let error = DecoderSpec::from_json(&with(llama(), field, value)).unwrap_err();
        assert!(matches!(error, ConfigError::WrongType { .. }), "{error:?}");
    }
    for (field, value) in [
        ("num_key_value_heads", json!(3)),
        (
            "rope_scaling",
            json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 1.0}),
        ),
        (
            "rope_scaling",
            json!({"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}),
        ),
        ("head_dim", json!(15)),
        ("num_attention_heads", json!(6)),
        ("eos_token_id", json!([1, 300])),
    ] {
        let error = DecoderSpec::from_json(&with(llama(), field, value)).unwrap_err();
        assert!(
            matches!(error, ConfigError::Inconsistent { .. }),
            "{field}: {error:?}"
        );
    }
    let mut missing = llama();
    missing.remove("intermediate_size");
    assert_eq!(
        DecoderSpec::from_json(&missing).unwrap_err().to_string(),
        "the field `intermediate_size` is missing"
    );
    let harmless = with(llama(), "torch_dtype", json!("bfloat16"));
    assert!(DecoderSpec::from_json(&harmless).is_ok());
}

#[test]
fn tensors_that_would_not_be_read_are_refused() {
    let dir = temp_dir("hf-unknown-tensors");
    let config = Value::Object(llama()).to_string();
    let q_norm = "model.layers.1.self_attn.q_norm.weight";
    for (name, refused) in [
        (q_norm, true),
        ("model.layers.2.mlp.up_proj.weight", true),
        ("model.layers.2.eh_proj.weight", false),
        ("model.layers.1.mlp.up_proj.bias", true),
        ("model.layers.1.self_attn.rotary_emb.inv_freq", false),
        ("lm_head.weight", false),
        // Attention mask tensors that only other model families store.
        ("model.layers.1.attention.bias", true),
        ("model.layers.1.attn.masked_bias", true),
    ] {
        // A configuration claims no more tokens than a tensor has rows.
        let tensors = [
            ("model.embed_tokens.weight", 300),
            ("model.norm.weight", 1),
            (name, 1),
        ];
        write_sizes(&dir, "model.safetensors", &tensors);
        std::fs::write(dir.join("config.json"), &config).unwrap();
        let read = HfFolder::open(&dir).unwrap().decoder_spec();
        match read {
            Err(HfError::Config { source, .. }) if refused => {
                assert!(source.to_string().contains(name), "{source}");
            }
            other => assert_eq!(other.is_err(), refused, "{name}: {other:?}"),
        }
    }
    let file = gguf_llama().tensor("blk.0.attn_q_norm.weight", &[4], 0, &[0; 16]);
    let error = DecoderSpec::from_gguf(&Gguf::parse(MappedFile::from_vec(file.bytes())).unwrap());
    let error = error.unwrap_err();
    assert!(
        matches!(error, ConfigError::UnknownTensors { .. }),
        "{error}"
    );
}

#[test]
fn bert_fields() {
    let spec = EncoderSpec::from_json(&bert()).unwrap();
    assert_eq!((spec.hidden, spec.heads, spec.head_dim), (384, 12, 32));
    assert_eq!(spec.norm.eps, 1e-12);
    for (field, value) in [
        ("position_embedding_type", json!("relative_key")),
        ("is_decoder", json!(true)),
        ("hidden_act", json!("mish")),
        ("model_type", json!("deberta-v2")),
    ] {
        let error = EncoderSpec::from_json(&with(bert(), field, value)).unwrap_err();
        assert!(
            matches!(&error, ConfigError::Unsupported { field: named, .. } if named == field),
            "{error:?}"
        );
    }
    let odd = with(bert(), "embedding_size", json!(128));
    let ignored = tercet_networks::config::ignored_keys(&odd).unwrap();
    assert_eq!(ignored, ["embedding_size"]);
    let few = with(
        with(bert(), "model_type", json!("roberta")),
        "max_position_embeddings",
        json!(1),
    );
    assert!(matches!(
        EncoderSpec::from_json(&few),
        Err(ConfigError::Inconsistent { .. })
    ));
}

fn gguf_llama() -> GgufWriter {
    GgufWriter::default()
        .str("general.architecture", "llama")
        .u32("llama.context_length", 64)
        .u32("llama.embedding_length", 16)
        .u32("llama.block_count", 1)
        .u32("llama.feed_forward_length", 32)
        .u32("llama.attention.head_count", 2)
        .f32("llama.attention.layer_norm_rms_epsilon", 1e-5)
        .tensor("token_embd.weight", &[16, 10], 24, &[0; 160])
        .tensor("blk.0.ffn_up.weight", &[16, 32], 24, &[0; 512])
}

#[test]
fn llama_from_gguf_metadata() {
    let read = |writer: GgufWriter| {
        DecoderSpec::from_gguf(&Gguf::parse(MappedFile::from_vec(writer.bytes())).unwrap())
    };
    let config = read(gguf_llama()).unwrap();
    assert_eq!((config.vocab, config.kv_heads, config.head_dim), (10, 2, 8));
    assert!(config.tied_embeddings && config.bos.is_none() && config.eos.is_empty());
    let eos = gguf_llama()
        .u32("tokenizer.ggml.eos_token_id", 3)
        .u32("tokenizer.ggml.eot_token_id", 4);
    assert_eq!(read(eos).unwrap().eos, [3, 4]);

    for refused in [
        gguf_llama().str("llama.rope.scaling.type", "dynamic"),
        gguf_llama().str("llama.rope.scaling.type", "longrope"),
        gguf_llama().f32("llama.rope.scaling.attn_factor", 1.5),
        gguf_llama().u32("llama.attention.value_length", 4),
    ] {
        let error = read(refused).unwrap_err();
        assert!(
            matches!(error, ConfigError::Unsupported { .. }),
            "{error:?}"
        );
    }
    let both = gguf_llama().f32("llama.rope.scaling.factor", 2.0).tensor(
        "rope_freqs.weight",
        &[4],
        0,
        &1f32.to_le_bytes().repeat(4),
    );
    let error = read(both).unwrap_err();
    assert!(
        matches!(error, ConfigError::Inconsistent { .. }),
        "{error:?}"
    );
    let of_no_number = read(gguf_llama().u32("llama.expert_count", 8)).unwrap_err();
    assert!(
        of_no_number
            .to_string()
            .contains("`llama.expert_used_count`"),
        "{of_no_number}"
    );
    let too_many = gguf_llama()
        .u32("llama.expert_count", 8)
        .u32("llama.expert_used_count", 9);
    let error = read(too_many).unwrap_err();
    assert!(
        matches!(error, ConfigError::Inconsistent { .. }),
        "{error:?}"
    );
    let error = read(gguf_llama().f32("llama.logit_scale", 2.0)).unwrap_err();
    assert!(error.to_string().contains("`llama.logit_scale`"), "{error}");
    let error = read(gguf_llama().u32("llama.vocab_size", 11)).unwrap_err();
    assert!(
        matches!(error, ConfigError::Inconsistent { .. }),
        "{error:?}"
    );
    let error = read(GgufWriter::default().str("general.architecture", "rwkv")).unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with(
            "`general.architecture` = rwkv is not supported; supported: the families that `tercet models` lists"
        ),
        "{text}"
    );
    let error = read(GgufWriter::default().str("general.architecture", "llama")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the file has no metadata key `llama.embedding_length`"
    );
}

/// Writes tensors of one element each.
fn write_shard(dir: &Path, name: &str, tensors: &[&str]) {
    let sizes: Vec<_> = tensors.iter().map(|name| (*name, 1)).collect();
    write_sizes(dir, name, &sizes);
}

/// Writes tensors of one axis with their numbers of elements.
fn write_sizes(dir: &Path, name: &str, tensors: &[(&str, usize)]) {
    let mut end = 0;
    let entries: Vec<String> = tensors
        .iter()
        .map(|(name, len)| {
            let start = end;
            end += len;
            format!(r#""{name}":{{"dtype":"U8","shape":[{len}],"data_offsets":[{start},{end}]}}"#)
        })
        .collect();
    let header = format!("{{{}}}", entries.join(","));
    let bytes: Vec<u8> = (0..end).map(|i| i as u8).collect();
    std::fs::write(dir.join(name), safetensors(&header, &bytes)).unwrap();
}

#[test]
fn folders_that_lack_something() {
    let dir = temp_dir("hf-lacking");
    let open = || HfFolder::open(&dir).unwrap_err();
    assert!(matches!(open(), HfError::File(_)), "no config.json");
    std::fs::write(dir.join("config.json"), "{").unwrap();
    assert!(matches!(open(), HfError::Json { .. }));
    std::fs::write(dir.join("config.json"), "{}").unwrap();
    assert!(matches!(
        open(),
        HfError::Folder(FolderError::NoWeights { .. })
    ));
    std::fs::write(dir.join("pytorch_model.bin"), "x").unwrap();
    assert!(open().to_string().contains("convert it to safetensors"));
    std::fs::write(dir.join("model.safetensors"), "short").unwrap();
    assert!(matches!(
        open(),
        HfError::Folder(FolderError::Weights { .. })
    ));
    assert!(matches!(
        HfFolder::open(dir.join("config.json")),
        Err(HfError::NotAFolder { .. })
    ));

    write_shard(&dir, "model.safetensors", &["a"]);
    let folder = HfFolder::open(&dir).unwrap();
    assert!(matches!(folder.decoder_spec(), Err(HfError::Config { .. })));
    assert!(matches!(folder.tokenizer(), Err(HfError::Tokenizer { .. })));
    assert_eq!(folder.max_seq_length().unwrap(), None);
    std::fs::write(
        dir.join("sentence_bert_config.json"),
        r#"{"max_seq_length": 256}"#,
    )
    .unwrap();
    assert_eq!(folder.max_seq_length().unwrap(), Some(256));
}

#[test]
fn generation_config_adds_end_tokens() {
    let dir = temp_dir("hf-generation");
    let tensors = [("model.embed_tokens.weight", 300), ("model.norm.weight", 1)];
    write_sizes(&dir, "model.safetensors", &tensors);
    let config = Value::Object(with(llama(), "eos_token_id", json!(7)));
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
    std::fs::write(
        dir.join("generation_config.json"),
        r#"{"eos_token_id": [8, 7]}"#,
    )
    .unwrap();
    let folder = HfFolder::open(&dir).unwrap();
    assert_eq!(folder.decoder_spec().unwrap().eos, [7, 8]);
}
