//! Speculative decoding over HTTP: every response equals that of the same server without a draft.

use std::sync::Arc;

use serde_json::{Value, json};
use tercet::one_line;
use tercet_models::{DraftError, Error, MAX_DRAFT_TOKENS, ModelError, ModelFiles};
use tercet_serve::{DraftSource, ModelRegistry, ServeError, ServeOptions, SpeculativeOptions};

use crate::server::{MODEL, Running, add_placed, data, start_placed};

/// The continuation repeats the prompt, so n-gram lookup proposes tokens.
const REPEATS: &str = "let x = 5; let y = 6; let x = 5; let y = 6; let";

fn slots(slots: usize) -> ServeOptions {
    ServeOptions {
        slots,
        ..ServeOptions::default()
    }
}

fn ngrams(tokens: usize) -> SpeculativeOptions {
    let by = DraftSource::Ngrams;
    SpeculativeOptions { by, tokens }
}

fn drafted(count: usize, drafting: Option<SpeculativeOptions>) -> Running {
    start_placed(slots(count), |placement| placement.draft = drafting)
}

/// A draft: the same model in another storage format, which often predicts the same token.
fn model() -> SpeculativeOptions {
    let files = ModelFiles::open(data("tiny-rust-llama/tiny-rust-llama-f16.gguf")).unwrap();
    SpeculativeOptions {
        by: DraftSource::Model(Arc::new(files)),
        tokens: 4,
    }
}

/// Requests with different sampling options and finish reasons.
fn requests() -> Vec<(&'static str, Value)> {
    let completions = [
        json!({"prompt": REPEATS, "temperature": 0, "max_tokens": 40}),
        json!({"prompt": "Ownership is", "temperature": 0, "max_tokens": 1}),
        json!({"prompt": REPEATS, "temperature": 0, "max_tokens": 60, "stop": ["y"]}),
        // Generates until the context is full.
        json!({"prompt": REPEATS.repeat(2), "temperature": 0, "max_tokens": 500}),
        json!({"prompt": REPEATS, "temperature": 0.8, "seed": 3, "max_tokens": 30}),
        json!({"prompt": ["A trait", REPEATS], "n": 2, "temperature": 1, "seed": 40, "max_tokens": 12}),
        json!({"prompt": REPEATS, "temperature": 0, "max_tokens": 20, "frequency_penalty": 0.7, "logit_bias": {"40": -100}}),
        json!({"prompt": REPEATS, "temperature": 0, "max_tokens": 10, "logprobs": 3}),
        json!({"prompt": REPEATS, "temperature": 0, "max_tokens": 24, "stream": true, "stream_options": {"include_usage": true}}),
    ];
    let talk = json!([{"role": "user", "content": "Say hello hello hello."}]);
    let mut all: Vec<_> = completions.map(|body| ("/v1/completions", body)).into();
    all.push((
        "/v1/chat/completions",
        json!({"messages": talk, "temperature": 0, "max_tokens": 24}),
    ));
    #[cfg(feature = "grammar")]
    all.push((
        "/v1/chat/completions",
        json!({"messages": talk, "temperature": 0, "max_tokens": 40, "response_format": {"type": "json_object"}}),
    ));
    all
}

/// Response without ids and times: text, finish reasons, logprobs and usage. For a stream, its
/// concatenated text.
fn said(server: &Running, path: &str, request: &Value) -> Value {
    let mut request = request.clone();
    request["model"] = json!(MODEL);
    let answer = server.post(path, &request);
    assert_eq!(answer.status, 200, "{}", answer.text());
    if request["stream"] != true {
        let answer = answer.json();
        return json!([answer["choices"], answer["usage"]]);
    }
    let events = crate::server::events(&answer.text());
    let choices = events.iter().filter_map(|event| event["choices"].get(0));
    let parts = choices.map(|choice| choice["text"].as_str().unwrap());
    json!([parts.collect::<String>(), events.last().unwrap()["usage"]])
}

/// Token counters of the metrics page.
fn counted(server: &Running) -> [f64; 2] {
    server.wait_until_free();
    [
        "tercet_prompt_tokens_total",
        "tercet_generated_tokens_total",
    ]
    .map(|name| server.metric(name))
}

#[test]
fn answers_are_those_without_a_draft() {
    let plain = drafted(1, None);
    let want: Vec<Value> = requests()
        .iter()
        .map(|(path, request)| said(&plain, path, request))
        .collect();
    let counts = counted(&plain);
    for (count, drafting) in [
        (1, ngrams(MAX_DRAFT_TOKENS)),
        (1, model()),
        (4, ngrams(MAX_DRAFT_TOKENS)),
        (2, model()),
    ] {
        let server = drafted(count, Some(drafting));
        for ((path, request), want) in requests().iter().zip(&want) {
            assert_eq!(&said(&server, path, request), want, "{request}");
        }
        assert_eq!(counted(&server), counts);
        // Results do not depend on previous requests, so the reverse order gives the same.
        for ((path, request), want) in requests().iter().zip(&want).rev() {
            assert_eq!(&said(&server, path, request), want, "again: {request}");
        }
    }
}

#[test]
fn texts_in_company_are_those_alone() {
    let ask = |n: usize| {
        let prompt = &REPEATS[..REPEATS.len() - n];
        json!({"prompt": prompt, "temperature": 0, "max_tokens": 16})
    };
    let plain = drafted(1, None);
    let alone: Vec<Value> = (0..6)
        .map(|n| said(&plain, "/v1/completions", &ask(n)))
        .collect();
    for count in [1, 3] {
        let server = &drafted(count, Some(ngrams(4)));
        let together: Vec<Value> = std::thread::scope(|scope| {
            let asked =
                (0..6).map(|n| scope.spawn(move || said(server, "/v1/completions", &ask(n))));
            let asked: Vec<_> = asked.collect();
            asked.into_iter().map(|one| one.join().unwrap()).collect()
        });
        assert_eq!(together, alone, "{count} slots");
    }
}

#[test]
fn drafts_that_cannot_be_are_refused() {
    let refused = |options: ServeOptions, drafting: SpeculativeOptions| {
        let added = add_placed(&mut ModelRegistry::new(), &options, |placement| {
            placement.draft = Some(drafting);
        });
        added.err().unwrap()
    };
    let many = refused(slots(1), ngrams(MAX_DRAFT_TOKENS + 1));
    assert!(
        matches!(
            &many,
            ServeError::Model {
                source: Error::Model(ModelError::Draft(DraftError::Tokens { .. })),
                ..
            }
        ),
        "{}",
        one_line(&many)
    );
    let other = ModelFiles::open(data("text-to-text/t5-a")).unwrap();
    let other = refused(
        slots(1),
        SpeculativeOptions {
            by: DraftSource::Model(Arc::new(other)),
            tokens: 2,
        },
    );
    assert!(
        matches!(&other, ServeError::Model { .. }),
        "{}",
        one_line(&other)
    );
}
