//! API keys, size and time limits, and malformed requests.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::json;
use tercet_serve::{HttpServer, ModelRegistry, ServeOptions};

use crate::server::{MODEL, Running, shared, start};

const JSON: (&str, &str) = ("content-type", "application/json");

#[test]
fn bodies_that_are_not_json() {
    let server = shared();
    let deep = "[".repeat(100_000);
    for body in [
        "",
        "{",
        "null",
        "[]",
        "{\"model\": ",
        "\u{feff}{}",
        deep.as_str(),
    ] {
        for route in [
            "/v1/completions",
            "/v1/chat/completions",
            "/v1/embeddings",
            "/v2/models/rows/infer",
        ] {
            let answer = server.send(route, &[JSON], body.as_bytes());
            assert_eq!(answer.status, 400, "{route} {body:.20}: {}", answer.text());
            assert!(!answer.error().is_empty());
        }
    }
    let bytes = server.send("/v1/completions", &[JSON], &[0xff, 0xfe, 0x00]);
    assert_eq!(bytes.status, 400);
    // A request that a web page can send cross-origin without a preflight is rejected before its
    // body is read.
    let form = server.send("/v1/completions", &[("content-type", "text/plain")], b"{}");
    assert_eq!(form.status, 415);
    assert_eq!(server.get("/v1/completions").status, 405);
    assert_eq!(server.get("/nothing").status, 404);
}

#[test]
fn bodies_that_are_too_large_or_too_slow() {
    let options = ServeOptions {
        body_bytes: 1000,
        body_time: Duration::from_millis(300),
        slots: 1,
        ..ServeOptions::default()
    };
    let server = start(options);
    let large = json!({"model": MODEL, "prompt": "x".repeat(2000)});
    let answer = server.post("/v1/completions", &large);
    assert_eq!(answer.status, 413);
    assert!(answer.error().contains("1000 bytes"));

    let head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n";
    let read = |request: &[u8]| {
        let mut stream = TcpStream::connect(&server.address).unwrap();
        stream.write_all(request).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).unwrap();
        String::from_utf8_lossy(&answer).into_owned()
    };
    // A chunked body without a length header.
    let chunk = format!("{:x}\r\n{}\r\n0\r\n\r\n", 2000, "x".repeat(2000));
    assert_eq!(
        read(format!("{head}transfer-encoding: chunked\r\n\r\n{chunk}").as_bytes()),
        "HTTP/1.1 413"
    );
    // A body that never arrives.
    let began = Instant::now();
    assert_eq!(
        read(format!("{head}content-length: 100\r\n\r\n{{").as_bytes()),
        "HTTP/1.1 408"
    );
    assert!(began.elapsed() < Duration::from_secs(10));
    // The slot was never used.
    server.wait_until_free();
    assert_eq!(server.metric("tercet_generated_tokens_total"), 0.0);
}

/// A client that is still sending receives the error before the connection closes.
#[test]
fn refused_while_writing() {
    let options = ServeOptions {
        body_bytes: 1000,
        api_keys: vec!["secret".into(), "second".into()],
        slots: 1,
        ..ServeOptions::default()
    };
    let server = start(options);
    let json = "application/json";
    for (path, kind, key, status) in [
        ("/v1/completions", json, "secret", 413),
        ("/v2/models/rows/infer", json, "secret", 413),
        ("/v1/completions", "text/plain", "secret", 415),
        ("/v1/completions", json, "other", 401),
        ("/v1/models", json, "secret", 405),
        ("/nothing", json, "secret", 404),
    ] {
        let mut stream = TcpStream::connect(&server.address).unwrap();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: {kind}\r\nauthorization: Bearer {key}\r\n\
             content-length: 1800\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        for _ in 0..6 {
            std::thread::sleep(Duration::from_millis(10));
            stream.write_all(&[b'x'; 300]).unwrap();
        }
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).unwrap();
        let answer = String::from_utf8_lossy(&answer);
        assert_eq!(answer, format!("HTTP/1.1 {status}"), "{path} {kind} {key}");
    }
}

