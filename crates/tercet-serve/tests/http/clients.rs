//! Many concurrent clients, some of which disconnect early.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tercet_serve::ServeOptions;

use crate::server::{MODEL, Running, events, start};

fn request(client: usize) -> Value {
    let prompts = [
        "Ownership is",
        "A trait",
        "The compiler",
        "Use `",
        "In Rust,",
    ];
    json!({
        "model": MODEL,
        "prompt": prompts[client % prompts.len()],
        "max_tokens": 16 + client % 7,
        "temperature": if client.is_multiple_of(2) { 0.0 } else { 0.9 },
        "seed": client,
        // Mixes streamed, complete and JSON-constrained requests.
        "stream": client % 5 != 2,
        "response_format": {"type": if client % 7 == 4 { "json_object" } else { "text" }},
    })
}

/// Text of a response, streamed or complete.
fn text(request: &Value, body: &str) -> String {
    match request["stream"].as_bool().unwrap() {
        true => events(body)
            .iter()
            .map(|e| e["choices"][0]["text"].as_str().unwrap())
            .collect(),
        false => {
            let json: Value = serde_json::from_str(body).unwrap();
            json["choices"][0]["text"]
                .as_str()
                .unwrap_or_else(|| panic!("{json}"))
                .to_string()
        }
    }
}

/// Sends a request and disconnects after some bytes, or before any.
fn leave(server: &Running, client: usize) {
    let body = request(client).to_string();
    let mut stream = TcpStream::connect(&server.address).unwrap();
    let head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n";
    write!(stream, "{head}content-length: {}\r\n\r\n{body}", body.len()).unwrap();
    if client.is_multiple_of(2) {
        // Disconnects in the head or body of the response, or after it.
        let patience = Some(Duration::from_millis(300));
        stream.set_read_timeout(patience).unwrap();
        let _ = stream.read_exact(&mut vec![0; 40 + client * 53 % 900]);
    } else {
        std::thread::sleep(Duration::from_millis(client as u64 % 5));
    }
}

#[test]
fn answers_are_those_of_the_request_alone_while_a_third_of_the_clients_leaves() {
    const CLIENTS: usize = 24;
    let server = start(ServeOptions {
        slots: 4,
        body_bytes: 4000,
        ..ServeOptions::default()
    });
    let alone: Vec<String> = (0..CLIENTS)
        .map(|client| match client % 3 {
            0 => String::new(),
            _ => text(
                &request(client),
                &server.post("/v1/completions", &request(client)).text(),
            ),
        })
        .collect();
    let answered = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (server, alone, answered) = (&server, &alone, &answered);
            scope.spawn(move || {
                if client.is_multiple_of(3) {
                    return leave(server, client);
                }
                if client % 8 == 5 {
                    let bad = server.send(
                        "/v1/completions",
                        &[("content-type", "application/json")],
                        b"{\"model\": }",
                    );
                    assert_eq!(bad.status, 400);
                    let large = json!({"model": MODEL, "prompt": "x".repeat(5000)});
                    assert_eq!(server.post("/v1/completions", &large).status, 413);
                }
                let answer = server.post("/v1/completions", &request(client));
                assert_eq!(answer.status, 200, "{}", answer.text());
                assert_eq!(
                    text(&request(client), &answer.text()),
                    alone[client],
                    "client {client}"
                );
                answered.fetch_add(1, Ordering::Relaxed);
            });
        }
    });
    assert_eq!(
        answered.load(Ordering::Relaxed),
        CLIENTS - CLIENTS.div_ceil(3)
    );
    server.wait_until_free();
    assert_eq!(
        server.metric(&format!("tercet_slots{{model=\"{MODEL}\"}}")),
        4.0
    );
    // Cancelled requests have no effect on later ones.
    let again = server.post("/v1/completions", &request(1));
    assert_eq!(text(&request(1), &again.text()), alone[1]);
}

#[test]
fn a_client_that_leaves_frees_its_slot() {
    let server = start(ServeOptions {
        slots: 1,
        ..ServeOptions::default()
    });
    let body = json!({"model": MODEL, "prompt": "Ownership is", "max_tokens": 10_000, "stream": true, "temperature": 0}).to_string();
    let mut stream = TcpStream::connect(&server.address).unwrap();
    let head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n";
    write!(stream, "{head}content-length: {}\r\n\r\n{body}", body.len()).unwrap();
    stream.read_exact(&mut [0; 100]).unwrap();
    drop(stream);
    server.wait_until_free();
    // The response is either cut, or was complete before the server could notice the disconnect.
    let written = server.metric("tercet_generated_tokens_total");
    assert!(
        server.metric("tercet_cancelled_total") == 1.0 || written >= 150.0,
        "{written}"
    );
    let next = server.post(
        "/v1/completions",
        &json!({"model": MODEL, "prompt": "A", "max_tokens": 2}),
    );
    assert_eq!(next.status, 200);
}

#[test]
fn a_full_queue_refuses_and_says_when_to_come_back() {
    let server = start(ServeOptions {
        slots: 1,
        queue: 1,
        ..ServeOptions::default()
    });
    let request =
        json!({"model": MODEL, "prompt": "Ownership is", "max_tokens": 150, "temperature": 0});
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let ask = || scope.spawn(|| server.post("/v1/completions", &request).status);
        let clients: Vec<_> = (0..12).map(|_| ask()).collect();
        clients.into_iter().map(|c| c.join().unwrap()).collect()
    });
    let of = |status: u16| statuses.iter().filter(|s| **s == status).count();
    assert_eq!(of(200) + of(503), 12, "{statuses:?}");
    assert!(of(200) >= 2 && of(503) >= 1, "{statuses:?}");
}

#[test]
fn stopping_finishes_what_is_under_way() {
    let server = start(ServeOptions {
        slots: 1,
        ..ServeOptions::default()
    });
    let address = server.address.clone();
    let body = json!({"model": MODEL, "prompt": "Ownership is", "max_tokens": 60, "temperature": 0, "stream": true}).to_string();
    let mut stream = TcpStream::connect(&address).unwrap();
    let head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n";
    write!(stream, "{head}content-length: {}\r\n\r\n{body}", body.len()).unwrap();
    stream.read_exact(&mut [0; 50]).unwrap();
    let rest = std::thread::spawn(move || {
        let mut rest = String::new();
        stream.read_to_string(&mut rest).unwrap();
        rest
    });
    drop(server);
    let rest = rest.join().unwrap();
    assert!(rest.contains("data: [DONE]"), "{rest}");
    assert!(TcpStream::connect(&address).is_err());
}
