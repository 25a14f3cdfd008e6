//! OpenAI's Responses API, compared with chat completions of the same conversation.

use serde_json::{Value, json};

use crate::server::{Answer, Running, named_events, shared};
use crate::tools;

fn ask(server: &Running, more: Value) -> Answer {
    let mut request =
        json!({"model": "tagged", "temperature": 0, "max_output_tokens": 90, "input": "Go"});
    let more = more.as_object().unwrap().clone();
    request.as_object_mut().unwrap().extend(more);
    server.post("/v1/responses", &request)
}

/// A response with status 200.
fn answered(server: &Running, more: Value) -> Value {
    let answer = ask(server, more.clone());
    assert_eq!(answer.status, 200, "{more}: {}", answer.text());
    answer.json()
}

/// The events of a stream. The numbers count up, and the types in the lines are those of the data.
fn streamed(server: &Running, mut more: Value) -> Vec<Value> {
    more["stream"] = json!(true);
    let answer = ask(server, more);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let events = named_events(&answer.text());
    for (at, (name, event)) in events.iter().enumerate() {
        assert_eq!(
            (&event["type"], &event["sequence_number"]),
            (&json!(name), &json!(at))
        );
    }
    events.into_iter().map(|(_, event)| event).collect()
}

/// An output without its ids, which are new in each response.
fn without_ids(output: &Value) -> Value {
    let mut output = output.clone();
    for item in output.as_array_mut().unwrap() {
        for name in ["id", "call_id"] {
            item.as_object_mut().unwrap().remove(name);
        }
    }
    output
}

fn types(events: &[Value]) -> Vec<&str> {
    let mut types: Vec<&str> = events.iter().map(|e| e["type"].as_str().unwrap()).collect();
    types.dedup();
    types
}

/// Function tools in the format of this API.
fn functions() -> Value {
    let tools = tools::tools();
    let flat = tools.as_array().unwrap().iter().map(|tool| {
        let mut function = tool["function"].clone();
        function["type"] = json!("function");
        function
    });
    flat.collect()
}

#[test]
fn a_text_is_that_of_chat_completions() {
    let server = shared();
    let model = crate::server::MODEL;
    let chat = |messages: Value| {
        let body =
            json!({"model": model, "temperature": 0, "max_tokens": 20, "messages": messages});
        server.post("/v1/chat/completions", &body).json()
    };
    let of = |more: Value| {
        let mut more = more;
        more["model"] = json!(model);
        more["max_output_tokens"] = json!(20);
        more
    };
    let system = json!({"role": "system", "content": "Be brief."});
    let user = json!({"role": "user", "content": "What is a trait?"});
    let parts = json!([{"type": "input_text", "text": "What is"}, {"type": "input_text", "text": "a trait?"}]);
    let inputs = [
        (json!({"input": "What is a trait?"}), json!([user])),
        (
            json!({"input": "What is a trait?", "instructions": "Be brief."}),
            json!([system, user]),
        ),
        (
            json!({"input": [system, {"type": "message", "role": "user", "content": parts}]}),
            json!([system, {"role": "user", "content": "What is\na trait?"}]),
        ),
        (
            json!({"input": [
                user,
                {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": null},
                {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": [
                    {"type": "output_text", "text": "A set.", "annotations": [], "logprobs": []}]},
                user,
            ]}),
            json!([user, {"role": "assistant", "content": "A set."}, user]),
        ),
    ];
    for (input, messages) in inputs {
        let expected = chat(messages);
        let text = &expected["choices"][0]["message"]["content"];
        let response = answered(&server, of(input.clone()));
        let message = &response["output"][0];
        assert_eq!(&message["content"][0]["text"], text, "{input}");
        assert_eq!(message["role"], "assistant");
        let (usage, counted) = (&response["usage"], &expected["usage"]);
        assert_eq!(usage["input_tokens"], counted["prompt_tokens"], "{input}");
        assert_eq!(usage["output_tokens"], counted["completion_tokens"]);
        assert_eq!(usage["output_tokens_details"]["reasoning_tokens"], 0);

        let events = streamed(&server, of(input));
        assert_eq!(
            types(&events)[..5],
            [
                "response.created",
                "response.in_progress",
                "response.output_item.added",
                "response.content_part.added",
                "response.output_text.delta",
            ]
        );
        let deltas = events
            .iter()
            .filter(|e| e["type"] == "response.output_text.delta");
        let deltas = deltas.map(|e| e["delta"].as_str().unwrap());
        assert_eq!(&json!(deltas.collect::<String>()), text);
        let last = &events.last().unwrap()["response"];
        assert_eq!(
            without_ids(&last["output"]),
            without_ids(&response["output"])
        );
        assert_eq!(
            (&last["status"], &last["usage"]),
            (&response["status"], usage)
        );
        let done = events
            .iter()
            .find(|e| e["type"] == "response.output_item.done");
        assert_eq!(done.unwrap()["item"], last["output"][0]);
    }
}