#[test]
fn a_key_is_asked_for() {
    let options = ServeOptions {
        api_keys: vec!["secret".into(), "second".into()],
        slots: 1,
        ..ServeOptions::default()
    };
    let server = start(options);
    assert_eq!(server.get("/health").status, 200);
    for path in [
        "/v1/models",
        "/metrics",
        "/v2",
        "/slots",
        "/api/tags",
        "/api/ps",
        "/api/version",
    ] {
        assert_eq!(server.get(path).status, 401, "{path}");
    }
    for path in [
        "/v1/responses",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/api/chat",
        "/api/generate",
        "/api/embed",
        "/api/embeddings",
        "/api/show",
        "/apply-template",
        "/infill",
        "/score",
    ] {
        assert_eq!(
            server.post(path, &json!({"model": MODEL})).status,
            401,
            "{path}"
        );
    }
    let body = json!({"model": MODEL, "prompt": "x", "max_tokens": 1}).to_string();
    let with = |key: &str| {
        server
            .send(
                "/v1/completions",
                &[JSON, ("authorization", key)],
                body.as_bytes(),
            )
            .status
    };
    // The name of the scheme has no case.
    for key in [
        "Bearer secret",
        "bearer secret",
        "BEARER  secret",
        "Bearer second",
    ] {
        assert_eq!(with(key), 200, "{key}");
    }
    for key in [
        "Bearer secre",
        "Bearer secrets",
        "secret",
        "Basic secret",
        "Bearer ",
        "bearer Secret",
        "bearersecret",
    ] {
        assert_eq!(with(key), 401, "{key}");
    }
    for (key, status) in [("secret", 200), (" second", 200), ("third", 401), ("", 401)] {
        let headers = [JSON, ("x-api-key", key)];
        let answer = server.send("/v1/completions", &headers, body.as_bytes());
        assert_eq!(answer.status, status, "x-api-key {key}");
    }
}

/// The head of the response to a request with these lines, in lower case.
fn head(server: &Running, lines: &[&str]) -> String {
    let mut stream = TcpStream::connect(&server.address).unwrap();
    let lines = lines.join("\r\n");
    let text = format!("{lines}\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(text.as_bytes()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let answer = String::from_utf8_lossy(&answer);
    answer.split("\r\n\r\n").next().unwrap().to_lowercase()
}

#[test]
fn pages_of_allowed_origins_may_call() {
    let preflight = |origin: &str| {
        format!(
            "OPTIONS /v1/chat/completions HTTP/1.1\r\norigin: {origin}\r\n\
             access-control-request-method: POST\r\n\
             access-control-request-headers: authorization, content-type"
        )
    };
    let started = |origins: &[&str]| {
        start(ServeOptions {
            api_keys: vec!["secret".into()],
            allowed_origins: origins.iter().map(|origin| (*origin).to_string()).collect(),
            slots: 1,
            ..ServeOptions::default()
        })
    };
    let get = |origin: &str| format!("GET /health HTTP/1.1\r\norigin: {origin}");
    let server = started(&["https://app.example", "http://localhost:3000"]);
    for origin in ["https://app.example", "http://localhost:3000"] {
        // A preflight request has no key.
        let answer = head(&server, &[&preflight(origin)]);
        assert!(answer.starts_with("http/1.1 200"), "{answer}");
        let allowed = format!("access-control-allow-origin: {origin}");
        assert!(answer.contains(&allowed), "{answer}");
        assert!(answer.contains("access-control-allow-headers: authorization, content-type"));
        assert!(head(&server, &[&get(origin)]).contains(&allowed));
    }
    let infer = |origin: &str| {
        format!(
            "POST /v2/models/rows/infer HTTP/1.1\r\norigin: {origin}\r\nauthorization: Bearer secret\r\ncontent-length: 0"
        )
    };
    assert!(head(&server, &[&infer("https://app.example")]).starts_with("http/1.1 400"));
    for origin in ["https://other.example", "http://app.example", "null"] {
        let answer = head(&server, &[&preflight(origin)]);
        assert!(!answer.contains("access-control-allow-origin"), "{answer}");
        assert!(!head(&server, &[&get(origin)]).contains("access-control-allow-origin"));
        assert!(head(&server, &[&infer(origin)]).starts_with("http/1.1 403"));
    }
    drop(server);
    let server = started(&["*"]);
    let answer = head(&server, &[&preflight("https://any.example")]);
    assert!(
        answer.contains("access-control-allow-origin: *"),
        "{answer}"
    );
    drop(server);
    let server = started(&[]);
    let answer = head(&server, &[&preflight("https://app.example")]);
    assert!(answer.starts_with("http/1.1 405"), "{answer}");
}

#[test]
fn what_is_no_origin_is_refused() {
    for origin in [
        "app.example",
        "https://",
        "https://app.example/",
        "",
        "https://a\n",
    ] {
        let options = ServeOptions {
            allowed_origins: vec![origin.into()],
            ..ServeOptions::default()
        };
        let server = HttpServer::bind("127.0.0.1", 0, ModelRegistry::new(), options);
        let refused = server.err().map(|e| e.to_string());
        assert!(
            refused.is_some_and(|e| e.contains("is not an origin")),
            "{origin}"
        );
    }
}

#[test]
fn a_deadline_ends_what_waits_and_what_runs() {
    let options = ServeOptions {
        deadline: Duration::from_millis(1),
        slots: 1,
        ..ServeOptions::default()
    };
    let server = start(options);
    for stream in [false, true] {
        let request =
            json!({"model": MODEL, "prompt": "x ".repeat(60), "max_tokens": 100, "stream": stream});
        let answer = server.post("/v1/completions", &request);
        // If the stream has started, the error is its last event.
        assert!(
            answer.status == 504 || answer.text().contains("deadline_exceeded"),
            "{}",
            answer.text()
        );
    }
    server.wait_until_free();
    assert_eq!(server.metric("tercet_deadline_exceeded_total"), 2.0);
}

#[test]
fn pages_of_other_sites_get_no_permission() {
    let server = shared();
    let mut stream = TcpStream::connect(&server.address).unwrap();
    let request = "OPTIONS /v1/completions HTTP/1.1\r\nhost: x\r\norigin: http://evil\r\naccess-control-request-method: POST\r\nconnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(
        !answer.to_lowercase().contains("access-control-allow"),
        "{answer}"
    );
}

