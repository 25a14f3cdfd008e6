//! Ollama's API, compared with OpenAI's routes for the same conversation.

use serde_json::{Value, json};
use tercet_serve::ServeOptions;

use crate::server::{Answer, MODEL, Running, shared, start, start_folders};
use crate::tools;

/// Options with which answers are those of the other routes.
fn greedy() -> Value {
    json!({"temperature": 0, "repeat_penalty": 1, "num_predict": 20})
}

fn ask(server: &Running, path: &str, more: Value) -> Answer {
    let mut request = json!({"model": MODEL, "stream": false, "options": greedy()});
    let more = more.as_object().unwrap().clone();
    request.as_object_mut().unwrap().extend(more);
    server.post(path, &request)
}

fn answered(server: &Running, path: &str, more: Value) -> Value {
    let answer = ask(server, path, more.clone());
    assert_eq!(answer.status, 200, "{more}: {}", answer.text());
    answer.json()
}

/// The lines of a stream.
fn streamed(server: &Running, path: &str, mut more: Value) -> Vec<Value> {
    more.as_object_mut().unwrap().remove("stream");
    let mut request = json!({"model": MODEL, "options": greedy()});
    let more = more.as_object().unwrap().clone();
    request.as_object_mut().unwrap().extend(more);
    let answer = server.post(path, &request);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let text = answer.text();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// The texts of a field of all lines.
fn joined(lines: &[Value], pointer: &str) -> String {
    lines
        .iter()
        .filter_map(|line| line.pointer(pointer)?.as_str())
        .collect()
}

#[test]
fn answers_are_those_of_chat_completions() {
    let server = shared();
    let messages = json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is a trait?"},
    ]);
    let body = json!({"model": MODEL, "temperature": 0, "max_tokens": 20, "messages": messages});
    let chat = server.post("/v1/chat/completions", &body).json();
    let text = chat["choices"][0]["message"]["content"].as_str().unwrap();
    let requests = [
        (
            "/api/chat",
            json!({"messages": messages}),
            "/message/content",
        ),
        (
            "/api/generate",
            json!({"prompt": "What is a trait?", "system": "Be brief."}),
            "/response",
        ),
    ];
    for (path, request, pointer) in requests {
        let mut request = request;
        request["model"] = json!(format!("{MODEL}:latest"));
        request["keep_alive"] = json!("5m");
        let whole = answered(&server, path, request.clone());
        assert_eq!(whole.pointer(pointer).unwrap(), text, "{path}");
        assert_eq!(
            (&whole["model"], &whole["done"]),
            (&json!(MODEL), &json!(true))
        );
        assert_eq!(whole["prompt_eval_count"], chat["usage"]["prompt_tokens"]);
        assert_eq!(whole["eval_count"], chat["usage"]["completion_tokens"]);
        assert!(whole["created_at"].as_str().unwrap().ends_with('Z'));

        let lines = streamed(&server, path, request);
        assert_eq!(joined(&lines, pointer), text, "{path}");
        let (last, first) = lines.split_last().unwrap();
        assert!(first.iter().all(|line| line["done"] == false) && !first.is_empty());
        assert_eq!(
            (&last["done"], &last["done_reason"]),
            (&json!(true), &whole["done_reason"])
        );
        assert_eq!(last["eval_count"], whole["eval_count"]);
        for end in [&whole, last] {
            let times = ["total_duration", "prompt_eval_duration", "eval_duration"];
            let [total, prompt, eval] = times.map(|name| end[name].as_u64().unwrap());
            assert!(prompt > 0 && eval > 0 && total >= prompt + eval, "{end}");
        }
    }
}

#[test]
fn raw_prompts_have_no_template() {
    let server = shared();
    let body =
        json!({"model": MODEL, "prompt": "Ownership is", "max_tokens": 20, "temperature": 0});
    let raw = server.post("/v1/completions", &body).json();
    let request = json!({"prompt": "Ownership is", "raw": true});
    let whole = answered(&server, "/api/generate", request.clone());
    assert_eq!(whole["response"], raw["choices"][0]["text"]);
    assert_eq!(whole["prompt_eval_count"], raw["usage"]["prompt_tokens"]);
    let lines = streamed(&server, "/api/generate", request);
    assert_eq!(
        joined(&lines, "/response"),
        whole["response"].as_str().unwrap()
    );
}

