use serde_json::{Map, Value};
use tercet_networks::{SpeechSpec, SpeechTokens};

fn spec() -> SpeechSpec {
    let json = r#"{
            "model_type": "whisper", "d_model": 8, "num_mel_bins": 80, "encoder_layers": 1, "decoder_layers": 1,
            "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8,
            "max_source_positions": 1500, "max_target_positions": 448, "vocab_size": 51865
        }"#;
    SpeechSpec::from_json(&serde_json::from_str(json).unwrap()).unwrap()
}

fn many() -> Map<String, Value> {
    let json = r#"{
            "begin_suppress_tokens": [220, 50257], "bos_token_id": 50257, "decoder_start_token_id": 50258, "eos_token_id": 50257,
            "forced_decoder_ids": [[1, null], [2, 50359]], "is_multilingual": true, "lang_to_id": {"<|de|>": 50261, "<|en|>": 50259},
            "max_initial_timestamp_index": 50, "max_length": 448, "no_timestamps_token_id": 50363, "pad_token_id": 50257,
            "prev_sot_token_id": 50361, "return_timestamps": false, "suppress_tokens": [1, 50362],
            "task_to_id": {"transcribe": 50359, "translate": 50358}, "alignment_heads": [[2, 2]], "transformers_version": "4.31.0.dev0"
        }"#;
    serde_json::from_str(json).unwrap()
}

#[test]
fn tokens_of_many_languages_are_read() {
    let tokens = SpeechTokens::from_json(&many(), &Map::new(), &spec()).unwrap();
    assert_eq!(tokens.languages.get("de"), Some(&50_261));
    assert_eq!(tokens.forced, [None, Some(50_359)]);
    assert_eq!(
        (tokens.first_timestamp(), tokens.latest_first),
        (50_364, Some(50))
    );
    // Forced tokens may also be in `config.json`.
    let mut own = many();
    let mut config = Map::new();
    config.extend(
        own.remove("forced_decoder_ids")
            .map(|f| ("forced_decoder_ids".into(), f)),
    );
    assert_eq!(
        SpeechTokens::from_json(&own, &config, &spec()).unwrap(),
        tokens
    );
}

#[test]
fn what_is_not_honoured_is_refused() {
    for (name, value, part) in [
        ("num_beams", 5.into(), "`num_beams`"),
        ("repetition_penalty", 1.5.into(), "`repetition_penalty`"),
        ("eos_token_id", 51_865.into(), "token 51865"),
        ("no_timestamps_token_id", 51_864.into(), "no timestamps"),
        (
            "no_timestamps_token_id",
            0.into(),
            "`no_timestamps_token_id`",
        ),
        (
            "forced_decoder_ids",
            Value::from(vec![vec![2, 7]]),
            "`forced_decoder_ids`",
        ),
        (
            "lang_to_id",
            serde_json::json!({"<|en|>": -1}),
            "`lang_to_id",
        ),
        (
            "max_initial_timestamp_index",
            (-1).into(),
            "`max_initial_timestamp_index`",
        ),
    ] {
        let mut json = many();
        json.insert(name.into(), value);
        let said = SpeechTokens::from_json(&json, &Map::new(), &spec());
        let said = said.unwrap_err().to_string();
        assert!(said.contains(part), "{name}: {said}");
    }
}
