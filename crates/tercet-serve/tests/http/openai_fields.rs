//! Fields of OpenAI's API and of other servers, model names, details of tokens.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tercet::Device;
use tercet_models::{DecoderOptions, ModelFiles};
use tercet_serve::ServeOptions;

use crate::server::{MODEL, Running, data, events, shared, start_folders, start_only};

/// A request with additional fields.
fn with(base: &Value, more: &Value) -> Value {
    let mut request = base.clone();
    let more = more.as_object().unwrap().clone();
    request.as_object_mut().unwrap().extend(more);
    request
}

fn completion() -> Value {
    json!({"model": MODEL, "prompt": "Ownership is", "max_tokens": 6, "temperature": 0})
}

fn conversation() -> Value {
    json!({"model": MODEL, "messages": [{"role": "user", "content": "What is a trait?"}],
        "max_tokens": 6, "temperature": 0})
}

fn file() -> ModelFiles {
    ModelFiles::open(data("tiny-rust-llama/tiny-rust-llama-q8_0.gguf")).unwrap()
}

#[track_caller]
fn answered(server: &Running, path: &str, request: &Value) -> Value {
    let answer = server.post(path, request);
    assert_eq!(answer.status, 200, "{request}: {}", answer.text());
    answer.json()
}

#[test]
fn fields_that_change_nothing_are_accepted() {
    let server = shared();
    let any = [
        json!({"prompt_cache_key": "k", "prompt_cache_retention": "24h", "safety_identifier": "s"}),
        json!({"store": true, "metadata": {"a": "b"}, "service_tier": "priority", "user": "u"}),
        json!({"verbosity": "low", "reasoning_effort": "high"}),
        json!({"prediction": {"type": "content", "content": "Ownership"}}),
        json!({"seed": -1, "top_k": -1, "n": 1, "best_of": 1, "presence_penalty": 0}),
        json!({"modalities": ["text"], "logit_bias": {}, "stop": null, "audio": null}),
        json!({"cache_prompt": false, "id_slot": -1, "timings_per_token": true, "n_keep": 0}),
        json!({"skip_special_tokens": true, "length_penalty": 1.0, "use_beam_search": false}),
        json!({"keep_alive": "5m", "options": {}, "priority": 3, "request_id": "x"}),
        json!({"max_completion_tokens": 6, "max_tokens": null, "stream_options": null}),
        json!({"stream": false, "response_format": {"type": "text"}, "tfs_z": 1, "min_keep": 0}),
    ];
    for (path, base, alone) in [
        (
            "/v1/completions",
            completion(),
            json!({"suffix": null, "echo": false, "logprobs": null}),
        ),
        (
            "/v1/chat/completions",
            conversation(),
            json!({"parallel_tool_calls": true, "tools": [], "tool_choice": "auto",
                "logprobs": false, "top_logprobs": 0, "function_call": "none"}),
        ),
    ] {
        let plain = answered(&server, path, &base);
        for more in any.iter().chain([&alone]) {
            let answer = answered(&server, path, &with(&base, more));
            assert_eq!(answer["choices"], plain["choices"], "{more}");
        }
        // What would change the answer is refused, and the error names it.
        for more in [
            json!({"best_of": 2}),
            json!({"modalities": ["text", "audio"]}),
            json!({"audio": {"voice": "x", "format": "wav"}}),
            json!({"web_search_options": {}}),
            json!({"guided_regex": "a+"}),
            json!({"bad_words": ["a"]}),
            json!({"length_penalty": 2}),
            json!({"continue_final_message": true}),
            json!({"watermark": true}),
            json!({"extra_body": {"top_k": 1}}),
            json!({"temprature": 0}),
        ] {
            let answer = server.post(path, &with(&base, &more));
            assert_eq!(answer.status, 400, "{more}: {}", answer.text());
            assert_eq!(answer.json()["error"]["code"], "unsupported_field");
            let name = more.as_object().unwrap().keys().next().unwrap();
            assert!(
                answer.error().contains(&format!("`{name}`")),
                "{}",
                answer.error()
            );
        }
    }
    let all = with(
        &completion(),
        &json!({"n": 2, "best_of": 2, "temperature": 1}),
    );
    assert_eq!(
        answered(&server, "/v1/completions", &all)["choices"][1]["index"],
        1
    );
}

