//! Decoder models that embed texts, as folders and as GGUF files.

use serde_json::{Value, json};
use tercet_serve::ServeOptions;

use crate::server::{data, start_folders};

#[test]
fn decoders_that_embed_give_vectors() {
    let models = [
        ("encoders/sentence-c", "encoders/sentence-c/sentences.json"),
        ("encoders/sentence-d", "encoders/sentence-d/sentences.json"),
        (
            "encoders/gguf/embedding-gemma.gguf",
            "encoders/gguf/embedding-gemma.json",
        ),
    ];
    let server = start_folders(&models.map(|(model, _)| model), ServeOptions::default());
    for (model, reference) in models {
        let file = std::fs::read(data(reference)).unwrap();
        let reference: Value = serde_json::from_slice(&file).unwrap();
        let name = model.rsplit('/').next().unwrap();
        let ask = json!({"model": name, "input": reference["texts"][0]});
        let answer = server.post("/v1/embeddings", &ask);
        assert_eq!(answer.status, 200, "{name}: {}", answer.text());
        let json = answer.json();
        let vector = json["data"][0]["embedding"].as_array().unwrap().clone();
        let want = reference["cases"][0]["want"].as_array().unwrap();
        for (x, y) in vector.iter().zip(want) {
            let off = x.as_f64().unwrap() - y.as_f64().unwrap();
            assert!(off.abs() < 1e-5, "{name}: off by {off}");
        }
        let chat = json!({"model": name, "messages": [{"role": "user", "content": "a"}]});
        let refused = server.post("/v1/chat/completions", &chat);
        assert_eq!(refused.status, 404, "{name}: {}", refused.text());
    }
}
