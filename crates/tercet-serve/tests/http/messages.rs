//! Anthropic's Messages API, compared with chat completions of the same conversation.

use serde_json::{Value, json};
use tercet_serve::ServeOptions;

use crate::server::{Answer, MODEL, Running, named_events, shared, start};
use crate::tools;

fn ask(server: &Running, path: &str, more: Value) -> Answer {
    let mut request = json!({
        "model": "tagged", "temperature": 0, "max_tokens": 90, "messages": [{"role": "user", "content": "Go"}],
    });
    let more = more.as_object().unwrap().clone();
    request.as_object_mut().unwrap().extend(more);
    server.post(path, &request)
}

/// A message with status 200.
fn answered(server: &Running, more: Value) -> Value {
    let answer = ask(server, "/v1/messages", more.clone());
    assert_eq!(answer.status, 200, "{more}: {}", answer.text());
    answer.json()
}

fn counted(server: &Running, more: Value) -> u64 {
    let answer = ask(server, "/v1/messages/count_tokens", more.clone());
    assert_eq!(answer.status, 200, "{more}: {}", answer.text());
    answer.json()["input_tokens"].as_u64().unwrap()
}

/// The events of a stream.
fn streamed(server: &Running, mut more: Value) -> Vec<Value> {
    more["stream"] = json!(true);
    let answer = ask(server, "/v1/messages", more);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let events = named_events(&answer.text());
    for (name, event) in &events {
        assert_eq!(event["type"], json!(name));
    }
    events.into_iter().map(|(_, event)| event).collect()
}

/// The message that a stream consists of, put together as clients do it.
fn assembled(events: &[Value]) -> Value {
    let mut message = events[0]["message"].clone();
    let mut input = String::new();
    for event in events {
        let kind = event["type"].as_str().unwrap();
        let content = message["content"].as_array_mut().unwrap();
        match kind {
            "content_block_start" => {
                assert_eq!(event["index"], content.len());
                content.push(event["content_block"].clone());
                input.clear();
            }
            "content_block_delta" => {
                assert_eq!(event["index"], content.len() - 1);
                let (block, delta) = (content.last_mut().unwrap(), &event["delta"]);
                let (name, of) = match delta["type"].as_str().unwrap() {
                    "text_delta" => ("text", "text"),
                    "thinking_delta" => ("thinking", "thinking"),
                    "signature_delta" => ("signature", "signature"),
                    "input_json_delta" => {
                        input += delta["partial_json"].as_str().unwrap();
                        continue;
                    }
                    other => panic!("{other}"),
                };
                let old = block[name].as_str().unwrap();
                block[name] = json!(format!("{old}{}", delta[of].as_str().unwrap()));
            }
            "content_block_stop" => {
                assert_eq!(event["index"], content.len() - 1);
                if !input.is_empty() {
                    content.last_mut().unwrap()["input"] = serde_json::from_str(&input).unwrap();
                }
            }
            "message_delta" => {
                for name in ["stop_reason", "stop_sequence"] {
                    message[name] = event["delta"][name].clone();
                }
                message["usage"] = event["usage"].clone();
            }
            _ => {}
        }
    }
    message
}

/// A message without its ids, which are new in each response.
fn without_ids(message: &Value) -> Value {
    let mut message = message.clone();
    message.as_object_mut().unwrap().remove("id");
    for block in message["content"].as_array_mut().unwrap() {
        block.as_object_mut().unwrap().remove("id");
    }
    message
}

/// Tools in the format of this API.
fn functions() -> Value {
    let tools = tools::tools();
    let flat = tools.as_array().unwrap().iter().map(|tool| {
        let mut function = tool["function"].clone();
        let schema = function.as_object_mut().unwrap().remove("parameters");
        function["input_schema"] =
            schema.unwrap_or_else(|| json!({"type": "object", "properties": {}}));
        function
    });
    flat.collect()
}