#[test]
fn messages_as_clients_send_them() {
    let server = shared();
    let tokens = |messages: Value| {
        let request = with(&conversation(), &json!({"messages": messages}));
        answered(&server, "/v1/chat/completions", &request)["usage"]["prompt_tokens"].clone()
    };
    let plain = tokens(json!([
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Yes"},
        {"role": "user", "content": "Go"},
    ]));
    let parts = json!([
        {"role": "user", "name": "ann", "id": "1",
            "content": [{"type": "text", "text": "Hello", "cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", "content": "Yes", "name": "bot", "refusal": null, "annotations": [],
            "audio": null, "function_call": null, "tool_calls": null, "reasoning_content": "Hm."},
        {"role": "user", "content": "Go", "name": "ann"},
    ]);
    assert_eq!(tokens(parts), plain);
    let refused = json!([
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": null, "refusal": "Yes"},
        {"role": "user", "content": "Go"},
    ]);
    assert_eq!(tokens(refused), plain);
}

#[test]
fn unknown_fields_of_messages_are_ignored_and_meaningful_ones_refused() {
    let server = shared();
    let with_user = |extra: Value| {
        let user = with(&json!({"role": "user", "content": "Hello"}), &extra);
        with(&conversation(), &json!({"messages": [user]}))
    };
    let path = "/v1/chat/completions";
    let count = |request| answered(&server, path, &request)["usage"]["prompt_tokens"].clone();
    let plain = count(with_user(json!({})));
    for extra in [
        json!({"parsed": {"a": 1}}),
        json!({"provider_specific_fields": {}, "thinking_blocks": []}),
        json!({"images": [], "prefix": false}),
        json!({"content": [{"type": "text", "text": "Hello", "index": 0, "x": {}}]}),
    ] {
        assert_eq!(count(with_user(extra.clone())), plain, "{extra}");
    }
    for (name, value) in [
        ("images", json!(["aGk="])),
        ("audio", json!({"id": "a"})),
        ("prefix", json!(true)),
        ("function_call", json!({"name": "add"})),
    ] {
        let answer = server.post(path, &with_user(json!({name: value})));
        assert_eq!(answer.status, 400, "{}", answer.text());
        let message = answer.error();
        assert!(
            message.contains(&format!("`messages[0].{name}` is not supported")),
            "{message}"
        );
    }
}

#[test]
fn a_single_model_has_any_name() {
    let server = start_only(ServeOptions {
        slots: 1,
        ..ServeOptions::default()
    });
    for name in [
        json!("gpt-4o"),
        json!("llama3:8b"),
        json!(""),
        json!(null),
        json!(MODEL),
    ] {
        let named = json!({"model": name});
        for (path, base) in [
            ("/v1/completions", completion()),
            ("/v1/chat/completions", conversation()),
        ] {
            let answer = answered(&server, path, &with(&base, &named));
            assert_eq!(answer["model"], MODEL);
        }
    }
    // The model is there, its adapter is not.
    let adapter = with(&completion(), &json!({"model": "tiny:polite"}));
    assert_eq!(server.post("/v1/completions", &adapter).status, 404);
    let embedding = server.post("/v1/embeddings", &json!({"model": "x", "input": "a"}));
    assert_eq!(embedding.status, 404);

    // Of several models the name selects one.
    let unknown = with(&completion(), &json!({"model": "gpt-4o"}));
    assert_eq!(shared().post("/v1/completions", &unknown).status, 404);
    let unnamed = with(&completion(), &json!({"model": null}));
    let answer = shared().post("/v1/completions", &unnamed);
    assert_eq!(
        (answer.status, answer.error().contains("`model`")),
        (400, true)
    );
}

#[test]
fn the_first_page_names_the_routes() {
    let server = start_only(ServeOptions {
        slots: 1,
        api_keys: vec!["secret".into(), "second".into()],
        ..ServeOptions::default()
    });
    let page = server.get("/");
    assert_eq!(page.status, 200);
    for route in [
        "POST /v1/chat/completions",
        "GET  /v1/models",
        "/metrics",
        "/v2/models/{model}/infer",
    ] {
        assert!(page.text().contains(route), "{}", page.text());
    }
    // It needs no key, so it names no model.
    assert!(!page.text().contains(MODEL), "{}", page.text());
}

#[test]
fn a_hundred_requests_at_once_wait() {
    let server = start_only(ServeOptions::default());
    let request = with(&completion(), &json!({"max_tokens": 1}));
    std::thread::scope(|scope| {
        let ask = |_| scope.spawn(|| server.post("/v1/completions", &request).status);
        let clients: Vec<_> = (0..100).map(ask).collect();
        for client in clients {
            assert_eq!(client.join().unwrap(), 200);
        }
    });
}

#[test]
fn embeddings_of_tokens_and_of_fewer_dimensions() {
    let folder = "encoders/sentence-a";
    let server = start_folders(&[folder], ServeOptions::default());
    let tokenizer = ModelFiles::open(data(folder)).unwrap().tokenizer().unwrap();
    let ids = |text: &str| tokenizer.encode_row(text, None, None).unwrap().ids;
    let ask = |more: Value| {
        answered(
            &server,
            "/v1/embeddings",
            &with(&json!({"model": "any"}), &more),
        )
    };
    let rows = |answer: &Value| -> Vec<Vec<f64>> {
        let data = answer["data"].as_array().unwrap();
        let row = |item: &Value| serde_json::from_value(item["embedding"].clone()).unwrap();
        data.iter().map(row).collect()
    };
    let texts = ["a cat", "two words of it"];
    let whole = ask(json!({"input": texts, "user": "u", "metadata": {}}));
    assert_eq!(whole["model"], "sentence-a");
    let tokens = ask(json!({"input": texts.map(ids)}));
    assert_eq!(rows(&tokens), rows(&whole));
    assert_eq!(tokens["usage"], whole["usage"]);
    // Alone, the text is computed with another batch size.
    let alone = rows(&ask(json!({"input": ids(texts[0])})));
    let all = rows(&whole);
    let off = alone[0].iter().zip(&all[0]).map(|(x, y)| (x - y).abs());
    assert!(
        alone.len() == 1 && off.fold(0.0, f64::max) < 1e-5,
        "{alone:?}"
    );

    let width = rows(&whole)[0].len();
    assert_eq!(
        rows(&ask(json!({"input": texts, "dimensions": width}))),
        rows(&whole)
    );
    let short = ask(json!({"input": texts, "dimensions": 3}));
    for (short, whole) in rows(&short).iter().zip(rows(&whole)) {
        assert_eq!(short.len(), 3);
        let length = short.iter().map(|x| x * x).sum::<f64>().sqrt();
        assert!((length - 1.0).abs() < 1e-6, "{length}");
        for (x, y) in short.iter().zip(&whole) {
            assert!(
                (x * whole[0] - y * short[0]).abs() < 1e-6,
                "other direction"
            );
        }
    }
    let coded = ask(json!({"input": texts, "dimensions": 3, "encoding_format": "base64"}));
    let bytes = STANDARD
        .decode(coded["data"][1]["embedding"].as_str().unwrap())
        .unwrap();
    let floats = bytes
        .chunks(4)
        .map(|b| f32::from_le_bytes(b.try_into().unwrap()));
    let floats: Vec<f64> = floats.map(f64::from).collect();
    let expected = &rows(&short)[1];
    let pairs = floats.iter().zip(expected);
    let same = pairs.filter(|(x, y)| (*x - *y).abs() < 1e-7).count();
    assert_eq!((floats.len(), same), (3, 3));

    for (more, named) in [
        (
            json!({"input": texts, "dimensions": width + 1}),
            "dimensions",
        ),
        (json!({"input": texts, "dimensions": 0}), "dimensions"),
        (json!({"input": [4_000_000]}), "4000000"),
        (json!({"input": [[1], ["a"]]}), "input"),
        (json!({"input": [[1], []]}), "input"),
        (json!({"input": [1.5]}), "input"),
        (json!({"input": []}), "input"),
        (json!({"input": vec![1; 100_000]}), "input"),
    ] {
        let answer = server.post("/v1/embeddings", &more);
        assert_eq!(answer.status, 400, "{}", answer.text());
        assert!(answer.error().contains(named), "{}", answer.error());
    }
}

#[test]
fn token_ids_and_logits_are_those_of_the_library() {
    let server = shared();
    let tokenizer = file().tokenizer().unwrap();
    let prompt = tokenizer.encode("Ownership is", true).unwrap();
    let more = json!({"prompt": prompt, "return_token_ids": true, "logits": true, "max_tokens": 3});
    let choice =
        answered(&server, "/v1/completions", &with(&completion(), &more))["choices"][0].clone();
    assert_eq!(choice["prompt_token_ids"], json!(prompt));
    let ids: Vec<u32> = serde_json::from_value(choice["token_ids"].clone()).unwrap();
    let bytes = STANDARD
        .decode(choice["logits"]["data"].as_str().unwrap())
        .unwrap();
    let logits: Vec<f32> = bytes
        .chunks(4)
        .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
        .collect();
    let vocab = logits.len() / 3;
    assert_eq!(choice["logits"]["shape"], json!([3, vocab]));

    let decoder = file().decoder(|spec| DecoderOptions {
        context: 192,
        chunk: 192,
        ..DecoderOptions::new(spec)
    });
    let mut generator = decoder.unwrap().generator(&Device::cpu()).unwrap();
    let mut next = prompt;
    for (row, id) in logits.chunks(vocab).zip(&ids) {
        let step = generator.forward(&next).unwrap();
        assert_eq!(step.next, Some(*id));
        assert_eq!(step.logits.len(), vocab);
        let pairs = step.logits.iter().zip(row);
        assert!(
            pairs.clone().all(|(x, y)| (x - y).abs() < 1e-3),
            "other logits"
        );
        let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        assert_eq!(row[*id as usize], most);
        next = vec![*id];
    }

    let stream = json!({"stream": true, "return_token_ids": true, "max_tokens": 3});
    let stream = server
        .post("/v1/completions", &with(&completion(), &stream))
        .text();
    let parts = events(&stream);
    let parts = parts
        .iter()
        .filter_map(|e| e["choices"][0]["token_ids"].as_array());
    let streamed: Vec<Value> = parts.flatten().cloned().collect();
    assert_eq!(json!(streamed), json!(ids));

    for (more, said) in [
        (json!({"logits": true, "stream": true}), "stream"),
        (json!({"logits": 1}), "logits"),
    ] {
        let answer = server.post("/v1/completions", &with(&completion(), &more));
        assert_eq!(answer.status, 400, "{}", answer.text());
        assert!(answer.error().contains(said), "{}", answer.error());
    }
}
