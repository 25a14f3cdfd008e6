//! Tool calls, with chat templates written for these tests.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use tercet_serve::ServeOptions;

use crate::server::{Answer, MODEL, Running, data, shared, start_paths};

/// The format of Hermes and Qwen.
pub(crate) const TAGGED: &str = "{% if tools %}{% for tool in tools %}{{ tool | tojson }}{% endfor %} as     <tool_call>{\"name\": , \"arguments\": }</tool_call>{% endif %}{% for m in messages %}{{ m.role }}:     {{ m.content }}{% if m.tool_calls %}{% for call in m.tool_calls %}<tool_call>{{ call.function.name }}\
    ({{ call.function.arguments.kind }}){% endfor %}{% endif %}\n{% endfor %}";
/// The format of Llama 3.
const OBJECT: &str = "{% if tools %}{{ tools | tojson }} as {\"name\": name, \"parameters\":     dictionary}{% endif %}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}";
/// A template that ignores tools.
const DEAF: &str = "{# <tool_call> #}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}\
     {{ extra }}{{ reasoning_effort }}{% if enable_thinking is defined and not enable_thinking %}off{% endif %}";

/// A template of a model that writes arguments as literals.
const LITERAL: &str = "{# <|tool_call_start|> #}{{ tools | tojson }}{% for m in messages %}{{ m.content }}{% endfor %}";

