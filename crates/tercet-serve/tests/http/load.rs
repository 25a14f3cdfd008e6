//! Load test with mixed clients: complete streams, early disconnects, invalid JSON, and bodies that
//! are too large or too slow.
//!
//! By default 16 clients run for 3 seconds. `TERCET_CLIENTS` and `TERCET_CLIENT_SECONDS` override
//! this.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tercet_serve::ServeOptions;

use crate::server::{MODEL, Running, start};

const HEAD: &str = "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n";
/// Number of different requests.
const KINDS: usize = 24;
/// Maximum memory growth while serving, for connection buffers and allocator pools.
const MAX_GROWTH_KB: u64 = 64 << 10;

fn number(name: &str, default: u64) -> u64 {
    let text = std::env::var(name).unwrap_or_default();
    match text.is_empty() {
        true => default,
        false => text.parse().unwrap(),
    }
}

fn request(kind: usize) -> Value {
    let prompts = [
        "Ownership is",
        "A trait",
        "The compiler",
        "Use `",
        "In Rust,",
    ];
    json!({
        "model": MODEL, "prompt": prompts[kind % prompts.len()], "stream": true, "seed": kind,
        "max_tokens": 8 + kind % 17, "temperature": if kind.is_multiple_of(2) { 0.0 } else { 0.9 },
    })
}

/// Result of a stream that was read to its end.
struct StreamResult {
    text: String,
    first: Duration,
}

fn send(server: &Running, body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(&server.address).unwrap();
    let patience = Some(Duration::from_secs(120));
    stream.set_read_timeout(patience).unwrap();
    // If the server rejects the request early, the connection may be closed before everything is
    // sent.
    let _ = write!(stream, "{HEAD}content-length: {}\r\n\r\n{body}", body.len());
    stream
}

fn stream(server: &Running, kind: usize) -> StreamResult {
    let began = Instant::now();
    let mut lines = BufReader::new(send(server, &request(kind).to_string())).lines();
    let status = lines.next().unwrap().unwrap();
    assert!(status.starts_with("HTTP/1.1 200"), "{status}");
    let (mut text, mut first, mut done) = (String::new(), None, false);
    for line in lines {
        let line = line.unwrap();
        let Some(event) = line.strip_prefix("data: ") else {
            continue;
        };
        if event == "[DONE]" {
            done = true;
            continue;
        }
        let event: Value = serde_json::from_str(event).unwrap();
        assert!(event["error"].is_null(), "{event}");
        let piece = event["choices"][0]["text"].as_str().unwrap();
        first.get_or_insert_with(|| began.elapsed());
        text += piece;
    }
    assert!(done, "a stream that has no end: {text:?}");
    let first = first.unwrap_or_default();
    StreamResult { text, first }
}

/// Status of a rejected request.
fn status(mut stream: TcpStream) -> String {
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).unwrap();
    String::from_utf8_lossy(&answer[9..]).into_owned()
}

/// Pseudo-random numbers.
fn drawn(state: &mut u64) -> u64 {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

/// One action of a client.
fn turn(server: &Running, alone: &[String], state: &mut u64) -> (&'static str, Duration) {
    let kind = drawn(state) as usize % KINDS;
    match drawn(state) % 24 {
        0..8 => {
            let mut left = send(server, &request(kind).to_string());
            let patience = Duration::from_millis(1 + drawn(state) % 200);
            left.set_read_timeout(Some(patience)).unwrap();
            let _ = left.read_exact(&mut vec![0; drawn(state) as usize % 2000]);
            ("left", Duration::ZERO)
        }
        8 => {
            assert_eq!(status(send(server, "{\"model\": }")), "400");
            ("bad", Duration::ZERO)
        }
        9 => {
            let large = json!({"model": MODEL, "prompt": "x".repeat(5000)});
            assert_eq!(status(send(server, &large.to_string())), "413");
            ("large", Duration::ZERO)
        }
        10 => {
            let mut slow = TcpStream::connect(&server.address).unwrap();
            write!(slow, "{HEAD}content-length: 100\r\n\r\n{{").unwrap();
            assert_eq!(status(slow), "408");
            ("slow", Duration::ZERO)
        }
        _ => {
            let told = stream(server, kind);
            assert_eq!(told.text, alone[kind], "request {kind}");
            ("answered", told.first)
        }
    }
}

/// Resident memory of this process (server and clients) in KB; 0 if the system does not report it.
fn resident_kb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.and_then(|n| n.parse().ok()).unwrap_or(0)
}

#[test]
fn a_crowd_gets_what_each_would_get_alone() {
    let clients = number("TERCET_CLIENTS", 16);
    let time = Duration::from_secs(number("TERCET_CLIENT_SECONDS", 3));
    let server = start(ServeOptions {
        slots: 4,
        queue: 4 * clients as usize,
        body_bytes: 4000,
        body_time: Duration::from_millis(400),
        ..ServeOptions::default()
    });
    let alone: Vec<String> = (0..KINDS).map(|kind| stream(&server, kind).text).collect();
    let done: Mutex<BTreeMap<&str, Vec<Duration>>> = Mutex::default();
    let began = Instant::now();
    let written = server.metric("tercet_generated_tokens_total");
    let middle = std::thread::scope(|scope| {
        for client in 0..clients {
            let (server, alone, done) = (&server, alone.as_slice(), &done);
            scope.spawn(move || {
                let mut state = client;
                while began.elapsed() < time {
                    let (what, first) = turn(server, alone, &mut state);
                    done.lock().unwrap().entry(what).or_default().push(first);
                }
            });
        }
        std::thread::sleep(time / 2);
        resident_kb()
    });
    let seconds = began.elapsed().as_secs_f64();
    server.wait_until_free();
    let grown = resident_kb().saturating_sub(middle);
    assert!(grown < MAX_GROWTH_KB, "{grown} KB more than in the middle");
    let slots = format!("tercet_slots{{model=\"{MODEL}\"}}");
    assert_eq!(server.metric(&slots), 4.0);
    let mut done = done.into_inner().unwrap();
    for what in ["left", "answered"] {
        assert!(done.contains_key(what), "no client {what}");
    }
    let rate = (server.metric("tercet_generated_tokens_total") - written) / seconds;
    let counts: Vec<String> = done
        .iter()
        .map(|(what, all)| format!("{} {what}", all.len()))
        .collect();
    let first = done.get_mut("answered").unwrap();
    first.sort();
    println!(
        "{clients} clients, {seconds:.0} s: {}; {rate:.0} tokens a second; the first token after {:.0} ms (median), {:.0} ms \
         (95 of 100); {grown} KB more than in the middle",
        counts.join(", "),
        first[first.len() / 2].as_secs_f64() * 1e3,
        first[first.len() * 95 / 100].as_secs_f64() * 1e3,
    );
}
