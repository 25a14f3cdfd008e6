//! Clients that lie, stop reading or send what no model can answer: they get errors, and others are served.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tercet_serve::ServeOptions;

use crate::server::{MODEL, Running, start, start_only};

const HEAD: &str = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n";
const ASK: &str = r#"{"prompt": "fn", "max_tokens": 2, "temperature": 0}"#;

fn connect(server: &Running) -> TcpStream {
    let stream = TcpStream::connect(&server.address).unwrap();
    let patience = Some(Duration::from_secs(60));
    stream.set_read_timeout(patience).unwrap();
    stream
}

/// All that the server answers to these bytes, after which the client sends nothing more.
fn answer_to(server: &Running, bytes: &[u8]) -> String {
    let mut stream = connect(server);
    // The server may close the connection before it has read everything.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

fn complete(server: &Running) -> Value {
    let answer = server.post("/v1/completions", &serde_json::from_str(ASK).unwrap());
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["choices"][0]["text"].clone()
}

#[test]
fn lengths_that_are_lies_are_errors() {
    let server = start(ServeOptions {
        slots: 1,
        body_time: Duration::from_millis(300),
        ..ServeOptions::default()
    });
    let text = complete_named(&server);
    let ask = json!({"model": MODEL, "prompt": "fn", "max_tokens": 2}).to_string();
    let huge = "9".repeat(30);
    for (name, headers, body) in [
        (
            "longer than sent",
            format!("content-length: {}\r\n", ask.len() + 50),
            ask.as_str(),
        ),
        (
            "shorter than sent",
            "content-length: 10\r\n".to_string(),
            ask.as_str(),
        ),
        ("empty", "content-length: 0\r\n".to_string(), ask.as_str()),
        (
            "no number",
            "content-length: ten\r\n".to_string(),
            ask.as_str(),
        ),
        (
            "negative",
            "content-length: -1\r\n".to_string(),
            ask.as_str(),
        ),
        (
            "beyond all numbers",
            format!("content-length: {huge}\r\n"),
            ask.as_str(),
        ),
        (
            "beyond the limit",
            format!("content-length: {}\r\n", u64::MAX),
            ask.as_str(),
        ),
        (
            "two lengths",
            format!("content-length: {}\r\ncontent-length: 3\r\n", ask.len()),
            ask.as_str(),
        ),
        (
            "two kinds",
            format!(
                "content-length: {}\r\ntransfer-encoding: chunked\r\n",
                ask.len()
            ),
            ask.as_str(),
        ),
        (
            "wrong chunks",
            "transfer-encoding: chunked\r\n".to_string(),
            "zz\r\nabc\r\n0\r\n\r\n",
        ),
        (
            "endless chunk",
            "transfer-encoding: chunked\r\n".to_string(),
            "ffffffffffffffff\r\nabc",
        ),
        (
            "cut chunk",
            "transfer-encoding: chunked\r\n".to_string(),
            "ff\r\nabc",
        ),
    ] {
        let answer = answer_to(&server, format!("{HEAD}{headers}\r\n{body}").as_bytes());
        // A client that has closed its side may get no answer.
        let is_error = answer.is_empty() || answer.starts_with("HTTP/1.1 4");
        assert!(is_error, "{name}: {answer}");
        assert!(!answer.contains("HTTP/1.1 200"), "{name}: {answer}");
        server.wait_until_free();
    }
    assert_eq!(complete_named(&server), text);
}

/// The completion of a server with several models.
fn complete_named(server: &Running) -> Value {
    let ask = json!({"model": MODEL, "prompt": "fn", "max_tokens": 2, "temperature": 0});
    let answer = server.post("/v1/completions", &ask);
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["choices"][0]["text"].clone()
}

#[test]
fn ten_megabytes_of_nested_json_are_refused_soon() {
    let server = start_only(ServeOptions {
        slots: 1,
        ..ServeOptions::default()
    });
    const SIZE: usize = 10 << 20;
    let wide = |item: &str| format!("[{}0]", item.repeat(SIZE / item.len()));
    let deep_objects = r#"{"a":"#.repeat(SIZE / 5);
    for (name, prompt) in [
        ("lists in lists", "[".repeat(SIZE)),
        ("closed lists", "[".repeat(SIZE / 2) + &"]".repeat(SIZE / 2)),
        ("objects in objects", deep_objects),
        ("many lists", wide("[],")),
        ("many objects", wide(r#"{"":0},"#)),
        ("many lists of lists", wide("[[[[]]]],")),
    ] {
        for route in [
            "/v1/completions",
            "/v1/chat/completions",
            "/api/chat",
            "/v1/messages",
            "/mcp",
        ] {
            let field = if route == "/v1/completions" {
                "prompt"
            } else {
                "messages"
            };
            let body = format!(r#"{{"max_tokens": 1, "{field}": {prompt}}}"#);
            let began = Instant::now();
            let kind = ("content-type", "application/json");
            let answer = server.send(route, &[kind], body.as_bytes());
            assert_eq!(answer.status, 400, "{name} {route}: {:.300}", answer.text());
            assert!(answer.text().len() < 1000, "{name} {route}");
            assert!(began.elapsed() < Duration::from_secs(10), "{name} {route}");
        }
    }
    // Brackets in texts are no lists.
    let text = json!({"prompt": "[".repeat(2 << 20), "max_tokens": 1});
    let answer = server.post("/v1/completions", &text);
    assert!(
        answer
            .error()
            .contains("bytes; this model's maximum context length is"),
        "{}",
        answer.error()
    );
    complete(&server);
}

#[test]
fn a_client_that_stops_reading_loses_its_connection() {
    // The server has one connection, so that the next client is served only after the first one
    // has lost its connection.
    let server = start_only(ServeOptions {
        connections: 1,
        write_time: Duration::from_millis(300),
        ..ServeOptions::default()
    });
    // The responses are longer than the buffers of a connection.
    let ask = "GET /page/main.js HTTP/1.1\r\nhost: x\r\n\r\n";
    let one = server.get("/page/main.js").body.len();
    let asks = ask.repeat((100 << 20) / one);
    let mut stuck = connect(&server);
    // The server stops reading, too.
    stuck.set_nonblocking(true).unwrap();
    let _ = stuck.write_all(asks.as_bytes());
    stuck.set_nonblocking(false).unwrap();
    assert_eq!(server.get("/health").status, 200);
    let mut answer = Vec::new();
    let _ = stuck.read_to_end(&mut answer);
    assert!(answer.starts_with(b"HTTP/1.1 200"));
    assert!(answer.len() < 90 << 20, "{} bytes", answer.len());
}

#[cfg(feature = "grammar")]
#[test]
fn tools_whose_schemas_no_call_can_match_are_refused() {
    let server = start_only(ServeOptions {
        slots: 1,
        chat_template: Some(crate::tools::TAGGED.to_string()),
        deadline: Duration::from_secs(20),
        ..ServeOptions::default()
    });
    let object =
        |value: Value| json!({"type": "object", "properties": {"a": value}, "required": ["a"]});
    for (name, schema) in [
        ("an empty list of values", object(json!({"enum": []}))),
        ("no value", object(json!(false))),
        (
            "an empty range",
            object(json!({"type": "integer", "minimum": 5, "maximum": 3})),
        ),
        (
            "an empty length",
            object(json!({"type": "string", "minLength": 5, "maxLength": 3})),
        ),
        (
            "a broken pattern",
            object(json!({"type": "string", "pattern": "("})),
        ),
        (
            "a missing reference",
            object(json!({"$ref": "#/$defs/none"})),
        ),
        (
            "a reference to another server",
            object(json!({"$ref": "https://a.example/b.json"})),
        ),
        ("an unknown type", object(json!({"type": "nonsense"}))),
        (
            "two types",
            object(json!({"allOf": [{"type": "string"}, {"type": "integer"}]})),
        ),
        (
            "an excluded field",
            json!({"type": "object", "required": ["a"], "additionalProperties": false}),
        ),
        ("a number for a schema", object(json!(1))),
    ] {
        for strict in [false, true] {
            let function = json!({"name": "f", "parameters": schema, "strict": strict});
            let mut ask = json!({
                "messages": [{"role": "user", "content": "hi"}], "max_tokens": 20,
                "tools": [{"type": "function", "function": function}],
            });
            if !strict {
                ask["tool_choice"] = "required".into();
            }
            let began = Instant::now();
            let answer = server.post("/v1/chat/completions", &ask);
            // Without `strict`, what no grammar can express is left out.
            let is_refused = answer.status == 400;
            let is_left_out = !strict && answer.status == 200;
            assert!(
                is_refused || is_left_out,
                "{name}, {strict}: {}",
                answer.text()
            );
            assert!(began.elapsed() < Duration::from_secs(10), "{name}");
        }
    }
    // A call that never ends is cut at the limit of tokens.
    let endless = object(json!({"$ref": "#"}));
    let ask = json!({
        "messages": [{"role": "user", "content": "hi"}], "max_tokens": 20, "tool_choice": "required",
        "tools": [{"type": "function", "function": {"name": "f", "parameters": endless}}],
    });
    let answer = server.post("/v1/chat/completions", &ask);
    let is_cut = answer.status == 200 && answer.json()["choices"][0]["finish_reason"] == "length";
    assert!(is_cut || answer.status == 400, "{}", answer.text());
    complete(&server);
}

#[test]
fn templates_that_loop_fail_alone() {
    let loops = [
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{{ 'a' * 99999 }}{% endfor %}",
        "{% set ns = namespace(t='a') %}{% for a in range(99) %}{% set ns.t = ns.t + ns.t %}{% endfor %}{{ ns.t }}",
    ];
    for template in loops {
        let server = start_only(ServeOptions {
            slots: 1,
            chat_template: Some(template.to_string()),
            ..ServeOptions::default()
        });
        let began = Instant::now();
        for (route, body) in [
            (
                "/v1/chat/completions",
                json!({"messages": [{"role": "user", "content": "hi"}]}),
            ),
            (
                "/v1/messages",
                json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}),
            ),
            (
                "/apply-template",
                json!({"messages": [{"role": "user", "content": "hi"}]}),
            ),
        ] {
            let answer = server.post(route, &body);
            assert_eq!(
                answer.status,
                400,
                "{template} {route}: {:.300}",
                answer.text()
            );
            assert!(
                answer.text().contains("template"),
                "{template}: {}",
                answer.text()
            );
        }
        assert!(began.elapsed() < Duration::from_secs(20), "{template}");
        complete(&server);
    }
}