/// A server of the tiny model with these templates: `tagged`, `object`, `deaf`, `literal`.
pub(crate) fn server() -> Running {
    // Several tests of one process run in parallel.
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let (process, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let scratch = std::env::temp_dir().join(format!("tercet-tools-{process}-{count}"));
    let templates = [
        ("tagged", TAGGED),
        ("object", OBJECT),
        ("deaf", DEAF),
        ("literal", LITERAL),
    ];
    server_of(&scratch, &templates)
}

/// A server of the tiny model with named templates.
pub(crate) fn server_of(scratch: &Path, templates: &[(&str, &str)]) -> Running {
    let paths = templates.iter().map(|(name, template)| {
        let folder = scratch.join(name);
        std::fs::create_dir_all(&folder).unwrap();
        for file in ["config.json", "model.safetensors", "tokenizer.json"] {
            let from = data(&format!("tiny-rust-llama/{file}"));
            std::fs::copy(from, folder.join(file)).unwrap();
        }
        let config = json!({"chat_template": template}).to_string();
        std::fs::write(folder.join("tokenizer_config.json"), config).unwrap();
        folder.to_str().unwrap().to_string()
    });
    let options = ServeOptions {
        slots: 2,
        ..ServeOptions::default()
    };
    let paths: Vec<String> = paths.collect();
    let running = start_paths(&paths, options);
    std::fs::remove_dir_all(scratch).unwrap();
    running
}

pub(crate) fn tools() -> Value {
    json!([
        {"type": "function", "function": {
            "name": "kind", "description": "A kind.", "strict": false,
            "parameters": {
                "type": "object", "properties": {"kind": {"$ref": "#/$defs/kind"}}, "required": ["kind"],
                "additionalProperties": false, "$defs": {"kind": {"enum": ["move", "copy"]}},
            },
        }},
        {"type": "function", "function": {"name": "now"}},
    ])
}

fn ask(server: &Running, more: &Value) -> Answer {
    let mut request = json!({
        "messages": [{"role": "user", "content": "Go"}], "tools": tools(), "temperature": 0, "max_tokens": 90,
    });
    let more = more.as_object().unwrap().clone();
    request.as_object_mut().unwrap().extend(more);
    server.post("/v1/chat/completions", &request)
}

/// The tool calls of a stream's deltas, put together.
fn streamed(deltas: &[Value]) -> Vec<(String, Value)> {
    let mut all: Vec<Value> = Vec::new();
    for part in deltas
        .iter()
        .filter_map(|delta| delta["tool_calls"].as_array())
    {
        // Clients read only the first entry.
        assert_eq!(part.len(), 1, "{part:?}");
        for part in part {
            let index = usize::try_from(part["index"].as_u64().unwrap()).unwrap();
            if part["id"].is_string() {
                assert_eq!(index, all.len());
                all.push(part.clone());
                continue;
            }
            let whole = &mut all[index]["function"]["arguments"];
            let more = part["function"]["arguments"].as_str().unwrap();
            *whole = json!(format!("{}{more}", whole.as_str().unwrap()));
        }
    }
    match all.is_empty() {
        true => Vec::new(),
        false => calls(&json!({"tool_calls": all})),
    }
}

/// The tool calls of a choice, checked against the tools.
fn calls(message: &Value) -> Vec<(String, Value)> {
    let all = message["tool_calls"].as_array().unwrap().iter();
    let call = |call: &Value| {
        assert_eq!(call["type"], "function");
        assert!(call["id"].as_str().unwrap().starts_with("call_"));
        let function = &call["function"];
        let arguments = serde_json::from_str(function["arguments"].as_str().unwrap()).unwrap();
        (function["name"].as_str().unwrap().to_string(), arguments)
    };
    all.map(call).collect()
}

fn check(calls: &[(String, Value)]) {
    assert_eq!(calls.len(), 1, "{calls:?}");
    let (name, arguments) = &calls[0];
    match name.as_str() {
        "now" => assert_eq!(arguments, &json!({})),
        "kind" => assert!(
            ["move", "copy"].contains(&arguments["kind"].as_str().unwrap())
                && arguments.as_object().unwrap().len() == 1
        ),
        other => panic!("{other}"),
    }
}

#[test]
fn what_has_to_be_called_is_called() {
    let server = server();
    for model in ["tagged", "object"] {
        let named = |name: &str| json!({"type": "function", "function": {"name": name}});
        for (choice, name) in [
            (json!("required"), None),
            (named("kind"), Some("kind")),
            (named("now"), Some("now")),
        ] {
            let more = json!({"model": model, "tool_choice": choice});
            let answer = ask(&server, &more);
            assert_eq!(answer.status, 200, "{}", answer.text());
            let one = &answer.json()["choices"][0];
            assert_eq!(one["finish_reason"], "tool_calls", "{one}");
            assert!(one["message"]["content"].is_null());
            let whole = calls(&one["message"]);
            check(&whole);
            assert!(name.is_none_or(|name| whole[0].0 == name), "{whole:?}");

            let mut more = more;
            more["stream"] = json!(true);
            let stream = crate::server::events(&ask(&server, &more).text());
            let deltas = stream.iter().map(|e| e["choices"][0]["delta"].clone());
            let deltas: Vec<Value> = deltas.collect();
            assert_eq!(streamed(&deltas), whole);
            // The arguments arrive as they are written.
            let parts = deltas.iter().filter(|d| d["tool_calls"].is_array()).count();
            assert!(parts > 1 || whole[0].0 == "now", "{deltas:?}");
            let said = stream
                .iter()
                .filter_map(|e| e["choices"][0]["delta"]["content"].as_str());
            assert_eq!(said.collect::<String>(), "");
            assert_eq!(
                stream.last().unwrap()["choices"][0]["finish_reason"],
                "tool_calls"
            );
        }
    }
    // An incomplete call stays text.
    let short = json!({"model": "tagged", "tool_choice": "required", "max_tokens": 3});
    let short = ask(&server, &short).json();
    let one = &short["choices"][0];
    assert_eq!(one["finish_reason"], "length");
    assert!(one["message"]["tool_calls"].is_null() && one["message"]["content"].is_string());
    check_others(&server);
}

fn check_others(server: &Running) {
    // The response format makes the answer look like a call; the tool choice is automatic.
    let schema = json!({"const": {"name": "now", "parameters": {}}});
    let format = json!({"type": "json_schema", "json_schema": {"schema": schema}});
    let auto = json!({"model": "object", "response_format": format});
    let auto = ask(server, &auto).json();
    assert_eq!(
        calls(&auto["choices"][0]["message"]),
        [("now".to_string(), json!({}))]
    );
    // With the tool choice `none`, the same text is not parsed as a call.
    let none = json!({"model": "object", "response_format": format, "tool_choice": "none"});
    let none = ask(server, &none).json();
    let message = &none["choices"][0]["message"];
    assert!(message["tool_calls"].is_null());
    assert!(message["content"].as_str().unwrap().contains("now"));

    // A conversation that continues after a call. Templates get arguments as objects.
    let messages = json!([
        {"role": "user", "content": "Go"},
        {"role": "assistant", "content": null, "tool_calls": [
            {"id": "call_1", "type": "function", "index": 0, "extra_content": {}, "function":
                {"name": "kind", "arguments": "{\"kind\": \"copy\"}", "parsed_arguments": {"kind": "copy"}}},
        ]},
        {"role": "tool", "tool_call_id": "call_1", "content": "done"},
    ]);
    let tokens = |messages: &Value| {
        let more = json!({"model": "tagged", "messages": messages, "max_tokens": 1});
        let answer = ask(server, &more);
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()["usage"]["prompt_tokens"].as_u64().unwrap()
    };
    let plain = json!([
        {"role": "user", "content": "Go"},
        {"role": "assistant", "content": "<tool_call>kind(copy)"},
        {"role": "tool", "content": "done"},
    ]);
    assert_eq!(tokens(&messages), tokens(&plain));
}

#[test]
fn a_call_takes_precedence_over_a_response_format() {
    let server = server();
    let tokenizer = tercet_models::ModelFiles::open(data("tiny-rust-llama"));
    let tokenizer = tokenizer.unwrap().tokenizer().unwrap();
    // Bans the tokens that contain one of these characters.
    let banned = |chars: &[char]| {
        let ids = (0..tokenizer.vocab_len() as u32).filter(|id| {
            let bytes = tokenizer.bytes(*id).map(|(bytes, _)| bytes);
            bytes.is_some_and(|bytes| String::from_utf8_lossy(&bytes).contains(chars))
        });
        let biases = ids.map(|id| (id.to_string(), json!(-100)));
        Value::Object(biases.collect())
    };
    let now = json!([{"type": "function", "function": {"name": "now", "strict": true}}]);
    let format = json!({"type": "json_schema", "json_schema": {"schema": {"type": "integer"}}});
    let digits: Vec<char> = "0123456789-".chars().collect();
    let starts = ['<', '{'];
    for model in ["tagged", "object"] {
        for stream in [false, true] {
            let base = json!({"model": model, "tools": now, "response_format": format,
                "max_tokens": 300, "stream": stream});
            let of = |more: Value| {
                let mut request = base.clone();
                let more = more.as_object().unwrap().clone();
                request.as_object_mut().unwrap().extend(more);
                let answer = ask(&server, &request);
                assert_eq!(answer.status, 200, "{}", answer.text());
                match stream {
                    false => vec![answer.json()["choices"][0]["message"].clone()],
                    true => {
                        let events = crate::server::events(&answer.text());
                        events
                            .iter()
                            .map(|e| e["choices"][0]["delta"].clone())
                            .collect()
                    }
                }
            };
            let called = |parts: &[Value]| -> usize {
                match stream {
                    true => streamed(parts).len(),
                    false if parts[0]["tool_calls"].is_array() => calls(&parts[0]).len(),
                    false => 0,
                }
            };
            // Without digits, the answer can only be a call.
            let call = of(json!({"logit_bias": banned(&digits)}));
            assert!(called(&call) > 0, "{call:?}");
            // A call that is required.
            let required = of(json!({"tool_choice": "required"}));
            assert_eq!(called(&required), 1, "{required:?}");
            // Without the start of a call, it is a value of the schema.
            let value = of(json!({"logit_bias": banned(&starts), "max_tokens": 3}));
            assert_eq!(called(&value), 0, "{value:?}");
            let text: String = value.iter().filter_map(|v| v["content"].as_str()).collect();
            assert!(text.parse::<i64>().is_ok(), "{text}");
        }
    }
}

/// What OpenAI's client sends: tools are strict, and the model decides whether to call one.
#[test]
fn strict_tools_with_an_automatic_choice() {
    let server = server();
    let strict = json!([{"type": "function", "function": {"name": "now", "strict": true}}]);
    for choice in [json!("auto"), Value::Null] {
        let more =
            json!({"model": "tagged", "tools": strict, "tool_choice": choice, "max_tokens": 8});
        let answer = ask(&server, &more);
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    // It is an error if the calls of the model cannot be constrained, or another grammar does it.
    let listed = json!({"type": "object", "properties": {"a": {"enum": [[1]]}}});
    let function = json!({"name": "now", "strict": true, "parameters": listed});
    let listed = json!([{"type": "function", "function": function}]);
    let cases = [
        (
            json!({"model": "literal", "tools": listed}),
            "cannot be `strict` with this model",
        ),
        (
            json!({"model": "tagged", "tools": strict, "grammar": "start: \"a\""}),
            "`strict` tools",
        ),
    ];
    for (more, part) in cases {
        let answer = ask(&server, &more);
        assert_eq!(answer.status, 400, "{}", answer.text());
        assert!(answer.error().contains(part), "{}", answer.error());
    }
    // Arguments that are literals are constrained, too.
    for stream in [false, true] {
        let more = json!({"model": "literal", "tool_choice": "required", "stream": stream, "max_tokens": 200});
        let answer = ask(&server, &more);
        assert_eq!(answer.status, 200, "{}", answer.text());
        if !stream {
            check(&calls(&answer.json()["choices"][0]["message"]));
        }
    }
    let free = json!({"model": "literal", "tools": strict, "max_tokens": 1});
    assert_eq!(ask(&server, &free).status, 200);
}

/// Numbers above 2^53 in the schema of a tool, and of an answer.
/// A model that would write digits until the context is full.
#[test]
fn integers_of_required_calls_have_an_end() {
    let server = server();
    let ids = server.post("/tokenize", &json!({"model": "tagged", "content": "7"}));
    let ids = ids.json()["tokens"].clone();
    let id = ids.as_array().unwrap().last().unwrap().to_string();
    let integer = json!({"type": "integer"});
    let function = json!({"name": "add", "parameters": {
        "type": "object", "properties": {"a": integer, "b": integer}, "required": ["a", "b"],
        "additionalProperties": false,
    }});
    let answer = ask(
        &server,
        &json!({
            "model": "tagged", "tools": [{"type": "function", "function": function}],
            "tool_choice": "required", "logit_bias": {id.as_str(): 60}, "max_tokens": 200,
        }),
    );
    assert_eq!(answer.status, 200, "{}", answer.text());
    let answer = answer.json();
    let calls = calls(&answer["choices"][0]["message"]);
    for name in ["a", "b"] {
        let number = calls[0].1[name].as_i64().map(|x| x.to_string());
        assert!(number.is_some_and(|x| x.ends_with("777")), "{answer}");
    }
}

#[test]
fn large_numbers_of_schemas_are_exact() {
    let server = server();
    let least = (1i64 << 53) + 1;
    let schema = json!({"type": "integer", "minimum": least, "maximum": least + 2});
    let in_range = |text: &str| (least..=least + 2).contains(&text.parse::<i64>().unwrap());
    let format = json!({"type": "json_schema", "json_schema": {"schema": schema}});
    let more = json!({"model": "tagged", "tools": [], "response_format": format});
    let answer = ask(&server, &more).json();
    let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(in_range(text), "{text}");
    let parameters = json!({"type": "object", "properties": {"id": schema}, "required": ["id"],
        "additionalProperties": false});
    let tool = json!({"type": "function", "function": {"name": "get", "parameters": parameters}});
    let more = json!({"model": "tagged", "tools": [tool], "tool_choice": "required"});
    let answer = ask(&server, &more).json();
    let (_, arguments) = &calls(&answer["choices"][0]["message"])[0];
    assert!(in_range(&arguments["id"].to_string()), "{arguments}");
}

#[test]
fn tools_that_are_refused() {
    let server = server();
    let tool = |name: &str| json!({"type": "function", "function": {"name": name}});
    let message = |more: Value| {
        let mut message = json!({"role": "assistant", "content": null});
        message
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        json!({"messages": [message]})
    };
    let call = |function: Value| {
        message(json!({"tool_calls": [{"id": "1", "type": "function", "function": function}]}))
    };
    let cases = [
        (json!({"tools": {}}), "tools"),
        (json!({"tools": [{"type": "retrieval"}]}), "retrieval"),
        (json!({"tools": [tool("a b")]}), "a b"),
        (json!({"tools": [tool("a"), tool("a")]}), "two of `tools`"),
        (
            json!({"tools": [{"type": "function", "function": {"name": "a", "parameters": 1}}]}),
            "parameters",
        ),
        (
            json!({"tools": [{"type": "function", "function": {"name": "a", "parameters": {"type": "nonsense"}}}], "tool_choice": "required"}),
            "`parameters` of the tool `a`: at `/type`",
        ),
        (json!({"tools": vec![tool("a"); 1025]}), "1025"),
        (
            json!({"tools": [], "tool_choice": "required"}),
            "requires `tools`",
        ),
        (json!({"tool_choice": "some"}), "tool_choice"),
        (
            json!({"tool_choice": {"type": "function", "function": {"name": "none"}}}),
            "`none`",
        ),
        (
            json!({"tool_choice": "required", "grammar": "start: \"a\""}),
            "grammar",
        ),
        (message(json!({})), "content"),
        (message(json!({"tool_calls": 1})), "tool_calls"),
        (
            call(json!({"name": "kind", "arguments": 1})),
            "messages[0].tool_calls[0].function.arguments",
        ),
        (call(json!({"arguments": "{}"})), "name"),
        (
            json!({"messages": [{"role": "user", "content": "x", "tool_calls": [1]}]}),
            "tool_calls",
        ),
    ];
    for (more, named) in cases {
        let mut all = json!({"model": "tagged"});
        all.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let answer = ask(&server, &all);
        assert_eq!(answer.status, 400, "{more:.200}: {}", answer.text());
        assert!(
            answer.error().contains(named),
            "{more:.200}: {}",
            answer.error()
        );
    }
}

#[test]
fn tools_of_a_model_without_a_template() {
    // A system prompt shows the tools, also for a template that ignores them.
    let server = server();
    for model in ["deaf", "tagged"] {
        let required = json!({"model": model, "tool_choice": "required"});
        let answer = ask(&server, &required);
        assert_eq!(answer.status, 200, "{}", answer.text());
        let answer = answer.json();
        check(&calls(&answer["choices"][0]["message"]));
        let prompt = answer["usage"]["prompt_tokens"].as_u64().unwrap();
        let without = ask(
            &server,
            &json!({"model": model, "tools": [], "max_tokens": 1}),
        );
        let without = without.json()["usage"]["prompt_tokens"].as_u64().unwrap();
        assert!(prompt > without + 50, "{model}: {prompt} and {without}");
    }
    let nothing = json!({"model": MODEL, "tools": [], "tool_choice": "auto", "parallel_tool_calls": true, "max_tokens": 1});
    assert_eq!(ask(&shared(), &nothing).status, 200);
    let old = ask(
        &shared(),
        &json!({"model": MODEL, "tools": [], "functions": [{"name": "a"}]}),
    );
    assert_eq!(old.status, 400);
    assert!(old.error().contains("functions"), "{}", old.error());
}

/// Thoughts are no part of the content.
#[test]
fn thoughts_are_apart_from_the_content() {
    let server = server();
    let grammar = "start: \"<think>\\nBecause.\\n</think>\\n\\nYes.\"";
    for stream in [false, true] {
        let more = json!({"model": "tagged", "tools": [], "grammar": grammar, "stream": stream,
            "stream_options": {"include_usage": true}});
        let answer = ask(&server, &more);
        assert_eq!(answer.status, 200, "{}", answer.text());
        let usage = match stream {
            false => answer.json()["usage"].clone(),
            true => {
                let events = crate::server::events(&answer.text());
                events.last().unwrap()["usage"].clone()
            }
        };
        let thoughts = usage["completion_tokens_details"]["reasoning_tokens"].as_u64();
        let written = usage["completion_tokens"].as_u64();
        assert!(thoughts > Some(0) && thoughts < written, "{usage}");
        let parts: Vec<Value> = match stream {
            false => vec![answer.json()["choices"][0]["message"].clone()],
            true => {
                let events = crate::server::events(&answer.text());
                let deltas = events.iter().map(|e| e["choices"][0]["delta"].clone());
                deltas.collect()
            }
        };
        let all = |key: &str| -> String { parts.iter().filter_map(|p| p[key].as_str()).collect() };
        assert_eq!(all("reasoning_content"), "Because.");
        assert_eq!(all("reasoning"), "Because.");
        assert_eq!(all("content"), "Yes.");
    }
}

/// Variables of the chat template by request.
#[test]
fn variables_of_the_template() {
    let server = server();
    let tokens = |more: Value| {
        let mut all = json!({"model": "deaf", "tools": [], "max_tokens": 1});
        let more = more.as_object().unwrap().clone();
        all.as_object_mut().unwrap().extend(more);
        let answer = ask(&server, &all);
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()["usage"]["prompt_tokens"].as_u64().unwrap()
    };
    let plain = tokens(json!({}));
    assert!(tokens(json!({"chat_template_kwargs": {"extra": "a long extra text"}})) > plain);
    assert!(tokens(json!({"reasoning_effort": "high"})) > plain);
    assert!(tokens(json!({"enable_thinking": false})) > plain);
    assert_eq!(
        tokens(json!({"enable_thinking": false})),
        tokens(
            json!({"reasoning_effort": "none", "chat_template_kwargs": {"reasoning_effort": ""}})
        )
    );
    let wrong = ask(
        &server,
        &json!({"model": "deaf", "chat_template_kwargs": 1}),
    );
    assert_eq!(wrong.status, 400);
}

/// Thoughts end at their limit, and text follows them.
#[test]
fn thoughts_have_a_budget() {
    let server = crate::server::start_only(ServeOptions {
        slots: 2,
        chat_template: Some("{% for m in messages %}{{ m.content }}{% endfor %}<think>\n".into()),
        ..ServeOptions::default()
    });
    let messages = json!([{"role": "user", "content": "Go"}]);
    let of = |more: Value| {
        let mut body =
            json!({"messages": messages, "temperature": 0, "max_tokens": 30, "ignore_eos": true});
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        body
    };
    let chat = |more: Value| {
        let answer = server.post("/v1/chat/completions", &of(more));
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()
    };
    let free = chat(json!({}));
    let thought = free["choices"][0]["message"]["reasoning_content"]
        .as_str()
        .unwrap()
        .to_string();
    assert_eq!(free["choices"][0]["message"]["content"], "");
    let mut lengths = Vec::new();
    for budget in [0, 4, 9] {
        let limited = chat(json!({"thinking_budget": budget}));
        let message = &limited["choices"][0]["message"];
        let begun = message["reasoning_content"].as_str().unwrap_or("");
        assert!(thought.starts_with(begun), "{begun} of {thought}");
        assert!(
            !message["content"].as_str().unwrap().is_empty(),
            "{message}"
        );
        assert_eq!(limited["usage"]["completion_tokens"], 30);
        lengths.push(begun.len());
    }
    assert!(
        lengths[0] == 0 && lengths[1] > 0 && lengths[2] > lengths[1],
        "{lengths:?}"
    );
    // No limit, or one that is not reached.
    for budget in [-1, 1000] {
        assert_eq!(
            chat(json!({"reasoning_budget": budget}))["choices"][0]["message"]["content"],
            ""
        );
    }
    let thinking = json!({"thinking": {"type": "enabled", "budget_tokens": 4}});
    let answer = server.post("/v1/messages", &of(thinking)).json();
    let kinds: Vec<&str> = answer["content"]
        .as_array()
        .unwrap()
        .iter()
        .map(|b| b["type"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["thinking", "text"], "{answer}");
    assert_eq!(
        answer["content"][0]["thinking"].as_str().unwrap().len(),
        lengths[1]
    );
    let wrong = server.post(
        "/v1/chat/completions",
        &of(json!({"thinking_budget": "all"})),
    );
    assert_eq!(wrong.status, 400);
}