#[test]
fn a_text_that_is_cut_is_incomplete() {
    let server = shared();
    let model = crate::server::MODEL;
    let short = json!({"model": model, "max_output_tokens": 3, "ignore_eos": true});
    let response = answered(&server, short.clone());
    assert_eq!(response["status"], "incomplete");
    assert_eq!(
        response["incomplete_details"]["reason"],
        "max_output_tokens"
    );
    assert_eq!(response["output"][0]["status"], "incomplete");
    assert_eq!(
        (&response["store"], &response["previous_response_id"]),
        (&json!(false), &Value::Null)
    );
    let events = streamed(&server, short);
    assert_eq!(types(&events).last(), Some(&"response.incomplete"));
}

#[test]
fn thoughts_text_and_calls_are_items_in_order() {
    let server = tools::server();
    let call = "<tool_call>{\\\"name\\\": \\\"kind\\\", \\\"arguments\\\": {\\\"kind\\\": \\\"copy\\\"}}</tool_call>";
    let grammar = format!("start: \"<think>\\nBecause.\\n</think>\\n\\nYes.\\n{call}\"");
    let more = json!({"grammar": grammar, "tools": functions(), "reasoning": {"effort": "high", "summary": "auto"}});
    let response = answered(&server, more.clone());
    let output = response["output"].as_array().unwrap();
    let kinds: Vec<&str> = output
        .iter()
        .map(|item| item["type"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["reasoning", "message", "function_call"]);
    assert_eq!(
        output[0]["content"][0],
        json!({"type": "reasoning_text", "text": "Because."})
    );
    assert_eq!(
        output[1]["content"][0]["text"].as_str().unwrap().trim_end(),
        "Yes."
    );
    assert_eq!(output[2]["name"], "kind");
    let arguments: Value = serde_json::from_str(output[2]["arguments"].as_str().unwrap()).unwrap();
    assert_eq!(arguments, json!({"kind": "copy"}));
    assert!(
        response["usage"]["output_tokens_details"]["reasoning_tokens"]
            .as_u64()
            .unwrap()
            > 0
    );
    assert_eq!(response["reasoning"]["effort"], "high");

    let events = streamed(&server, more);
    let expected = [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.reasoning_text.delta",
        "response.reasoning_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ];
    assert_eq!(types(&events), expected);
    // Each event names the place of its item.
    let mut place = Value::Null;
    for event in &events[2..events.len() - 1] {
        if event["type"] == "response.output_item.added" {
            place = json!([event["output_index"], event["item"]["id"]]);
        }
        let id = event.get("item_id").unwrap_or(&event["item"]["id"]);
        assert_eq!(json!([event["output_index"], id]), place, "{event}");
    }
    assert_eq!(place[0], 2);
    let last = &events.last().unwrap()["response"];
    assert_eq!(
        without_ids(&last["output"]),
        without_ids(&response["output"])
    );
}

#[test]
fn calls_and_their_results_go_back() {
    let server = tools::server();
    let required =
        json!({"tools": functions(), "tool_choice": "required", "parallel_tool_calls": false});
    let response = answered(&server, required);
    let call = &response["output"][0];
    assert_eq!(
        (&call["type"], &call["status"]),
        (&json!("function_call"), &json!("completed"))
    );
    assert!(call["arguments"].is_string() && response["output"].as_array().unwrap().len() == 1);
    let named = json!({"tools": functions(), "tool_choice": {"type": "function", "name": "now"}});
    assert_eq!(answered(&server, named)["output"][0]["name"], "now");
    let allowed = json!({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "now"}]});
    let allowed = json!({"tools": functions(), "tool_choice": allowed});
    assert_eq!(answered(&server, allowed)["output"][0]["name"], "now");

    // The same conversation as chat completions have it.
    let arguments = "{\"kind\": \"copy\"}";
    let input = json!([
        {"role": "user", "content": "Go"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "function_call", "call_id": "c1", "name": "kind", "arguments": arguments, "status": "completed"},
        {"type": "function_call_output", "call_id": "c1", "output": "done"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "more"}]},
    ]);
    let function = json!({"name": "kind", "arguments": arguments});
    let messages = json!([
        {"role": "user", "content": "Go"},
        {"role": "assistant", "content": null, "reasoning_content": "hm", "tool_calls": [
            {"id": "c1", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "c1", "name": "kind", "content": "done"},
        {"role": "tool", "tool_call_id": "c2", "content": "more"},
    ]);
    // Templates see the tools of the request, without `strict`.
    let mut shown = tools::tools();
    let function = shown[0]["function"].as_object_mut().unwrap();
    function.remove("strict");
    for model in ["tagged", "deaf"] {
        let more =
            json!({"model": model, "input": input, "tools": functions(), "max_output_tokens": 1});
        let read = &answered(&server, more)["usage"]["input_tokens"];
        let body = json!({"model": model, "messages": messages, "tools": shown, "max_tokens": 1});
        let chat = server.post("/v1/chat/completions", &body).json();
        assert_eq!(read, &chat["usage"]["prompt_tokens"], "{model}");
    }
}

#[test]
fn answers_match_the_format() {
    let server = tools::server();
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer", "minimum": 3, "maximum": 4}},
        "required": ["n"], "additionalProperties": false});
    let format = json!({"type": "json_schema", "name": "n", "strict": true, "schema": schema});
    let response = answered(
        &server,
        json!({"text": {"format": format, "verbosity": "low"}}),
    );
    let text = response["output"][0]["content"][0]["text"]
        .as_str()
        .unwrap();
    let value: Value = serde_json::from_str(text).unwrap();
    assert!([3, 4].contains(&value["n"].as_u64().unwrap()), "{text}");
    assert_eq!(response["text"]["format"], format);
    let plain = json!({"text": {"format": {"type": "text"}}, "max_output_tokens": 1});
    assert_eq!(answered(&server, plain)["object"], "response");
}