#[test]
fn options_are_those_of_other_routes() {
    let server = shared();
    let of = |options: Value| {
        let request = json!({"prompt": "Ownership is", "raw": true, "options": options});
        answered(&server, "/api/generate", request)
    };
    let chat = |more: Value| {
        let mut body = json!({"model": MODEL, "prompt": "Ownership is"});
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        server.post("/v1/completions", &body).json()["choices"][0]["text"].clone()
    };
    // The defaults are those of this API.
    let expected = chat(
        json!({"temperature": 0.8, "top_k": 40, "top_p": 0.9, "repeat_penalty": 1.1,
        "repeat_last_n": 64, "seed": 7, "max_tokens": 12}),
    );
    assert_eq!(
        of(json!({"seed": 7, "num_predict": 12}))["response"],
        expected
    );
    let expected = chat(
        json!({"temperature": 1.5, "top_k": 5, "min_p": 0.1, "top_p": 1, "repeat_penalty": 1,
        "repeat_last_n": 64, "seed": 3, "max_tokens": 12}),
    );
    let options = json!({"temperature": 1.5, "top_k": 5, "min_p": 0.1, "top_p": 1, "repeat_penalty": 1, "seed": 3,
        "num_predict": 12, "num_ctx": 4096, "num_gpu": 1, "mirostat": 0});
    assert_eq!(of(options)["response"], expected);
    // A limit and a stop string.
    let cut = of(json!({"num_predict": 2, "ignore_eos": true}));
    assert_eq!(
        (&cut["done_reason"], &cut["eval_count"]),
        (&json!("length"), &json!(2))
    );
    let whole = of(greedy())["response"].as_str().unwrap().to_string();
    let stop: String = whole.chars().skip(5).take(3).collect();
    let mut options = greedy();
    options["stop"] = json!([stop]);
    let stopped = of(options);
    assert_eq!(stopped["done_reason"], "stop");
    assert_eq!(stopped["response"], whole[..whole.find(&stop).unwrap()]);
    // A negative limit is the rest of the context.
    let rest = of(json!({"num_predict": -1, "temperature": 0, "ignore_eos": true}));
    assert!(rest["eval_count"].as_u64().unwrap() > 100, "{rest}");
}

#[test]
fn thoughts_and_calls_have_fields() {
    let server = tools::server();
    let call = "<tool_call>{\\\"name\\\": \\\"kind\\\", \\\"arguments\\\": {\\\"kind\\\": \\\"copy\\\"}}</tool_call>";
    let grammar = format!("start: \"<think>\\nBecause.\\n</think>\\n\\nYes.\\n{call}{call}\"");
    let more = json!({
        "model": "tagged", "messages": [{"role": "user", "content": "Go"}], "tools": tools::tools(), "think": true,
        "options": {"grammar": grammar, "num_predict": 200},
    });
    let whole = answered(&server, "/api/chat", more.clone());
    let message = &whole["message"];
    assert_eq!(message["thinking"], "Because.");
    assert_eq!(message["content"].as_str().unwrap().trim_end(), "Yes.");
    let functions = |calls: &[Value]| -> Vec<Value> {
        calls.iter().map(|call| call["function"].clone()).collect()
    };
    let function =
        |index: usize| json!({"index": index, "name": "kind", "arguments": {"kind": "copy"}});
    let calls = functions(message["tool_calls"].as_array().unwrap());
    assert_eq!(calls, [function(0), function(1)]);
    let lines = streamed(&server, "/api/chat", more);
    assert_eq!(joined(&lines, "/message/thinking"), "Because.");
    assert_eq!(joined(&lines, "/message/content").trim_end(), "Yes.");
    let of_lines = lines
        .iter()
        .filter_map(|line| line["message"]["tool_calls"].as_array());
    let of_lines: Vec<Value> = of_lines.flatten().cloned().collect();
    assert_eq!(functions(&of_lines), calls);
    // A prompt of `/api/generate` has thoughts, too.
    let grammar = "start: \"<think>\\nBecause.\\n</think>\\n\\nYes.\"";
    let more = json!({"model": "tagged", "prompt": "Go", "options": {"grammar": grammar}});
    let whole = answered(&server, "/api/generate", more);
    assert_eq!(
        (&whole["thinking"], &whole["response"]),
        (&json!("Because."), &json!("Yes."))
    );
}

