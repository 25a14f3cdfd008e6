//! A small encoder with generated weights.

use serde_json::{Value, json};

use super::Scratch;

/// Folder of a one-layer encoder whose vocabulary is red, green and blue, with the suffix for
/// reddish.
pub(crate) fn encoder(scratch: &Scratch) -> String {
    let config = json!({
        "model_type": "bert", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
        "intermediate_size": 16, "vocab_size": 6, "max_position_embeddings": 8,
    });
    let special = |id: u32, text: &str| {
        json!({"id": id, "content": text, "special": true, "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": false})
    };
    let tokenizer = json!({
        "version": "1.0",
        "added_tokens": [special(0, "[PAD]"), special(1, "[UNK]")],
        "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
            "strip_accents": null, "lowercase": true},
        "pre_tokenizer": {"type": "BertPreTokenizer"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {"[PAD]": 0, "[UNK]": 1, "red": 2, "green": 3, "blue": 4, "##ish": 5}},
    });
    std::fs::create_dir_all(scratch.path("encoder")).unwrap();
    scratch.file("encoder/config.json", config.to_string());
    scratch.file("encoder/tokenizer.json", tokenizer.to_string());
    scratch.file("encoder/model.safetensors", weights());
    scratch.path("encoder")
}

fn weights() -> Vec<u8> {
    let mut shapes = vec![
        ("embeddings.word_embeddings.weight".to_string(), vec![6, 8]),
        (
            "embeddings.position_embeddings.weight".to_string(),
            vec![8, 8],
        ),
        (
            "embeddings.token_type_embeddings.weight".to_string(),
            vec![2, 8],
        ),
    ];
    let at = |name: &str| format!("encoder.layer.0.{name}");
    let norms = ["attention.output.LayerNorm", "output.LayerNorm"].map(at);
    for norm in ["embeddings.LayerNorm".to_string()].iter().chain(&norms) {
        shapes.extend(["weight", "bias"].map(|part| (format!("{norm}.{part}"), vec![8])));
    }
    for (name, [rows, columns]) in [
        ("attention.self.query", [8, 8]),
        ("attention.self.key", [8, 8]),
        ("attention.self.value", [8, 8]),
        ("attention.output.dense", [8, 8]),
        ("intermediate.dense", [16, 8]),
        ("output.dense", [8, 16]),
    ] {
        shapes.push((at(&format!("{name}.weight")), vec![rows, columns]));
        shapes.push((at(&format!("{name}.bias")), vec![rows]));
    }
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, shape) in shapes {
        let begin = data.len();
        let values = (0..shape.iter().product::<usize>()).map(|i| ((begin + 7 * i) as f32).sin());
        data.extend(values.flat_map(f32::to_le_bytes));
        let row = json!({"dtype": "F32", "shape": shape, "data_offsets": [begin, data.len()]});
        header.insert(name, row);
    }
    let header = Value::Object(header).to_string();
    let len = (header.len() as u64).to_le_bytes();
    [&len[..], header.as_bytes(), &data].concat()
}