#[test]
fn logprobs_of_a_text() {
    let server = shared();
    let more = json!({"model": crate::server::MODEL, "max_output_tokens": 4, "ignore_eos": true,
        "include": ["message.output_text.logprobs", "reasoning.encrypted_content"], "top_logprobs": 2});
    let response = answered(&server, more.clone());
    let scores = response["output"][0]["content"][0]["logprobs"].clone();
    assert_eq!(scores.as_array().unwrap().len(), 4);
    assert_eq!(scores[0]["top_logprobs"].as_array().unwrap().len(), 2);
    let events = streamed(&server, more);
    let deltas = events
        .iter()
        .filter_map(|e| match e["type"] == "response.output_text.delta" {
            true => e["logprobs"].as_array().cloned(),
            false => None,
        });
    assert_eq!(json!(deltas.flatten().collect::<Vec<_>>()), scores);
}

/// Checks that the requests are refused: each with the field and a part of the message.
fn check_refused(cases: &[(Value, &str, &str)]) {
    let server = tools::server();
    for (more, param, part) in cases {
        let answer = ask(&server, more.clone());
        assert_eq!(answer.status, 400, "{more}: {}", answer.text());
        let error = &answer.json()["error"];
        let message = error["message"].as_str().unwrap();
        assert!(
            message.contains(part) && message.contains(param),
            "{more}: {message}"
        );
        assert_eq!(&error["param"], param, "{more}");
    }
}