#[test]
fn a_text_is_that_of_chat_completions() {
    let server = shared();
    let system = json!({"role": "system", "content": "Be brief."});
    let user = json!({"role": "user", "content": "What is a trait?"});
    let blocks = json!([{"type": "text", "text": "What is a trait?", "cache_control": {"type": "ephemeral"}}]);
    let cases = [
        (json!({"messages": [user]}), json!([user])),
        (
            json!({"messages": [user], "system": "Be brief."}),
            json!([system, user]),
        ),
        (
            json!({"messages": [{"role": "user", "content": blocks}], "system": [{"type": "text", "text": "Be brief."}]}),
            json!([system, user]),
        ),
        (
            json!({"messages": [user, {"role": "assistant", "content": [{"type": "text", "text": "A set."}]}, user]}),
            json!([user, {"role": "assistant", "content": "A set."}, user]),
        ),
    ];
    for (request, messages) in cases {
        let body =
            json!({"model": MODEL, "temperature": 0, "max_tokens": 20, "messages": messages});
        let chat = server.post("/v1/chat/completions", &body).json();
        let mut request = request;
        request["model"] = json!(MODEL);
        request["max_tokens"] = json!(20);
        let message = answered(&server, request.clone());
        let text = &chat["choices"][0]["message"]["content"];
        assert_eq!(
            &message["content"],
            &json!([{"type": "text", "text": text}])
        );
        assert_eq!(
            (&message["type"], &message["role"]),
            (&json!("message"), &json!("assistant"))
        );
        assert_eq!(
            message["usage"]["input_tokens"],
            chat["usage"]["prompt_tokens"]
        );
        assert_eq!(
            message["usage"]["output_tokens"],
            chat["usage"]["completion_tokens"]
        );
        assert_eq!(
            counted(&server, request.clone()),
            chat["usage"]["prompt_tokens"].as_u64().unwrap()
        );
        let events = streamed(&server, request);
        assert_eq!(events[0]["type"], "message_start");
        assert_eq!(
            events[0]["message"]["usage"]["input_tokens"],
            message["usage"]["input_tokens"]
        );
        assert_eq!(events.last().unwrap()["type"], "message_stop");
        assert_eq!(without_ids(&assembled(&events)), without_ids(&message));
    }
}

#[test]
fn thoughts_text_and_calls_are_blocks_in_order() {
    let server = tools::server();
    let call = "<tool_call>{\\\"name\\\": \\\"kind\\\", \\\"arguments\\\": {\\\"kind\\\": \\\"copy\\\"}}</tool_call>";
    let grammar = format!("start: \"<think>\\nBecause.\\n</think>\\n\\nYes.\\n{call}\"");
    let more = json!({"grammar": grammar, "tools": functions(), "thinking": {"type": "enabled", "budget_tokens": 1024}});
    let message = answered(&server, more.clone());
    let content = message["content"].as_array().unwrap();
    assert_eq!(
        content[0],
        json!({"type": "thinking", "thinking": "Because.", "signature": ""})
    );
    assert_eq!(content[1]["text"].as_str().unwrap().trim_end(), "Yes.");
    assert_eq!(
        (
            &content[2]["type"],
            &content[2]["name"],
            &content[2]["input"]
        ),
        (&json!("tool_use"), &json!("kind"), &json!({"kind": "copy"}))
    );
    assert_eq!(message["stop_reason"], "tool_use");
    let events = streamed(&server, more);
    assert_eq!(without_ids(&assembled(&events)), without_ids(&message));
    let mut kinds: Vec<String> = events
        .iter()
        .map(|e| {
            format!(
                "{} {}",
                e["type"].as_str().unwrap(),
                e["delta"]["type"].as_str().unwrap_or("")
            )
        })
        .collect();
    kinds.dedup();
    let expected = [
        "message_start ",
        "ping ",
        "content_block_start ",
        "content_block_delta thinking_delta",
        "content_block_delta signature_delta",
        "content_block_stop ",
        "content_block_start ",
        "content_block_delta text_delta",
        "content_block_stop ",
        "content_block_start ",
        "content_block_delta input_json_delta",
        "content_block_stop ",
        "message_delta ",
        "message_stop ",
    ];
    assert_eq!(kinds, expected);
}

