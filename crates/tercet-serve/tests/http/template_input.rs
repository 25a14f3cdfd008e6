//! Conversations for chat templates that do not take them as clients send them.

use serde_json::{Value, json};

use crate::server::{Running, data};
use crate::tools::server_of;

/// A template that takes a system message at the start, ids with nine characters, and tools with a description.
const STRICT: &str = "{% for tool in tools or [] %}{{ tool.function.name + tool.function.description }} \
{{ tool.function.parameters.properties | length }}\n{% endfor %}{% for m in messages %}{% if m.role == 'system' %}\
{% if not loop.first %}{{ raise_exception('system first') }}{% endif %}S:{{ m.content }}\n\
{% elif m.role == 'user' %}U:{{ m.content }}\n{% elif m.role == 'assistant' %}A:{{ m.content }}\n\
{% for call in m.tool_calls %}{% if call.id | length != 9 %}{{ raise_exception('nine letters') }}{% endif %}\
C:{{ call.id }} {{ call.function.arguments | tojson }}\n{% endfor %}\
{% elif m.role == 'tool' %}R:{{ m.tool_call_id }} {{ m.content }}\n{% endif %}{% endfor %}";
/// A template that leaves out messages of other roles than the first, and reads thoughts before calls.
const SILENT: &str = "{% for m in messages %}{% if m.role == 'system' and loop.first %}S:{{ m.content }}\n\
{% elif m.role == 'user' %}U:{{ m.content }}\n{% elif m.role == 'assistant' %}\
{% if m.content and m.thinking %}{{ raise_exception('both') }}{% endif %}A:{{ m.thinking }}{{ m.content }}\n\
{% endif %}{% endfor %}";
/// A template that opens a thought. DeepSeek's variable turns it off.
const OPEN: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}\
{% if thinking is defined and not thinking %}</think>{% else %}<think>\n{% endif %}";

fn server(name: &str) -> Running {
    let scratch = std::env::temp_dir().join(format!("tercet-input-{name}-{}", std::process::id()));
    let templates = [("strict", STRICT), ("silent", SILENT), ("open", OPEN)];
    server_of(&scratch, &templates)
}

fn answered(server: &Running, path: &str, body: &Value) -> Value {
    let answer = server.post(path, body);
    assert_eq!(answer.status, 200, "{body}: {}", answer.text());
    answer.json()
}

/// The prompt of a conversation.
fn shown(server: &Running, model: &str, messages: &Value, tools: &Value) -> String {
    let body = json!({"model": model, "messages": messages, "tools": tools});
    let answer = server.post("/apply-template", &body);
    assert_eq!(answer.status, 200, "{messages}: {}", answer.text());
    answer.json()["prompt"].as_str().unwrap().to_string()
}

