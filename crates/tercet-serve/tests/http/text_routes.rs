//! Tokens and settings of language models.

use serde_json::{Value, json};

use crate::server::{MODEL, shared};

#[test]
fn texts_become_tokens_and_come_back() {
    let server = shared();
    let post = |path: &str, body: Value| {
        let answer = server.post(path, &body);
        assert_eq!(answer.status, 200, "{path} {body}: {}", answer.text());
        answer.json()
    };
    let text = "Ownership is a set of rules: grün 🦀";
    let of = |body: Value| post("/tokenize", body);
    let plain = of(json!({"model": MODEL, "content": text}));
    let tokens = plain["tokens"].as_array().unwrap();
    assert_eq!(plain["count"], tokens.len());
    assert_eq!(plain["max_model_len"], 192);
    let back = post("/detokenize", json!({"model": MODEL, "tokens": tokens}));
    assert_eq!(back["content"], text);
    assert_eq!(back["prompt"], text);

    // `prompt` has the special tokens of a text, `content` has them on demand.
    let whole = of(json!({"model": MODEL, "prompt": text}));
    let added = of(json!({"model": MODEL, "content": text, "add_special": true}));
    assert_eq!(whole["tokens"], added["tokens"]);
    let without = of(json!({"model": MODEL, "prompt": text, "add_special_tokens": false}));
    assert_eq!(without["tokens"], plain["tokens"]);

    // The pieces of all tokens are the text; a piece can be part of a character.
    let pieces = of(json!({"model": MODEL, "content": text, "with_pieces": true}));
    let mut bytes = Vec::new();
    for (token, id) in pieces["tokens"].as_array().unwrap().iter().zip(tokens) {
        assert_eq!(&token["id"], id);
        match &token["piece"] {
            Value::String(piece) => bytes.extend_from_slice(piece.as_bytes()),
            Value::Array(piece) => bytes.extend(piece.iter().map(|x| x.as_u64().unwrap() as u8)),
            other => panic!("{other}"),
        }
    }
    assert_eq!(String::from_utf8(bytes).unwrap(), text);
    let spelled = of(json!({"model": MODEL, "content": text, "return_token_strs": true}));
    assert_eq!(
        spelled["token_strs"].as_array().unwrap().len(),
        tokens.len()
    );
}

#[test]
fn special_tokens_are_parsed_unless_they_are_text() {
    let server = shared();
    let props = server.get(&format!("/props?model={MODEL}")).json();
    let end = props["eos_token"].as_str().unwrap();
    assert_eq!(props["model_alias"], MODEL);
    assert_eq!(props["default_generation_settings"]["n_ctx"], 192);
    assert!(props["total_slots"].as_u64().unwrap() >= 1);
    assert!(
        props["chat_template"]
            .as_str()
            .unwrap()
            .contains("messages")
    );
    let count = |special: bool| {
        let body = json!({"model": MODEL, "content": end, "parse_special": special});
        server.post("/tokenize", &body).json()["count"]
            .as_u64()
            .unwrap()
    };
    assert_eq!(count(true), 1);
    assert!(count(false) > 1);
}

#[test]
fn what_is_no_text_and_no_token_is_refused() {
    let server = shared();
    for (path, body, expected) in [
        (
            "/tokenize",
            json!({"model": MODEL}),
            "`content` or `prompt` is missing",
        ),
        (
            "/tokenize",
            json!({"model": MODEL, "content": "a", "prompt": "a"}),
            "both set",
        ),
        (
            "/tokenize",
            json!({"model": MODEL, "content": 3}),
            "content",
        ),
        (
            "/tokenize",
            json!({"model": "none", "content": "a"}),
            "unknown model",
        ),
        ("/detokenize", json!({"model": MODEL}), "tokens"),
        (
            "/detokenize",
            json!({"model": MODEL, "tokens": [1_000_000]}),
            "outside the vocabulary",
        ),
        (
            "/detokenize",
            json!({"model": MODEL, "tokens": ["a"]}),
            "tokens",
        ),
    ] {
        let answer = server.post(path, &body);
        assert!((400..500).contains(&answer.status), "{path} {body}");
        assert!(
            answer.error().contains(expected),
            "{path} {body}: {}",
            answer.error()
        );
    }
    assert_eq!(server.get("/props?model=none").status, 404);
}

#[test]
fn the_template_shows_what_the_model_reads() {
    let server = shared();
    let messages =
        json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Go"}]);
    let body = json!({"model": MODEL, "messages": messages, "max_tokens": 1});
    let shown = server.post("/apply-template", &body).json();
    let prompt = shown["prompt"].as_str().unwrap();
    assert!(
        prompt.contains("Be brief.") && prompt.contains("Go"),
        "{prompt}"
    );
    let tokens = server.post("/tokenize", &json!({"model": MODEL, "content": prompt}));
    let chat = server.post("/v1/chat/completions", &body).json();
    assert_eq!(tokens.json()["count"], chat["usage"]["prompt_tokens"]);
    let wrong = server.post("/apply-template", &json!({"model": MODEL, "messages": []}));
    assert_eq!(wrong.status, 400);
}

#[test]
fn slots_are_listed() {
    let server = shared();
    let slots = server.get(&format!("/slots?model={MODEL}")).json();
    let slots = slots.as_array().unwrap();
    let props = server.get(&format!("/props?model={MODEL}")).json();
    assert_eq!(props["total_slots"], slots.len());
    for (at, slot) in slots.iter().enumerate() {
        assert_eq!((&slot["id"], &slot["n_ctx"]), (&json!(at), &json!(192)));
        assert!(slot["is_processing"].is_boolean());
    }
    assert_eq!(server.get("/slots?model=none").status, 404);
}