#[test]
fn calls_and_their_results_go_back() {
    let server = tools::server();
    let any = json!({"tools": functions(), "tool_choice": {"type": "any", "disable_parallel_tool_use": true}});
    let message = answered(&server, any);
    assert_eq!(message["content"][0]["type"], "tool_use", "{message}");
    assert_eq!(message["stop_reason"], "tool_use");
    let named = json!({"tools": functions(), "tool_choice": {"type": "tool", "name": "now"}});
    let message = answered(&server, named);
    assert_eq!(
        (
            &message["content"][0]["name"],
            &message["content"][0]["input"]
        ),
        (&json!("now"), &json!({}))
    );

    // The same conversation as chat completions have it.
    let messages = json!([
        {"role": "user", "content": "Go"},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": "x"},
            {"type": "redacted_thinking", "data": "x"},
            {"type": "text", "text": "Well."},
            {"type": "tool_use", "id": "c1", "name": "kind", "input": {"kind": "copy"}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "done"}]},
            {"type": "tool_result", "tool_use_id": "c2", "is_error": true},
            {"type": "text", "text": "And now?"},
            {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "A page."}}]},
    ]);
    let function = json!({"name": "kind", "arguments": "{\"kind\":\"copy\"}"});
    let chat = json!([
        {"role": "user", "content": "Go"},
        {"role": "assistant", "content": "Well.", "reasoning_content": "hm", "tool_calls": [
            {"id": "c1", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "c1", "name": "kind", "content": "done"},
        {"role": "tool", "tool_call_id": "c2", "content": ""},
        {"role": "user", "content": "And now?\nA page."},
    ]);
    for model in ["tagged", "deaf"] {
        let read = counted(
            &server,
            json!({"model": model, "messages": messages, "tools": functions()}),
        );
        let parameters = json!({"type": "object", "properties": {}});
        let mut tools = tools::tools();
        tools[0]["function"]
            .as_object_mut()
            .unwrap()
            .remove("strict");
        tools[1]["function"]["parameters"] = parameters;
        let body = json!({"model": model, "messages": chat, "tools": tools, "max_tokens": 1});
        let chat = server.post("/v1/chat/completions", &body);
        assert_eq!(
            chat.json()["usage"]["prompt_tokens"],
            read,
            "{model}: {}",
            chat.text()
        );
    }
}

#[test]
fn an_answer_ends_at_a_stop_sequence_or_a_limit() {
    let server = shared();
    let whole = answered(&server, json!({"model": MODEL, "max_tokens": 20}));
    let text = whole["content"][0]["text"].as_str().unwrap();
    let (at, _) = text.char_indices().nth(text.chars().count() / 2).unwrap();
    let stop = text[at..].chars().take(3).collect::<String>();
    let more =
        json!({"model": MODEL, "max_tokens": 20, "stop_sequences": ["\u{1F980}\u{1F980}", stop]});
    let message = answered(&server, more);
    assert_eq!(
        (&message["stop_reason"], &message["stop_sequence"]),
        (&json!("stop_sequence"), &json!(stop))
    );
    assert_eq!(
        message["content"][0]["text"],
        text[..text.find(&stop).unwrap()]
    );
    let cut = answered(
        &server,
        json!({"model": MODEL, "max_tokens": 2, "ignore_eos": true}),
    );
    assert_eq!(
        (&cut["stop_reason"], &cut["stop_sequence"]),
        (&json!("max_tokens"), &Value::Null)
    );
    let large = json!({"model": MODEL, "stop_sequences": vec!["a"; 17]});
    assert_eq!(ask(&server, "/v1/messages", large).status, 400);
}

#[test]
fn an_answer_goes_on_after_its_beginning() {
    let server = tools::server();
    // The template of `object` has no generation prompt: the text is the last line.
    let begun =
        json!([{"role": "user", "content": "Go"}, {"role": "assistant", "content": "A trait is"}]);
    let more = json!({"model": "object", "messages": begun, "max_tokens": 12});
    let message = answered(&server, more);
    let body = json!({"model": "object", "prompt": "user: Go\nA trait is", "max_tokens": 12, "temperature": 0});
    let raw = server.post("/v1/completions", &body).json();
    assert_eq!(message["content"][0]["text"], raw["choices"][0]["text"]);
    assert_eq!(
        message["usage"]["input_tokens"],
        raw["usage"]["prompt_tokens"]
    );
}

#[test]
fn errors_have_the_form_of_this_api() {
    let server = tools::server();
    let user = |content: Value| json!({"messages": [{"role": "user", "content": content}]});
    let assistant =
        |content: Value| json!({"messages": [{"role": "assistant", "content": content}]});
    let cases = [
        (json!({"messages": null}), "`messages` is missing"),
        (json!({"messages": 1}), "`messages` is 1; expected a list"),
        (json!({"messages": []}), "`messages` has 0"),
        (
            json!({"messages": ["a"]}),
            "`messages[0]` is \"a\"; expected an object",
        ),
        (
            json!({"messages": [{"role": "tool", "content": "a"}]}),
            "`messages[0].role`",
        ),
        (
            json!({"messages": [{"role": "user"}]}),
            "`messages[0].content` is missing",
        ),
        (user(json!(1)), "`messages[0].content` is 1"),
        (
            user(json!([{"text": "a"}])),
            "`messages[0].content[0].type` is missing",
        ),
        (
            user(json!([{"type": "image", "source": {"type": "base64", "data": ""}}])),
            "`messages[0].content[0].type` is \"image\"",
        ),
        (
            user(json!([{"type": "tool_use", "id": "a", "name": "b", "input": {}}])),
            "`messages[0].content[0].type` is \"tool_use\"",
        ),
        (
            assistant(json!([{"type": "tool_use", "id": "a", "name": "b", "input": 3}])),
            "`messages[0].content[0].input` is 3",
        ),
        (
            user(
                json!([{"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image"}]}]),
            ),
            "`messages[0].content[0].content[0].type`",
        ),
        (
            user(json!([{"type": "document", "source": {"type": "url", "url": "a"}}])),
            "`messages[0].content[0].source.type`",
        ),
        (json!({"system": 3}), "`system` is 3"),
        (json!({"max_tokens": "many"}), "`max_tokens` is \"many\""),
        (json!({"thinking": {"type": "deep"}}), "`thinking.type`"),
        (
            json!({"thinking": {"type": "enabled", "budget_tokens": "a"}}),
            "`thinking.budget_tokens`",
        ),
        (json!({"tools": [{"name": "a b"}]}), "`tools[0].name`"),
        (
            json!({"tools": [{"name": "a", "input_schema": []}]}),
            "`tools[0].input_schema`",
        ),
        (
            json!({"tool_choice": {"type": "some"}}),
            "`tool_choice.type`",
        ),
        (json!({"tool_choice": {"type": "any"}}), "requires `tools`"),
        (
            json!({"output_config": {"format": {"type": "xml"}}}),
            "format.type",
        ),
        (
            json!({"mcp_servers": [{"url": "a"}]}),
            "`mcp_servers` is not supported",
        ),
    ];
    for (more, part) in cases {
        for path in ["/v1/messages", "/v1/messages/count_tokens"] {
            let answer = ask(&server, path, more.clone());
            assert_eq!(answer.status, 400, "{more}: {}", answer.text());
            let error = answer.json();
            assert_eq!(
                (&error["type"], &error["error"]["type"]),
                (&json!("error"), &json!("invalid_request_error"))
            );
            let message = error["error"]["message"].as_str().unwrap();
            assert!(message.contains(part), "{more}: {message}");
        }
    }
    let unknown = ask(&server, "/v1/messages", json!({"model": "other"}));
    assert_eq!(
        (unknown.status, &unknown.json()["error"]["type"]),
        (404, &json!("not_found_error"))
    );
    assert_eq!(server.get("/v1/messages").json()["type"], "error");
    // Unknown fields and blocks of tools that Anthropic runs are ignored.
    let more = json!({"max_tokens": 1, "metadata": {"user_id": "a"}, "service_tier": "auto", "betas": [],
        "tools": [{"type": "web_search_20250305", "name": "web_search"}]});
    answered(&server, more);
}

