//! Decoder models that embed texts, as folders and as GGUF files.

use serde_json::{Value, json};
use tercet::Device;
use tercet_models::{EncoderOptions, ModelFiles, PoolingMode};
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

#[test]
fn requests_in_company_have_the_vectors_of_requests_alone() {
    let model = "encoders/sentence-c";
    let server = start_folders(&[model], ServeOptions::default());
    let words = [
        "a river",
        "the house under a tree",
        "write",
        "slow and fast questions",
        "",
    ];
    let ask = |at: usize| match at {
        // Refused, without harm to the others.
        7 | 23 => json!({"input": [1_000_000]}),
        at => json!({"input": [words[at % 4], format!("{} {at}", words[at % 5])]}),
    };
    let alone: Vec<_> = (0..32)
        .map(|at| server.post("/v1/embeddings", &ask(at)))
        .collect();
    let together: Vec<_> = std::thread::scope(|scope| {
        let server = &server;
        let clients =
            (0..32).map(|at| scope.spawn(move || server.post("/v1/embeddings", &ask(at))));
        let clients: Vec<_> = clients.collect();
        clients
            .into_iter()
            .map(|client| client.join().unwrap())
            .collect()
    });
    for (at, (own, shared)) in alone.iter().zip(&together).enumerate() {
        let status = if matches!(at, 7 | 23) { 400 } else { 200 };
        assert_eq!(
            (own.status, shared.status),
            (status, status),
            "{}",
            shared.text()
        );
        if status == 400 {
            continue;
        }
        let (own, shared) = (own.json(), shared.json());
        assert_eq!(own["usage"], shared["usage"]);
        for row in 0..2 {
            let vector = |of: &Value| of["data"][row]["embedding"].as_array().unwrap().clone();
            let pairs = vector(&own).into_iter().zip(vector(&shared));
            for (x, y) in pairs {
                let off = x.as_f64().unwrap() - y.as_f64().unwrap();
                assert!(off.abs() < 1e-5, "request {at}, text {row}: off by {off}");
            }
        }
    }
}

#[test]
fn floats_are_written_with_the_digits_of_f32() {
    let server = start_folders(&["encoders/sentence-c"], ServeOptions::default());
    let ask = |format: &str| json!({"input": "a river", "encoding_format": format});
    let floats = server
        .post("/v1/embeddings", &ask("float"))
        .text()
        .to_string();
    let of_text: Value = serde_json::from_str(&floats).unwrap();
    let numbers = of_text["data"][0]["embedding"].as_array().unwrap();
    // The shortest decimal of an F32 has at most nine digits.
    let digits = floats
        .split([',', '[', ']'])
        .filter(|part| part.contains('.'));
    let digits = digits.map(|part| part.chars().filter(char::is_ascii_digit).count());
    assert!(digits.max().unwrap() <= 13, "{floats}");
    let encoded = server.post("/v1/embeddings", &ask("base64")).json();
    let encoded = encoded["data"][0]["embedding"]
        .as_str()
        .unwrap()
        .to_string();
    let bytes =
        base64::Engine::decode(&base64::engine::general_purpose::STANDARD, encoded).unwrap();
    let exact = bytes
        .chunks_exact(4)
        .map(|x| f32::from_le_bytes(x.try_into().unwrap()));
    let read = numbers.iter().map(|x| x.as_f64().unwrap() as f32);
    assert!(exact.eq(read));
}

#[test]
fn a_pooling_makes_models_embed() {
    let models = [
        "encoders/sentence-a",
        "encoders/reranker-a",
        "tiny-rust-llama/tiny-rust-llama-q8_0.gguf",
    ];
    let options = ServeOptions {
        pooling: Some(PoolingMode::Max),
        ..ServeOptions::default()
    };
    let server = start_folders(&models, options);
    for model in models {
        let name = model.rsplit('/').next().unwrap();
        let answer = server.post(
            "/v1/embeddings",
            &json!({"model": name, "input": "the cat"}),
        );
        assert_eq!(answer.status, 200, "{name}: {}", answer.text());
        let found = answer.json()["data"][0]["embedding"].clone();
        let options = EncoderOptions {
            pooling: Some(PoolingMode::Max),
            ..EncoderOptions::default()
        };
        let files = ModelFiles::open(data(model)).unwrap();
        let mut embedder = files.embedder(&Device::cpu(), &options).unwrap();
        let want = embedder.embed(&["the cat"]).unwrap();
        let found: Vec<f32> = serde_json::from_value(found).unwrap();
        assert_eq!(found.len(), want[0].len(), "{name}");
        for (x, y) in found.iter().zip(&want[0]) {
            assert!((x - y).abs() < 1e-5, "{name}: {x} {y}");
        }
    }
}