/// Connections that send half a header are closed, so that they do not keep others out.
#[test]
fn headers_have_a_time_limit_and_connections_a_number() {
    let options = ServeOptions {
        header_time: Duration::from_millis(300),
        connections: 4,
        slots: 1,
        ..ServeOptions::default()
    };
    let server = start(options);
    let half: Vec<TcpStream> = (0..12)
        .map(|_| {
            let mut stream = TcpStream::connect(&server.address).unwrap();
            stream.write_all(b"GET /health HTTP/1.1\r\nhost: ").unwrap();
            stream
                .set_read_timeout(Some(Duration::from_secs(60)))
                .unwrap();
            stream
        })
        .collect();
    assert_eq!(server.get("/health").status, 200);
    for mut stream in half {
        let mut rest = Vec::new();
        // The server may answer with an error before it closes the connection.
        let _ = stream.read_to_end(&mut rest);
        assert!(!rest.starts_with(b"HTTP/1.1 200"), "{rest:?}");
    }
}

#[test]
fn texts_that_cannot_fit_are_refused_by_their_bytes() {
    let server = shared();
    let long = "a b ".repeat(1_000_000);
    for (path, request) in [
        ("/v1/completions", json!({"model": MODEL, "prompt": long})),
        (
            "/v1/chat/completions",
            json!({"model": MODEL, "messages": [{"role": "user", "content": long}]}),
        ),
    ] {
        let answer = server.post(path, &request);
        assert_eq!(answer.status, 400, "{path}");
        let said = answer.error();
        assert!(
            said.contains(" bytes; this model's maximum context length is"),
            "{path}: {said}"
        );
    }
}

#[cfg(feature = "grammar")]
#[test]
fn schemas_without_bounds_are_refused() {
    let server = shared();
    let patterns: Vec<_> = (0..20)
        .map(|at| json!({"type": "string", "pattern": format!(".*a{at}.*")}))
        .collect();
    let fields: serde_json::Map<_, _> = (0..6900).map(|at| (format!("p{at}"), json!({}))).collect();
    for schema in [
        json!({"allOf": patterns}),
        json!({"type": "object", "properties": {"x": {"allOf": patterns}}}),
        json!({"type": "object", "properties": fields}),
        json!({"type": "string", "minLength": 3, "maxLength": 2}),
    ] {
        let format = json!({"type": "json_schema", "json_schema": {"name": "a", "schema": schema}});
        let request = json!({
            "model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1,
            "response_format": format,
        });
        let answer = server.post("/v1/chat/completions", &request);
        assert_eq!(answer.status, 400, "{}", answer.text());
        let said = answer.error();
        assert!(said.contains("JSON schema"), "{said}");
    }
}
