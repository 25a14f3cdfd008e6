use serde_json::{Map, Value};
use tercet_networks::{MoonshineModel, MoonshineSpec};

#[test]
fn the_shortest_pieces_have_a_row() {
    for len in [0, 1, 100, 894, 895, 1600, 1601] {
        let inputs = MoonshineModel::inputs(&vec![0.1; len]).unwrap();
        assert!(inputs[3].1.shape()[0] >= 1, "{len}");
    }
}

/// The configuration of Moonshine Tiny, as in its folder.
fn tiny() -> Map<String, Value> {
    let json = r#"{
            "model_type": "moonshine", "hidden_size": 288, "intermediate_size": 1152, "vocab_size": 32768,
            "encoder_num_hidden_layers": 6, "decoder_num_hidden_layers": 6, "encoder_num_attention_heads": 8,
            "decoder_num_attention_heads": 8, "encoder_num_key_value_heads": 8, "decoder_num_key_value_heads": 8,
            "encoder_hidden_act": "gelu", "decoder_hidden_act": "silu", "max_position_embeddings": 194,
            "pad_head_dim_to_multiple_of": 8, "partial_rotary_factor": 0.9, "rope_scaling": null, "rope_theta": 10000.0,
            "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
            "decoder_start_token_id": 1, "is_encoder_decoder": true, "use_cache": true, "torch_dtype": "float32"
        }"#;
    serde_json::from_str(json).unwrap()
}

#[test]
fn the_tiny_one_is_read() {
    let spec = MoonshineSpec::from_json(&tiny()).unwrap();
    assert_eq!((spec.rope_dims, spec.text_positions), (32, 194));
    assert_eq!((spec.start, spec.end), (1, vec![2]));
}

#[test]
fn what_is_not_honoured_is_refused() {
    for (name, value) in [
        ("decoder_num_key_value_heads", 4.into()),
        ("encoder_num_attention_heads", 4.into()),
        ("encoder_hidden_act", "mish".into()),
        ("rope_scaling", serde_json::json!({"type": "linear"})),
        ("tie_word_embeddings", false.into()),
        ("head_dim", 32.into()),
        ("hidden_size", 0.into()),
    ] {
        let mut json = tiny();
        json.insert(name.into(), value);
        let said = MoonshineSpec::from_json(&json).unwrap_err().to_string();
        assert!(said.contains(name), "{name}: {said}");
    }
    let odd = [
        // 27 of the head's 36 elements are rotated, which is odd.
        ("partial_rotary_factor", 0.75),
        ("partial_rotary_factor", 1.5),
    ];
    for (name, value) in odd {
        let mut json = tiny();
        json.insert(name.into(), value.into());
        assert!(MoonshineSpec::from_json(&json).is_err(), "{value}");
    }
}
