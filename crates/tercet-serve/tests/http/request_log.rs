//! The line that a server logs for each request.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tercet_serve::{LogFormat, RequestLog, ServeOptions};

use crate::server::{MODEL, Running, start_only};

type Lines = Arc<Mutex<Vec<String>>>;

fn logging(format: LogFormat) -> (Running, Lines) {
    let lines = Lines::default();
    let kept = Arc::clone(&lines);
    let log = RequestLog::new(format, move |line| {
        kept.lock().unwrap().push(line.to_string())
    });
    let server = start_only(ServeOptions {
        slots: 1,
        log: Some(log),
        ..ServeOptions::default()
    });
    (server, lines)
}

/// Waits for the next line: it is written just after the response.
fn next(lines: &Lines) -> String {
    for _ in 0..500 {
        let mut lines = lines.lock().unwrap();
        if !lines.is_empty() {
            assert_eq!(lines.len(), 1, "{lines:?}");
            return lines.remove(0);
        }
        drop(lines);
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("no line was written");
}

#[test]
fn every_request_is_a_line_of_json() {
    let (server, lines) = logging(LogFormat::Json);
    let next = || serde_json::from_str::<Value>(&next(&lines)).unwrap();
    server.get("/health");
    let line = next();
    assert_eq!(
        (&line["method"], &line["path"]),
        (&json!("GET"), &json!("/health"))
    );
    assert_eq!(
        (&line["status"], &line["model"]),
        (&json!(200), &Value::Null)
    );
    assert!(
        line["client"].as_str().unwrap().starts_with("127.0.0.1:"),
        "{line}"
    );
    assert!(
        line["time"].as_str().unwrap().ends_with('Z') && line["seconds"].is_f64(),
        "{line}"
    );
    assert!(line["disconnected"].is_null(), "{line}");

    let request = json!({"model": "gpt-4o", "prompt": "Ownership is", "max_tokens": 5, "temperature": 0, "ignore_eos": true,
        "store": true, "user": "me"});
    for stream in [false, true] {
        let mut request = request.clone();
        request["stream"] = json!(stream);
        assert_eq!(server.post("/v1/completions", &request).status, 200);
        let line = next();
        assert_eq!(
            (&line["model"], &line["asked_model"]),
            (&json!(MODEL), &json!("gpt-4o"))
        );
        assert_eq!(line["generated_tokens"], 5);
        assert!(line["prompt_tokens"].as_u64().unwrap() > 1, "{line}");
        assert_eq!(line["ignored"], json!(["store", "user"]));
        assert_eq!(line["first_byte_seconds"].is_f64(), stream, "{line}");
        assert!(
            line["disconnected"].is_null() && line["error"].is_null(),
            "{line}"
        );
    }
    let wrong = json!({"prompt": "x", "made\nup": 1});
    assert_eq!(server.post("/v1/completions", &wrong).status, 400);
    let line = next();
    assert_eq!(
        (&line["status"], &line["error"]),
        (&json!(400), &json!("unsupported_field"))
    );
    assert!(line["message"].as_str().unwrap().contains("made"), "{line}");
    assert_eq!(server.get("/nothing").status, 404);
    assert_eq!(next()["error"], "not_found");
}

#[test]
fn every_request_is_a_line_of_text() {
    let (server, lines) = logging(LogFormat::Text);
    let request = json!({"model": "a model\n\u{1b}[2J", "messages": [{"role": "user", "content": "x", "name": "n"}],
        "max_tokens": 2, "metadata": {}, "n": 2, "ignore_eos": true});
    assert_eq!(server.post("/v1/chat/completions", &request).status, 200);
    let line = next(&lines);
    assert!(!line.contains(['\n', '\u{1b}']), "{line}");
    assert!(line.contains(" POST /v1/chat/completions 200 "), "{line}");
    assert!(
        line.contains(&format!(" model={MODEL} asked_model=\"a model")),
        "{line}"
    );
    assert!(
        line.ends_with(" generated_tokens=4 ignored=metadata"),
        "{line}"
    );
}

#[test]
fn a_client_that_leaves_is_a_line() {
    let (server, lines) = logging(LogFormat::Json);
    let body =
        json!({"prompt": "Ownership is", "max_tokens": 10_000, "stream": true, "ignore_eos": true});
    let body = body.to_string();
    let mut stream = TcpStream::connect(&server.address).unwrap();
    let head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n";
    write!(stream, "{head}content-length: {}\r\n\r\n{body}", body.len()).unwrap();
    stream.read_exact(&mut [0; 200]).unwrap();
    drop(stream);
    let line: Value = serde_json::from_str(&next(&lines)).unwrap();
    assert_eq!(line["status"], 200);
    // The context of 192 tokens may end before the server notices.
    let is_whole = line["generated_tokens"].as_u64().is_some_and(|n| n > 100);
    assert!(line["disconnected"] == true || is_whole, "{line}");
}

#[test]
fn requests_have_ids() {
    let (server, lines) = logging(LogFormat::Json);
    let ids: Vec<String> = (0..2)
        .map(|_| {
            let answer = server.get("/health");
            let line: Value = serde_json::from_str(&next(&lines)).unwrap();
            assert!(line["request_id"].is_null(), "{line}");
            answer.header("x-request-id").unwrap()
        })
        .collect();
    assert!(ids[0] != ids[1] && ids[0].starts_with("req_"), "{ids:?}");
    let answer = server.fetch("/v1/models/none", &[("x-request-id", "trace-7")]);
    assert_eq!(answer.header("x-request-id").as_deref(), Some("trace-7"));
    let line: Value = serde_json::from_str(&next(&lines)).unwrap();
    assert_eq!(line["request_id"], "trace-7");
    // Ids that could break a line of the log, or fill it, are replaced.
    for bad in ["two words", &"x".repeat(129)] {
        let answer = server.fetch("/health", &[("x-request-id", bad)]);
        let id = answer.header("x-request-id").unwrap();
        assert!(id.starts_with("req_"), "{id}");
        next(&lines);
    }
    let answer = server.post("/v1/messages", &json!({}));
    assert_eq!(answer.header("request-id"), answer.header("x-request-id"));
    next(&lines);
}
