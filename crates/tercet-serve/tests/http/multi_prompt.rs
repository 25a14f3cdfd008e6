//! Several completions per request, and logprobs.

use serde_json::{Value, json};
use tercet_serve::ServeOptions;

use crate::server::{MODEL, Running, events, shared, start};

fn ask(server: &Running, more: &Value) -> Value {
    let mut request =
        json!({"model": MODEL, "prompt": "Ownership is", "max_tokens": 12, "temperature": 0});
    let more = more.as_object().unwrap().clone();
    request.as_object_mut().unwrap().extend(more);
    let answer = server.post("/v1/completions", &request);
    assert_eq!(answer.status, 200, "{}", answer.text());
    match request["stream"] == true {
        true => Value::Array(events(&answer.text())),
        false => answer.json(),
    }
}

fn texts(answer: &Value) -> Vec<String> {
    let choices = answer["choices"].as_array().unwrap();
    let text = |(i, choice): (usize, &Value)| {
        assert_eq!(choice["index"], i);
        choice["text"].as_str().unwrap().to_string()
    };
    choices.iter().enumerate().map(text).collect()
}

/// Texts of a stream by index, with their finish reasons.
fn streamed(events: &Value, count: usize) -> Vec<(String, Value)> {
    let mut all = vec![(String::new(), Value::Null); count];
    for event in events.as_array().unwrap() {
        let Some(choice) = event["choices"].get(0) else {
            continue;
        };
        let (text, reason) = &mut all[choice["index"].as_u64().unwrap() as usize];
        assert!(reason.is_null(), "{choice}");
        *text += choice["text"].as_str().unwrap();
        *reason = choice["finish_reason"].clone();
    }
    all
}

#[test]
fn several_texts_are_those_of_a_request_each() {
    let server = shared();
    let drawn = json!({"temperature": 1, "seed": 40, "prompt": ["The borrow", "A trait"], "n": 3});
    let all = ask(&server, &drawn);
    let got = texts(&all);
    let mut want = Vec::new();
    let mut prompt_tokens = 0;
    for prompt in ["The borrow", "A trait"] {
        for seed in 40..43 {
            let one = ask(
                &server,
                &json!({"temperature": 1, "seed": seed, "prompt": prompt}),
            );
            want.extend(texts(&one));
            prompt_tokens += one["usage"]["prompt_tokens"].as_u64().unwrap();
        }
    }
    assert_eq!(got, want);
    // Usage counts a prompt once.
    assert_eq!(all["usage"]["prompt_tokens"], prompt_tokens / 3);
    assert!(got[0] != got[1] || got[1] != got[2]);
    let mut stream = drawn;
    stream["stream"] = json!(true);
    stream["stream_options"] = json!({"include_usage": true});
    let stream = ask(&server, &stream);
    let parts = streamed(&stream, 6);
    let (said, reasons): (Vec<String>, Vec<Value>) = parts.into_iter().unzip();
    assert_eq!(said, want);
    assert!(reasons.iter().all(Value::is_string), "{reasons:?}");
    let last = stream.as_array().unwrap().last().unwrap();
    assert_eq!(last["usage"], all["usage"]);
}