#[test]
fn instructions_of_every_role_reach_the_model() {
    let server = server("roles");
    let message = |role: &str, content: &str| json!({"role": role, "content": content});
    let (system, developer) = (message("system", "sys"), message("developer", "dev"));
    let (user, answer) = (message("user", "hi"), message("assistant", "ho"));
    let parts = json!({"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]});
    for (messages, expected) in [
        (json!([developer, user]), "S:dev\nU:hi\n"),
        (json!([system, developer, user]), "S:sys\n\ndev\nU:hi\n"),
        (
            json!([system, message("system", "more"), user]),
            "S:sys\n\nmore\nU:hi\n",
        ),
        (
            json!([user, answer, developer, user]),
            "U:hi\nA:ho\nU:dev\n\nhi\n",
        ),
        (json!([user, answer, system]), "U:hi\nA:ho\nU:sys\n"),
        (json!([system, user, answer]), "S:sys\nU:hi\nA:ho\n"),
        (json!([parts]), "U:one\ntwo\n"),
    ] {
        for model in ["strict", "silent"] {
            assert_eq!(
                shown(&server, model, &messages, &json!([])),
                expected,
                "{model}"
            );
        }
    }
}

#[test]
fn instructions_of_responses_and_their_input_reach_the_model() {
    let server = server("instructions");
    let count = |body: Value| {
        let mut body = body;
        body["model"] = "silent".into();
        body["max_output_tokens"] = 1.into();
        answered(&server, "/v1/responses", &body)["usage"]["input_tokens"].clone()
    };
    let user = json!({"role": "user", "content": "hi"});
    let developer = json!({"role": "developer", "content": "dev"});
    let both = count(json!({"instructions": "sys", "input": [developer, user]}));
    let system = json!({"role": "system", "content": "sys\n\ndev"});
    assert_eq!(both, count(json!({"input": [system, user]})));
    assert_ne!(both, count(json!({"input": [user]})));
}

#[test]
fn calls_are_shown_as_the_template_takes_them() {
    let server = server("calls");
    let function = |arguments: &Value| json!({"name": "f", "arguments": arguments});
    let calls = |arguments: &Value| {
        json!([{"role": "user", "content": "x"},
        {"role": "assistant", "content": null, "tool_calls": [
            {"id": "call_0123456789abcdef", "type": "function", "function": function(arguments)}]},
        {"role": "tool", "tool_call_id": "call_0123456789abcdef", "content": "y"}])
    };
    for (arguments, expected) in [
        (json!("{\"a\": 1}"), r#"{"a": 1}"#),
        (json!("{\"a\": \"b"), r#"{"arguments": "{\"a\": \"b"}"#),
        (json!("[1]"), r#"{"arguments": "[1]"}"#),
        (json!("\"{\\\"a\\\": 1}\""), r#"{"a": 1}"#),
        (json!("null"), "{}"),
        (json!(""), "{}"),
        (json!({"a": 1}), r#"{"a": 1}"#),
    ] {
        let prompt = shown(&server, "strict", &calls(&arguments), &json!([]));
        let lines: Vec<&str> = prompt.lines().collect();
        let (id, given) = lines[2]
            .strip_prefix("C:")
            .unwrap()
            .split_once(' ')
            .unwrap();
        assert_eq!(id.len(), 9, "{prompt}");
        assert_eq!(lines[3], format!("R:{id} y"), "{prompt}");
        assert_eq!(given, expected, "{arguments}");
    }
    // An id that the template takes stays.
    let text = calls(&json!("{}"))
        .to_string()
        .replace("call_0123456789abcdef", "abc123DEF");
    let prompt = shown(
        &server,
        "strict",
        &serde_json::from_str(&text).unwrap(),
        &json!([]),
    );
    assert!(prompt.contains("C:abc123DEF {}\nR:abc123DEF y"), "{prompt}");
}

#[test]
fn tools_need_neither_description_nor_parameters() {
    let server = server("fields");
    let messages = json!([{"role": "user", "content": "x"}]);
    let tool = |function: Value| json!([{"type": "function", "function": function}]);
    for function in [
        json!({"name": "f"}),
        json!({"name": "f", "description": null, "parameters": {}}),
        json!({"name": "f", "parameters": {"type": "object"}}),
    ] {
        let prompt = shown(&server, "strict", &messages, &tool(function));
        assert_eq!(prompt, "f 0\nU:x\n");
    }
}

#[test]
fn thoughts_are_in_the_field_of_the_template() {
    let server = server("thoughts");
    let messages = |content: Value| {
        json!([{"role": "user", "content": "x"},
        {"role": "assistant", "content": content, "reasoning_content": "hm", "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}])
    };
    let show = |content: Value| shown(&server, "silent", &messages(content), &json!([]));
    assert_eq!(show(Value::Null), "U:x\nA:hm\n");
    assert_eq!(show(json!("so")), "U:x\nA:so\n");
}

#[test]
fn constrained_answers_follow_an_open_thought() {
    let server = server("open");
    let body = |more: Value| {
        let mut body = json!({"model": "open", "messages": [{"role": "user", "content": "x"}], "max_tokens": 60,
            "thinking_budget": 5, "response_format": {"type": "json_schema", "json_schema": {
                "schema": {"type": "object", "properties": {"n": {"const": 3}}, "required": ["n"],
                    "additionalProperties": false}}}});
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        answered(&server, "/v1/chat/completions", &body)["choices"][0].clone()
    };
    let choice = body(json!({}));
    let message = &choice["message"];
    let content: Value = serde_json::from_str(message["content"].as_str().unwrap()).unwrap();
    assert_eq!(content, json!({"n": 3}));
    assert!(!message["reasoning_content"].as_str().unwrap().is_empty());
    assert_eq!(choice["finish_reason"], "stop");
    // Without a thought, the answer is constrained from the first token.
    for off in [
        json!({"enable_thinking": false}),
        json!({"thinking": {"type": "disabled"}}),
    ] {
        let choice = body(off);
        let message = &choice["message"];
        assert!(message["reasoning_content"].is_null(), "{message}");
        assert!(
            message["content"].as_str().unwrap().starts_with('{'),
            "{message}"
        );
    }
}

#[test]
fn errors_name_the_place_in_the_conversation() {
    let server = server("errors");
    let user = json!({"role": "user", "content": "x"});
    let call = json!({"id": "a", "type": "function", "function": {"arguments": "{}"}});
    for (more, path) in [
        (
            json!({"messages": [user, {"role": "user"}]}),
            "messages[1].content",
        ),
        (
            json!({"messages": [user, {"role": "user", "content": [{"text": "a"}]}]}),
            "messages[1].content[0].type",
        ),
        (
            json!({"messages": [user, {"role": "assistant", "tool_calls": [call]}]}),
            "messages[1].tool_calls[0].function.name",
        ),
        (
            json!({"messages": [user], "tools": [{"type": "function", "function": {"name": "a b"}}]}),
            "tools[0].function.name",
        ),
        (
            json!({"messages": [user], "tools": [], "tool_choice": {"type": "x"}}),
            "tool_choice.type",
        ),
    ] {
        let mut body = json!({"model": "silent"});
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let answer = server.post("/v1/chat/completions", &body);
        assert_eq!(answer.status, 400, "{more}");
        assert_eq!(answer.json()["error"]["param"], path, "{more}");
    }
    // Clients look for these words, and shorten the conversation.
    let long =
        json!({"model": "silent", "messages": [{"role": "user", "content": "a ".repeat(2000)}]});
    let error = server.post("/v1/chat/completions", &long).error();
    for words in [
        "prompt is too long",
        "this model's maximum context length is",
    ] {
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn an_unknown_route_names_the_near_one() {
    let server = server("routes");
    for (path, near) in [
        ("/chat/completions", "use /v1/chat/completions"),
        ("/v1/chat/completions/", "use /v1/chat/completions"),
        ("/completion", "GET / lists"),
    ] {
        let answer = server.post(path, &json!({}));
        assert_eq!(answer.status, 404, "{path}");
        assert!(answer.error().contains(near), "{path}: {}", answer.error());
    }
}

#[test]
fn a_format_and_tools_go_together_for_calls_of_tags() {
    let scratch = std::env::temp_dir().join(format!("tercet-tags-{}", std::process::id()));
    let template = std::fs::read_to_string(data("chat-templates/published/qwen3-coder.jinja"));
    let server = server_of(&scratch, &[("coder", &template.unwrap())]);
    let schema = json!({"type": "object", "properties": {"n": {"const": 3}}, "required": ["n"],
        "additionalProperties": false});
    let format = json!({"type": "json_schema", "json_schema": {"schema": schema}});
    let tool = json!({"type": "function", "function": {"name": "get", "description": "d",
        "parameters": {"type": "object", "properties": {"city": {"type": "integer", "enum": [4]}}, "required": ["city"]}}});
    let mut kinds = [0; 2];
    for seed in 0..24 {
        let body = json!({"model": "coder", "messages": [{"role": "user", "content": "x"}], "tools": [tool],
            "response_format": format, "max_tokens": 120, "seed": seed, "temperature": 1.5,
            "parallel_tool_calls": false});
        let choice = answered(&server, "/v1/chat/completions", &body)["choices"][0].clone();
        let message = &choice["message"];
        match message["tool_calls"][0]["function"]["arguments"].as_str() {
            Some(arguments) => {
                assert_eq!(arguments, "{\"city\":4}", "{message}");
                kinds[0] += 1;
            }
            // White space may fill the answer.
            None if choice["finish_reason"] == "length" => {}
            None => {
                let content = message["content"].as_str().unwrap();
                assert_eq!(
                    serde_json::from_str::<Value>(content).ok(),
                    Some(json!({"n": 3})),
                    "{choice}"
                );
                kinds[1] += 1;
            }
        }
    }
    assert!(kinds.iter().sum::<usize>() > 0, "{kinds:?}");
}