#[test]
fn calls_and_their_results_go_back() {
    let server = tools::server();
    let messages = json!([
        {"role": "user", "content": "Go"},
        {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": [
            {"function": {"name": "kind", "arguments": {"kind": "copy"}}}]},
        {"role": "tool", "tool_name": "kind", "content": "done"},
    ]);
    let function = json!({"name": "kind", "arguments": "{\"kind\":\"copy\"}"});
    let chat = json!([
        {"role": "user", "content": "Go"},
        {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [
            {"id": "", "type": "function", "function": function}]},
        {"role": "tool", "name": "kind", "content": "done"},
    ]);
    for model in ["tagged", "deaf"] {
        let more = json!({"model": model, "messages": messages, "tools": tools::tools(), "options": {"num_predict": 1}});
        let whole = answered(&server, "/api/chat", more);
        let body =
            json!({"model": model, "messages": chat, "tools": tools::tools(), "max_tokens": 1});
        let chat = server.post("/v1/chat/completions", &body);
        assert_eq!(
            whole["prompt_eval_count"],
            chat.json()["usage"]["prompt_tokens"],
            "{model}"
        );
    }
}

#[test]
fn answers_match_the_format() {
    let server = shared();
    let schema = json!({"type": "object", "properties": {"n": {"enum": [3, 4]}}, "required": ["n"], "additionalProperties": false});
    let options = json!({"num_predict": 60, "temperature": 0});
    let more = json!({"messages": [{"role": "user", "content": "Go"}], "format": schema, "options": options});
    let whole = answered(&server, "/api/chat", more);
    let text = whole["message"]["content"].as_str().unwrap();
    let value: Value = serde_json::from_str(text).unwrap();
    assert!([3, 4].contains(&value["n"].as_u64().unwrap()), "{text}");
    let more = json!({"prompt": "Go", "format": "json", "options": {"num_predict": 3}});
    let whole = answered(&server, "/api/generate", more);
    assert!(
        whole["response"].as_str().unwrap().starts_with('{'),
        "{whole}"
    );
}

#[test]
fn requests_without_a_prompt_load_the_model() {
    let server = shared();
    for (path, more) in [
        ("/api/chat", json!({"messages": []})),
        ("/api/generate", json!({})),
    ] {
        let loaded = answered(&server, path, more);
        assert_eq!(
            (&loaded["done"], &loaded["done_reason"]),
            (&json!(true), &json!("load"))
        );
    }
}

#[test]
fn texts_become_vectors_of_the_embeddings_route() {
    let server = start_folders(&["encoders/sentence-c"], ServeOptions::default());
    let texts = json!(["a river", "the house under a tree"]);
    let expected = server
        .post("/v1/embeddings", &json!({"input": texts}))
        .json();
    let vector = |at: usize| expected["data"][at]["embedding"].clone();
    let embedded = server.post(
        "/api/embed",
        &json!({"model": "any", "input": texts, "keep_alive": 0}),
    );
    assert_eq!(embedded.status, 200, "{}", embedded.text());
    let embedded = embedded.json();
    assert_eq!(embedded["embeddings"], json!([vector(0), vector(1)]));
    assert_eq!(
        embedded["prompt_eval_count"],
        expected["usage"]["prompt_tokens"]
    );
    let one = server
        .post("/api/embed", &json!({"input": "a river"}))
        .json();
    assert_eq!(one["embeddings"], json!([vector(0)]));
    let old = server
        .post("/api/embeddings", &json!({"prompt": "a river"}))
        .json();
    assert_eq!(old, json!({"embedding": vector(0)}));
    let none = server.post("/api/embed", &json!({"input": []})).json();
    assert_eq!(none["embeddings"], json!([]));
    // Long texts are cut unless the request says otherwise.
    let long = "river ".repeat(5000);
    assert_eq!(
        server.post("/api/embed", &json!({"input": long})).status,
        200
    );
    let uncut = server.post("/api/embed", &json!({"input": long, "truncate": false}));
    assert_eq!(uncut.status, 400, "{}", uncut.text());
    assert!(uncut.json()["error"].is_string());
    let shown = server.post("/api/show", &json!({"model": "any"})).json();
    assert_eq!(shown["capabilities"], json!(["embedding"]));
}

#[test]
fn models_are_listed_and_shown() {
    let server = shared();
    let tags = server.get("/api/tags").json();
    let models = tags["models"].as_array().unwrap();
    // Graphs have no files.
    assert_eq!(models.len(), 1, "{tags}");
    let model = &models[0];
    assert_eq!(
        (&model["name"], &model["model"]),
        (&json!(MODEL), &json!(MODEL))
    );
    assert_eq!(model["details"]["format"], "gguf");
    assert_eq!(model["details"]["family"], "llama");
    assert_eq!(model["details"]["quantization_level"], "Q8_0");
    assert!(model["size"].as_u64().unwrap() > 1_000_000);
    assert_eq!(model["digest"].as_str().unwrap().len(), 64);
    let running = server.get("/api/ps").json();
    assert_eq!(running["models"][0]["context_length"], 192);
    assert_eq!(running["models"][0]["digest"], model["digest"]);
    let shown = server.post("/api/show", &json!({"model": MODEL})).json();
    assert_eq!(shown["details"], model["details"]);
    assert_eq!(shown["model_info"]["llama.context_length"], 512);
    assert_eq!(shown["capabilities"], json!(["completion", "tools"]));
    assert!(shown["template"].as_str().unwrap().contains("messages"));
    let version = server.get("/api/version").json();
    assert!(
        version["version"].as_str().unwrap().split('.').count() == 3,
        "{version}"
    );
}

