use serde_json::{Map, Value};
use tercet_networks::SpeechSpec;

/// The relevant fields of large-v3, as in its folder.
fn large() -> Map<String, Value> {
    let json = r#"{
            "model_type": "whisper", "d_model": 1280, "num_mel_bins": 128, "encoder_layers": 32, "decoder_layers": 32,
            "encoder_attention_heads": 20, "decoder_attention_heads": 20, "encoder_ffn_dim": 5120, "decoder_ffn_dim": 5120,
            "max_source_positions": 1500, "max_target_positions": 448, "vocab_size": 51866, "activation_function": "gelu",
            "scale_embedding": false, "is_encoder_decoder": true, "use_weighted_layer_sum": false, "median_filter_width": 7,
            "apply_spec_augment": false, "classifier_proj_size": 256, "num_hidden_layers": 32, "torch_dtype": "float16",
            "begin_suppress_tokens": [220, 50257], "suppress_tokens": null, "max_length": 448, "pad_token_id": 50256
        }"#;
    serde_json::from_str(json).unwrap()
}

#[test]
fn the_largest_is_read() {
    let spec = SpeechSpec::from_json(&large()).unwrap();
    assert_eq!((spec.mels, spec.frames(), spec.vocab), (128, 3000, 51_866));
    // The turbo variant.
    let mut turbo = large();
    turbo.insert("decoder_layers".into(), 4.into());
    assert_eq!(SpeechSpec::from_json(&turbo).unwrap().decoder_layers, 4);
}

#[test]
fn what_is_not_honoured_is_refused() {
    for (name, value, part) in [
        ("scale_embedding", true.into(), "`scale_embedding`"),
        ("d_model", 0.into(), "`d_model`"),
        ("d_model", 1281.into(), "not a multiple"),
        (
            "activation_function",
            "mish".into(),
            "`activation_function`",
        ),
        ("tie_word_embeddings", false.into(), "`tie_word_embeddings`"),
        ("encoder_layers", (1u64 << 31).into(), "`encoder_layers`"),
        (
            "max_source_positions",
            65_537.into(),
            "`max_source_positions`",
        ),
        ("model_type", "bert".into(), "`model_type`"),
    ] {
        let mut json = large();
        json.insert(name.into(), value);
        let said = SpeechSpec::from_json(&json).unwrap_err().to_string();
        assert!(said.contains(part), "{name}: {said}");
    }
    let mut json = large();
    json.remove("num_mel_bins");
    let said = SpeechSpec::from_json(&json).unwrap_err().to_string();
    assert!(said.contains("`num_mel_bins`"), "{said}");
}