#[test]
fn conversations_have_several_answers() {
    let server = shared();
    let mut request = json!({
        "model": MODEL, "messages": [{"role": "user", "content": "Why?"}], "n": 2, "seed": 3, "max_tokens": 8,
    });
    let whole = server.post("/v1/chat/completions", &request).json();
    let choices = whole["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 2);
    request["stream"] = json!(true);
    let stream = events(&server.post("/v1/chat/completions", &request).text());
    for (i, choice) in choices.iter().enumerate() {
        let own = stream.iter().map(|e| &e["choices"][0]);
        let own: Vec<&Value> = own.filter(|c| c["index"] == i).collect();
        assert_eq!(own[0]["delta"]["role"], "assistant");
        let said = own.iter().filter_map(|c| c["delta"]["content"].as_str());
        assert_eq!(
            said.collect::<String>(),
            choice["message"]["content"].as_str().unwrap()
        );
        let last = own.last().unwrap();
        assert_eq!(last["finish_reason"], choice["finish_reason"]);
    }
}

#[test]
fn more_texts_than_fit_are_refused() {
    let options = ServeOptions {
        slots: 2,
        queue: 1,
        ..ServeOptions::default()
    };
    let server = start(options);
    let ask = |n: usize| {
        let request = json!({"model": MODEL, "prompt": "x", "max_tokens": 2, "n": n});
        server.post("/v1/completions", &request)
    };
    assert_eq!(ask(3).status, 200);
    let many = ask(4);
    assert_eq!(many.status, 400);
    assert!(
        many.error().contains("accepts at most 3"),
        "{}",
        many.error()
    );
    server.wait_until_free();
}

#[test]
fn tokens_are_told_with_their_probabilities() {
    let server = shared();
    let plain = ask(&server, &json!({}));
    let told = ask(&server, &json!({"logprobs": 4}));
    assert_eq!(texts(&told), texts(&plain));
    let text = &texts(&told)[0];
    let logs = &told["choices"][0]["logprobs"];
    let list = |name: &str| logs[name].as_array().unwrap().clone();
    let (tokens, own) = (list("tokens"), list("token_logprobs"));
    assert_eq!(
        tokens.len() as u64,
        told["usage"]["completion_tokens"].as_u64().unwrap()
    );
    let joined: String = tokens.iter().map(|t| t.as_str().unwrap()).collect();
    assert_eq!(&joined, text);
    for (i, top) in list("top_logprobs").iter().enumerate() {
        let top = top.as_object().unwrap();
        // Greedy decoding selects the most likely token.
        let most = top
            .values()
            .filter_map(Value::as_f64)
            .fold(f64::MIN, f64::max);
        assert_eq!(own[i].as_f64(), Some(most));
        assert_eq!(top[tokens[i].as_str().unwrap()], own[i]);
        assert!((1..=4).contains(&top.len()), "{top:?}");
        let sum: f64 = top.values().filter_map(Value::as_f64).map(f64::exp).sum();
        assert!(sum <= 1.0 + 1e-6 && most <= 0.0);
    }
    let mut offset = 0;
    for (at, token) in list("text_offset").iter().zip(&tokens) {
        assert_eq!(at.as_u64(), Some(offset));
        offset += token.as_str().unwrap().chars().count() as u64;
    }
    // Logprobs come from the model's logits, before temperature.
    let hot = json!({"logprobs": 0, "temperature": 2, "seed": 1, "max_tokens": 1});
    let hot = &ask(&server, &hot)["choices"][0]["logprobs"];
    let biased = json!({"logprobs": 20, "logit_bias": {"65": 100}, "max_tokens": 1});
    let biased = &ask(&server, &biased)["choices"][0]["logprobs"];
    let first = |logs: &Value| logs["token_logprobs"][0].as_f64().unwrap();
    assert_eq!(hot["top_logprobs"][0].as_object().unwrap().len(), 1);
    assert!(first(hot) <= own[0].as_f64().unwrap());
    assert!(first(biased) < own[0].as_f64().unwrap());
    let best = &biased["top_logprobs"][0][tokens[0].as_str().unwrap()];
    assert_eq!(best, &own[0]);

    let stream = ask(&server, &json!({"logprobs": 4, "stream": true}));
    let parts = stream.as_array().unwrap().iter();
    let parts = parts.filter_map(|e| e["choices"][0]["logprobs"]["token_logprobs"].as_array());
    assert_eq!(parts.flatten().cloned().collect::<Vec<_>>(), own);
}

#[test]
fn tokens_of_conversations_are_told_as_objects() {
    let server = shared();
    let request = json!({
        "model": MODEL, "messages": [{"role": "user", "content": "Why?"}], "temperature": 0, "max_tokens": 6,
        "logprobs": true, "top_logprobs": 2,
    });
    let answer = server.post("/v1/chat/completions", &request).json();
    let choice = &answer["choices"][0];
    let content = choice["logprobs"]["content"].as_array().unwrap();
    let mut bytes = Vec::new();
    for of in content {
        let own = of["bytes"].as_array().unwrap();
        bytes.extend(own.iter().map(|b| b.as_u64().unwrap() as u8));
        let top = of["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 2);
        assert_eq!(
            (&top[0]["token"], &top[0]["logprob"]),
            (&of["token"], &of["logprob"])
        );
        assert!(top[1]["logprob"].as_f64() <= of["logprob"].as_f64());
    }
    assert_eq!(
        String::from_utf8_lossy(&bytes),
        choice["message"]["content"].as_str().unwrap()
    );
    let refused = json!({
        "model": MODEL, "messages": [{"role": "user", "content": "x"}], "top_logprobs": 2,
    });
    let refused = server.post("/v1/chat/completions", &refused);
    assert_eq!(refused.status, 400);
    assert!(refused.error().contains("requires `logprobs`"));
}