#[test]
fn errors_have_the_form_of_this_api() {
    let server = shared();
    let message = |message: Value| json!({"messages": [message]});
    let chat = [
        (json!({"messages": 1}), "`messages` is 1; expected a list"),
        (
            json!({"messages": [2]}),
            "`messages[0]` is 2; expected an object",
        ),
        (
            message(json!({"content": "a"})),
            "`messages[0].role` is missing",
        ),
        (
            message(json!({"role": "owner"})),
            "`messages[0].role` is \"owner\"",
        ),
        (
            message(json!({"role": "user", "content": 3})),
            "`messages[0].content` is 3",
        ),
        (
            message(json!({"role": "user", "content": "a", "images": ["aGk="]})),
            "`messages[0].images` is not supported; the model reads text only",
        ),
        (
            message(
                json!({"role": "assistant", "tool_calls": [{"function": {"arguments": "{}"}}]}),
            ),
            "`messages[0].tool_calls[0].function.name` is missing",
        ),
        (json!({"options": 1}), "`options` is 1; expected an object"),
        (
            json!({"options": {"temperature": "hot"}}),
            "`options.temperature` is \"hot\"",
        ),
        (
            json!({"options": {"num_predict": "all"}}),
            "`options.num_predict` is",
        ),
        (json!({"options": {"stop": [1]}}), "`options.stop`"),
        (json!({"format": 3}), "`format` is 3"),
        (json!({"think": 3}), "`think` is 3"),
        (json!({"stream": "no"}), "`stream` is"),
        (json!({"top_logprobs": 21}), "`top_logprobs`"),
    ];
    let generate = [
        (json!({"prompt": 3}), "`prompt` is 3"),
        (
            json!({"prompt": "a", "suffix": "b"}),
            "`suffix` is not supported",
        ),
        (
            json!({"prompt": "a", "template": "{{ .Prompt }}"}),
            "`template` is not supported",
        ),
        (
            json!({"prompt": "a", "context": [1, 2]}),
            "`context` is not supported",
        ),
        (
            json!({"prompt": "a", "images": ["aGk="]}),
            "`images` is not supported",
        ),
    ];
    let embed = [(json!({"input": {"a": 1}}), "unknown model")];
    let chat = chat
        .into_iter()
        .map(|(more, part)| ("/api/chat", more, part));
    let generate = generate
        .into_iter()
        .map(|(more, part)| ("/api/generate", more, part));
    let embed = embed
        .into_iter()
        .map(|(more, part)| ("/api/embed", more, part));
    for (path, more, part) in chat.chain(generate).chain(embed) {
        let answer = ask(&server, path, more.clone());
        assert!(
            [400, 404].contains(&answer.status),
            "{more}: {}",
            answer.text()
        );
        let error = answer.json();
        let message = error["error"].as_str().unwrap_or_else(|| panic!("{error}"));
        assert!(message.contains(part), "{more}: {message}");
    }
    assert_eq!(
        ask(&server, "/api/chat", json!({"model": "other"})).status,
        404
    );
    assert!(server.get("/api/pull").json()["error"].is_string());
}

#[test]
fn bodies_without_a_media_type_are_read_unless_a_page_sends_them() {
    let server = start(ServeOptions {
        slots: 1,
        api_keys: vec!["secret".into()],
        body_bytes: 2000,
        ..ServeOptions::default()
    });
    let body = json!({"model": MODEL, "prompt": "a", "options": {"num_predict": 1}}).to_string();
    let form = ("content-type", "application/x-www-form-urlencoded");
    let key = ("authorization", "Bearer secret");
    let send = |headers: &[(&str, &str)], body: &str| {
        server.send("/api/generate", headers, body.as_bytes())
    };
    assert_eq!(send(&[form, key], &body).status, 200);
    assert_eq!(
        send(&[form, key, ("origin", "http://evil.example")], &body).status,
        403
    );
    assert_eq!(send(&[form], &body).status, 401);
    assert_eq!(send(&[form, key], &"x".repeat(3000)).status, 413);
    assert_eq!(send(&[form, key], "{").status, 400);
}
