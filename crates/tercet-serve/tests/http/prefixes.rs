//! Cached prefixes: what is not read again, what the responses and metrics say about it, and who shares it.

use serde_json::{Value, json};
use tercet_serve::{DraftSource, ServeOptions, SpeculativeOptions};

use crate::server::{Answer, MODEL, Running, events, named_events, start_placed};

/// Tokens of a whole prompt chunk.
const CHUNK: usize = 256;

/// A server with a context of several chunks.
fn server(options: ServeOptions) -> Running {
    start_placed(options, |placement| placement.context = Some(4096))
}

fn one_slot() -> ServeOptions {
    ServeOptions {
        slots: 1,
        ..ServeOptions::default()
    }
}

/// A prompt of this many tokens.
fn prompt(len: usize, seed: usize) -> Vec<usize> {
    (0..len).map(|at| 5 + (at * 31 + seed * 7) % 90).collect()
}

fn cached(answer: &Value) -> usize {
    let details = &answer["usage"]["prompt_tokens_details"]["cached_tokens"];
    details.as_u64().unwrap_or_else(|| panic!("{answer}")) as usize
}

fn ask(server: &Running, key: &str, mut body: Value) -> Value {
    body["model"] = MODEL.into();
    body["max_tokens"] = 3.into();
    body["temperature"] = 0.into();
    let headers = [("content-type", "application/json"), ("x-api-key", key)];
    let answer = server.send("/v1/completions", &headers, body.to_string().as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

/// A message of an agent's conversation.
fn message(turn: usize) -> Value {
    const RESULTS: [&str; 4] = [
        "error[E0382]: borrow of moved value: `text`\n --> src/main.rs:7:20\n",
        "test result: ok. 12 passed; 0 failed; 0 ignored; finished in 0.04s\n",
        "fn main() {\n    let text = String::from(\"a\");\n    println!(\"{text}\");\n}\n",
        "src/lib.rs\nsrc/main.rs\nsrc/parser/mod.rs\nCargo.toml\n",
    ];
    let text = RESULTS[turn % RESULTS.len()];
    json!({"role": "user", "content": format!("Result of call {turn}:\n{text}")})
}

fn tokens(value: &Value) -> Vec<u64> {
    let tokens = value.as_array().unwrap_or_else(|| panic!("{value}"));
    tokens.iter().map(|token| token.as_u64().unwrap()).collect()
}

fn common(a: &[u64], b: &[u64]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Each turn of a conversation reads what is new, the generated tokens of the last turn, and at most a part
/// of a chunk again. The metrics count exactly that, and the bits are those of a server without a cache.
#[test]
fn a_growing_conversation_is_read_once() {
    const TURNS: usize = 40;
    let cached_server = server(ServeOptions::default());
    let mut messages =
        vec![json!({"role": "system", "content": "You are a careful Rust engineer."})];
    let mut read: Vec<Vec<u64>> = Vec::new();
    let (mut all_cached, mut all_again, mut before) = (0, 0, 0);
    for turn in 0..TURNS {
        messages.push(message(turn));
        let body = json!({
            "model": MODEL, "messages": messages, "temperature": 0, "max_tokens": 8, "ignore_eos": true,
            "return_token_ids": true, "logits": true,
        });
        let answer = cached_server.post("/v1/chat/completions", &body);
        assert_eq!(answer.status, 200, "turn {turn}: {}", answer.text());
        let answer = answer.json();
        let choice = &answer["choices"][0];
        let (prompt, written) = (
            tokens(&choice["prompt_token_ids"]),
            tokens(&choice["token_ids"]),
        );
        let cached = cached(&answer);
        let known = read.iter().map(|old| common(old, &prompt)).max();
        let known = known.unwrap_or(0);
        assert!(
            cached <= known.min(prompt.len() - 1),
            "turn {turn}: {cached} of {known}"
        );
        // The rule: whole chunks of the earlier prompt are not read again.
        let whole = known.min(before).min(prompt.len() - 1) / CHUNK * CHUNK;
        assert!(
            cached >= whole,
            "turn {turn}: {cached} cached of {known}, at least {whole}"
        );
        all_cached += cached;
        all_again += known - cached;
        before = prompt.len();
        if [1, TURNS / 2, TURNS - 1].contains(&turn) {
            let alone = server(ServeOptions::default())
                .post("/v1/chat/completions", &body)
                .json();
            assert_eq!(self::cached(&alone), 0);
            let alone = &alone["choices"][0];
            assert_eq!(alone["token_ids"], choice["token_ids"], "turn {turn}");
            assert!(
                alone["logits"]["data"] == choice["logits"]["data"],
                "turn {turn}"
            );
        }
        let text = choice["message"]["content"].clone();
        messages.push(json!({"role": "assistant", "content": text}));
        // The last token is written and not read.
        let all = [&prompt[..], &written[..written.len() - 1]].concat();
        read.push(all);
    }
    assert!(before > 4 * CHUNK, "{before}");
    assert!(all_cached > 20 * CHUNK, "{all_cached}");
    assert_eq!(
        cached_server.metric("tercet_cached_tokens_total"),
        all_cached as f64
    );
    assert_eq!(
        cached_server.metric("tercet_reread_tokens_total"),
        all_again as f64
    );
}

#[test]
fn all_protocols_say_how_many_tokens_were_cached() {
    let server = server(one_slot());
    let text = "let x = 5; ".repeat(120);
    let messages = json!([{"role": "user", "content": text}]);
    let post = |route: &str, body: Value| -> Answer {
        let mut body = body;
        body["model"] = MODEL.into();
        let answer = server.post(route, &body);
        assert_eq!(answer.status, 200, "{route}: {}", answer.text());
        answer
    };
    let chat = json!({"messages": messages, "max_tokens": 2});
    let first = post("/v1/chat/completions", chat.clone()).json();
    assert_eq!(cached(&first), 0);
    let prompt = first["usage"]["prompt_tokens"].as_u64().unwrap() as usize;
    let want = (prompt - 1) / CHUNK * CHUNK;
    assert!(want > 0);
    assert_eq!(
        cached(&post("/v1/chat/completions", chat.clone()).json()),
        want
    );
    let mut stream = chat.clone();
    stream["stream"] = true.into();
    stream["stream_options"] = json!({"include_usage": true});
    let events = events(&post("/v1/chat/completions", stream).text());
    assert_eq!(cached(events.last().unwrap()), want);
    let mut several = chat.clone();
    several["n"] = 2.into();
    assert_eq!(cached(&post("/v1/chat/completions", several).json()), want);
    let response = post(
        "/v1/responses",
        json!({"input": messages, "max_output_tokens": 2}),
    )
    .json();
    let details = &response["usage"]["input_tokens_details"];
    assert_eq!(details["cached_tokens"], want, "{response}");
    let usage = json!({
        "input_tokens": prompt - want, "cache_read_input_tokens": want,
        "cache_creation_input_tokens": 0, "output_tokens": 2,
    });
    let body = json!({"messages": messages, "max_tokens": 2});
    let message = post("/v1/messages", body.clone()).json();
    assert_eq!(
        message["usage"]["input_tokens"], usage["input_tokens"],
        "{message}"
    );
    assert_eq!(message["usage"]["cache_read_input_tokens"], want);
    let mut stream = body;
    stream["stream"] = true.into();
    let events = named_events(&post("/v1/messages", stream).text());
    let (_, delta) = events
        .iter()
        .find(|(name, _)| name == "message_delta")
        .unwrap();
    assert_eq!(delta["usage"]["cache_read_input_tokens"], want, "{delta}");
}

#[test]
fn keys_share_prefixes_unless_they_are_isolated() {
    let prompt = json!({"prompt": prompt(600, 1)});
    let texts = |answer: &Value| answer["choices"][0]["text"].clone();
    for (isolate, slots, draft) in [
        (false, 2, None),
        (true, 2, None),
        (true, 1, None),
        (true, 1, Some(DraftSource::Ngrams)),
    ] {
        let options = ServeOptions {
            slots,
            isolate,
            api_keys: vec!["one".into(), "two".into()],
            ..ServeOptions::default()
        };
        let server = start_placed(options, |placement| {
            placement.context = Some(1024);
            placement.draft = draft.map(|by| SpeculativeOptions { by, tokens: 2 });
        });
        let of = |key: &str| ask(&server, key, prompt.clone());
        let first = of("one");
        assert_eq!(cached(&first), 0);
        assert_eq!(cached(&of("one")), 2 * CHUNK, "{slots} {isolate}");
        let other = of("two");
        let want = if isolate { 0 } else { 2 * CHUNK };
        assert_eq!(cached(&other), want, "{slots} {isolate}");
        assert_eq!(texts(&other), texts(&first));
        assert_eq!(cached(&of("two")), 2 * CHUNK);
        // With a slot each, the keys do not drive each other's prefixes out.
        let want = if slots > 1 { 2 * CHUNK } else { 0 };
        let want = if isolate { want } else { 2 * CHUNK };
        assert_eq!(cached(&of("one")), want, "{slots} {isolate}");
    }
}

#[test]
fn requests_of_another_salt_share_no_prefix() {
    let server = server(one_slot());
    let of = |salt: &str| {
        let body = json!({"prompt": prompt(300, 2), "cache_salt": salt});
        cached(&ask(&server, "", body))
    };
    assert_eq!(
        [of(""), of(""), of("a"), of("a"), of("b"), of("")],
        [0, CHUNK, 0, CHUNK, 0, 0]
    );
}
