//! Images in conversations with image-text models.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tercet_serve::ServeOptions;

use crate::server::{Running, data, shared, start_folders};

const MODELS: [&str; 3] = [
    "vision-language/idefics3-a",
    "vision-language/smolvlm-b",
    "vision-language/smolvlm-c",
];

fn reference(model: &str) -> Value {
    let file = std::fs::read(data(&format!("{model}/reference.json"))).unwrap();
    serde_json::from_slice(&file).unwrap()
}

fn image(name: &str) -> Value {
    let file = std::fs::read(data(&format!("vision/pictures/{name}"))).unwrap();
    let url = format!("data:image/png;base64,{}", STANDARD.encode(file));
    json!({"type": "image_url", "image_url": {"url": url, "detail": "auto"}})
}

/// A request with the images before the text.
fn request(model: &str, images: Vec<Value>, text: &str) -> Value {
    let mut content = images;
    content.push(json!({"type": "text", "text": text}));
    let messages = json!([{"role": "user", "content": content}]);
    json!({"model": model, "messages": messages, "max_tokens": 16, "temperature": 0, "return_token_ids": true})
}

fn ask(server: &Running, request: &Value) -> Value {
    let answer = server.post("/v1/chat/completions", request);
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

/// The conversations of a reference: images, text, tokens of the prompt and of the answer.
fn conversations(model: &str) -> Vec<(Vec<Value>, String, Value, Vec<Value>)> {
    let reference = reference(model);
    let prompts = reference["prompts"].as_array().unwrap().iter();
    let of = |prompt: &Value| {
        let text = prompt["chat"].as_str()?.to_string();
        let images = prompt["pictures"].as_array().unwrap().iter();
        let images = images.map(|name| image(name.as_str().unwrap())).collect();
        let greedy = prompt["greedy"].as_array().unwrap().clone();
        Some((images, text, prompt["ids"].clone(), greedy))
    };
    prompts.filter_map(of).collect()
}

#[test]
fn answers_are_about_the_images_of_the_request() {
    let server = start_folders(&MODELS, ServeOptions::default());
    let mut count = 0;
    for model in MODELS {
        let (_, name) = model.rsplit_once('/').unwrap();
        let listed = server.get(&format!("/v1/models/{name}")).json();
        assert_eq!(listed["input_modalities"], json!(["text", "image"]));
        for (images, text, ids, greedy) in conversations(model) {
            let asked = request(name, images, &text);
            let answer = ask(&server, &asked);
            assert_eq!(
                answer["choices"][0]["prompt_token_ids"],
                without_rows(&ids, &answer),
                "{model}"
            );
            let tokens = answer["choices"][0]["token_ids"].as_array().unwrap();
            let ends = answer["choices"][0]["finish_reason"] == "stop";
            let said = tokens.len() - usize::from(ends);
            assert_eq!(tokens[..said], greedy[..said], "{model}: {answer}");
            // The same request has the same answer after others, with other images.
            let other = request(name, vec![image("wide.png"), image("wide.png")], "Why?");
            ask(&server, &other);
            let plain = request(name, Vec::new(), "Why?");
            ask(&server, &plain);
            let again = ask(&server, &asked);
            assert_eq!(again["choices"], answer["choices"], "{model}");
            count += 1;
        }
    }
    assert!(count >= 3, "{count}");
}

/// The tokens of a reference, whose image rows are ids above the vocabulary, as the tokenizer has them.
fn without_rows(ids: &Value, answer: &Value) -> Value {
    let ids = ids.as_array().unwrap().iter();
    let shown = answer["choices"][0]["prompt_token_ids"]
        .as_array()
        .unwrap()
        .iter();
    let pairs = ids.zip(shown);
    // Only ids of image rows may differ, and all of them are the same token.
    let mut token = None;
    let mapped = pairs.map(|(id, shown)| match id == shown {
        true => id.clone(),
        false => {
            assert_eq!(token.get_or_insert_with(|| shown.clone()), shown);
            shown.clone()
        }
    });
    mapped.collect()
}

#[test]
fn images_come_in_the_order_of_their_parts() {
    let server = start_folders(&["vision-language/smolvlm-b"], ServeOptions::default());
    let text = |text: &str| json!({"type": "text", "text": text});
    let ask = |content: Value| {
        let messages = json!([{"role": "user", "content": content}]);
        let request = json!({"messages": messages, "max_tokens": 1, "return_token_ids": true});
        ask(&server, &request)["choices"][0]["prompt_token_ids"].clone()
    };
    let first = ask(json!([image("wide.png"), text("a")]));
    let last = ask(json!([text("a"), image("wide.png")]));
    assert_ne!(first, last);
    assert_eq!(
        first.as_array().unwrap().len(),
        last.as_array().unwrap().len()
    );
}

#[test]
fn wrong_images_are_errors_with_the_field() {
    let server = start_folders(&["vision-language/smolvlm-b"], ServeOptions::default());
    let url = |url: &str| json!({"type": "image_url", "image_url": {"url": url}});
    let many: Vec<Value> = (0..65).map(|_| image("wide.png")).collect();
    for (images, named) in [
        (vec![url("https://example.com/a.png")], "other servers"),
        (vec![url("file:///etc/passwd")], "other servers"),
        (vec![url("data:image/png,abc")], "base64"),
        (vec![url("data:image/png;base64")], "no data"),
        (vec![url("data:image/png;base64,***")], "not base64"),
        (vec![url("data:image/png;base64,AAAA")], "image 1"),
        (
            vec![image("wide.png"), url("data:image/png;base64,")],
            "image 2",
        ),
        (vec![json!({"type": "image_url"})], "image_url"),
        (vec![json!({"type": "input_audio"})], "speech recognizer"),
        (vec![json!({"type": "video_url"})], "image_url"),
        (many, "64"),
    ] {
        let answer = server.post("/v1/chat/completions", &request("m", images, "a"));
        assert_eq!(answer.status, 400, "{named}: {}", answer.text());
        assert!(
            answer.error().contains(named),
            "{named}: {}",
            answer.error()
        );
    }
    let long = request("m", vec![image("wide.png")], &"a ".repeat(600));
    let answer = server.post("/v1/chat/completions", &long);
    assert_eq!(answer.json()["error"]["code"], "context_length_exceeded");
    // The server goes on.
    ask(&server, &request("m", vec![image("wide.png")], "a"));
    // A model that reads only text says so.
    let text = request("tiny", vec![image("wide.png")], "a");
    let answer = shared().post("/v1/chat/completions", &text);
    assert_eq!(answer.status, 400);
    assert!(
        answer.error().contains("takes no other parts"),
        "{}",
        answer.error()
    );
}

#[test]
fn streams_and_clients_that_leave_use_the_only_slot_by_turns() {
    let server = start_folders(&["vision-language/smolvlm-b"], ServeOptions::default());
    let plain = request("smolvlm-b", vec![image("wide.png")], "What is this?");
    let want = ask(&server, &plain)["choices"][0]["message"]["content"].clone();
    std::thread::scope(|scope| {
        for client in 0..6 {
            let (server, mut request) = (&server, plain.clone());
            let want = want.as_str().unwrap();
            scope.spawn(move || {
                if client % 2 == 0 {
                    assert_eq!(
                        ask(server, &request)["choices"][0]["message"]["content"],
                        want
                    );
                    return;
                }
                request["stream"] = true.into();
                let answer = server.post("/v1/chat/completions", &request);
                let events = crate::server::events(&answer.text());
                let text: String = events
                    .iter()
                    .filter_map(|e| e["choices"][0]["delta"]["content"].as_str())
                    .collect();
                assert_eq!(text, want);
            });
        }
    });
}

#[test]
fn images_of_all_protocols_are_those_of_chat_completions() {
    let server = start_folders(&["vision-language/smolvlm-b"], ServeOptions::default());
    let file = std::fs::read(data("vision/pictures/wide.png")).unwrap();
    let file = STANDARD.encode(file);
    let url = format!("data:image/png;base64,{file}");
    let want = ask(
        &server,
        &request("smolvlm-b", vec![image("wide.png")], "What is this?"),
    );
    let prompt = want["usage"]["prompt_tokens"].clone();
    let want = want["choices"][0]["message"]["content"].clone();
    let post = |route: &str, body: Value| {
        let answer = server.post(route, &body);
        assert_eq!(answer.status, 200, "{route}: {}", answer.text());
        answer.json()
    };
    let source = json!({"type": "base64", "media_type": "image/png", "data": file});
    let blocks =
        json!([{"type": "image", "source": source}, {"type": "text", "text": "What is this?"}]);
    let messages = json!([{"role": "user", "content": blocks}]);
    let body = json!({"model": "m", "messages": messages, "max_tokens": 16, "temperature": 0});
    let answer = post("/v1/messages", body.clone());
    assert_eq!(answer["content"][0]["text"], want, "{answer}");
    assert_eq!(
        post("/v1/messages/count_tokens", body)["input_tokens"],
        prompt
    );
    let parts = json!([
        {"type": "input_image", "image_url": url},
        {"type": "input_text", "text": "What is this?"},
    ]);
    let input = json!([{"role": "user", "content": parts}]);
    let answer = post(
        "/v1/responses",
        json!({"model": "m", "input": input, "max_output_tokens": 16, "temperature": 0}),
    );
    assert_eq!(answer["output"][0]["content"][0]["text"], want, "{answer}");
    let options = json!({"num_predict": 16, "temperature": 0, "repeat_penalty": 1});
    let messages = json!([{"role": "user", "content": "What is this?", "images": [file]}]);
    let body = json!({"model": "m", "messages": messages, "stream": false, "options": options});
    assert_eq!(post("/api/chat", body)["message"]["content"], want);
    let body = json!({"model": "m", "prompt": "What is this?", "images": [file], "stream": false, "options": options});
    assert_eq!(post("/api/generate", body)["response"], want);
    let shown = post("/api/show", json!({"model": "smolvlm-b"}));
    assert!(
        shown["capabilities"]
            .as_array()
            .unwrap()
            .contains(&json!("vision"))
    );
    for (route, body, named) in [
        (
            "/api/chat",
            json!({"messages": [{"role": "user", "content": "a", "images": ["*"]}]}),
            "images[0]",
        ),
        (
            "/api/chat",
            json!({"messages": [{"role": "user", "content": "a", "images": [1]}]}),
            "images[0]",
        ),
        (
            "/api/generate",
            json!({"prompt": "a", "raw": true, "images": [file]}),
            "images",
        ),
        (
            "/v1/messages",
            json!({"max_tokens": 1, "messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://a/b.png"}}]}]}),
            "other servers",
        ),
        (
            "/v1/responses",
            json!({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "http://a/b.png"}]}]}),
            "other servers",
        ),
        (
            "/v1/responses",
            json!({"input": [{"role": "assistant", "content": [{"type": "input_image", "image_url": url}]}]}),
            "no images",
        ),
    ] {
        let mut body = body;
        body["model"] = "m".into();
        let answer = server.post(route, &body);
        assert_eq!(answer.status, 400, "{route}: {}", answer.text());
        assert!(answer.text().contains(named), "{route}: {}", answer.text());
    }
}