#[test]
fn keys_and_sizes_are_checked_as_elsewhere() {
    let server = start(ServeOptions {
        slots: 1,
        api_keys: vec!["secret".into()],
        body_bytes: 2000,
        ..ServeOptions::default()
    });
    let body =
        json!({"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": "Go"}]})
            .to_string();
    let send = |key: &str, body: &str| {
        let headers = [
            ("content-type", "application/json"),
            ("x-api-key", key),
            ("anthropic-version", "2023-06-01"),
        ];
        server.send("/v1/messages", &headers, body.as_bytes())
    };
    assert_eq!(send("secret", &body).status, 200);
    let wrong = send("other", &body);
    assert_eq!(
        (wrong.status, &wrong.json()["error"]["type"]),
        (401, &json!("authentication_error"))
    );
    let large = send("secret", &"x".repeat(3000));
    assert_eq!(
        (large.status, &large.json()["error"]["type"]),
        (413, &json!("request_too_large"))
    );
}

#[test]
fn answers_match_the_format() {
    let server = tools::server();
    let schema = json!({"type": "object", "properties": {"n": {"enum": [3, 4]}}, "required": ["n"], "additionalProperties": false});
    let format = json!({"type": "json_schema", "schema": schema});
    for more in [
        json!({"output_config": {"format": format, "effort": "low"}}),
        json!({"output_format": format}),
    ] {
        let message = answered(&server, more);
        let text = message["content"][0]["text"].as_str().unwrap();
        let value: Value = serde_json::from_str(text).unwrap();
        assert!([3, 4].contains(&value["n"].as_u64().unwrap()), "{text}");
    }
}

#[test]
fn models_have_the_fields_of_this_api() {
    let server = shared();
    let list = server.get("/v1/models").json();
    let models = list["data"].as_array().unwrap();
    let model = &models[0];
    assert_eq!(
        (&list["has_more"], &list["first_id"]),
        (&json!(false), &model["id"])
    );
    assert_eq!(list["last_id"], models.last().unwrap()["id"]);
    assert_eq!(
        (&model["type"], &model["display_name"]),
        (&json!("model"), &json!(MODEL))
    );
    assert!(
        model["created_at"].as_str().unwrap().ends_with('Z'),
        "{model}"
    );
}