#[test]
fn items_that_are_refused_have_a_path() {
    check_refused(&[
        (json!({"input": null}), "input", "is missing"),
        (json!({"input": 3}), "input", "a text or a list of items"),
        (json!({"input": []}), "input", "0 items"),
        (json!({"input": [1]}), "input[0]", "an object"),
        (
            json!({"input": [{"type": "message", "role": "user"}]}),
            "input[0].content",
            "is missing",
        ),
        (
            json!({"input": [{"role": "owner", "content": "a"}]}),
            "input[0].role",
            "owner",
        ),
        (
            json!({"input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": 4}]}]}),
            "input[0].content[1].text",
            "is 4; expected a string",
        ),
        (
            json!({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}]}),
            "input[0].content[0].type",
            "the model reads text only",
        ),
        (
            json!({"input": [{"type": "function_call", "call_id": "a", "name": "b", "arguments": []}]}),
            "input[0].arguments",
            "a string",
        ),
        (
            json!({"input": [{"type": "item_reference", "id": "a"}]}),
            "input[0]",
            "not stored",
        ),
        (
            json!({"input": [{"type": "computer_call"}]}),
            "input[0].type",
            "computer_call",
        ),
    ]);
}

#[test]
fn fields_that_are_refused_are_named() {
    check_refused(&[
        (
            json!({"previous_response_id": "resp_1"}),
            "previous_response_id",
            "not stored",
        ),
        (
            json!({"conversation": "conv_1"}),
            "conversation",
            "not stored",
        ),
        (json!({"background": true}), "background", "false"),
        (json!({"truncation": "auto"}), "truncation", "disabled"),
        (json!({"prompt": {"id": "p"}}), "prompt", "not stored"),
        (json!({"temperature": "hot"}), "temperature", "a number"),
        (
            json!({"max_output_tokens": -2}),
            "max_output_tokens",
            "whole number",
        ),
        (
            json!({"text": {"format": {"type": "xml"}}}),
            "text.format.type",
            "xml",
        ),
        (
            json!({"text": {"format": {"type": "json_schema"}}}),
            "text.format.schema",
            "missing",
        ),
        (
            json!({"reasoning": {"effort": 3}}),
            "reasoning.effort",
            "a string",
        ),
        (
            json!({"tools": [{"name": "a"}]}),
            "tools[0].type",
            "missing",
        ),
        (
            json!({"tools": [{"type": "function", "name": "a b"}]}),
            "tools[0].name",
            "a b",
        ),
        (
            json!({"tools": [{"type": "function", "name": "a", "parameters": 1}]}),
            "tools[0].parameters",
            "an object",
        ),
        (
            json!({"tool_choice": {"type": "web_search"}}),
            "tool_choice.type",
            "web_search",
        ),
        (json!({"metadata": []}), "metadata", "an object"),
    ]);
}

#[test]
fn tools_that_the_server_does_not_have() {
    let server = tools::server();
    let none = json!({"tools": functions(), "tool_choice": {"type": "function", "name": "other"}});
    assert_eq!(ask(&server, none).status, 400);
    // Tools that the server does not have are not shown to the model, and unknown fields are ignored.
    let hosted = json!({"tools": [{"type": "web_search"}], "max_output_tokens": 1, "store": true, "news": 1});
    let response = answered(&server, hosted);
    assert_eq!(response["tools"], json!([{"type": "web_search"}]));
    assert_eq!(response["store"], false);
}
