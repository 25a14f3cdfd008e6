//! Transcriptions.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tercet_serve::ServeOptions;

use crate::server::{Answer, Running, data, start_folders, start_paths};

const MODEL: &str = "whisper-c";
const ROUTE: &str = "/v1/audio/transcriptions";

fn server(options: ServeOptions) -> Running {
    start_folders(&["speech/whisper-c", "speech/whisper-b"], options)
}

/// A multipart form with fields and a file.
fn form(fields: &[(&str, &str)], file: Option<(&str, &[u8])>) -> Vec<u8> {
    let mut form = Vec::new();
    for (name, value) in fields {
        let part =
            format!("--edge\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n");
        form.extend(part.bytes());
    }
    if let Some((name, bytes)) = file {
        let head = format!(
            "--edge\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{name}\"\r\nContent-Type: application/octet-stream\r\n\r\n"
        );
        form.extend(head.bytes());
        form.extend(bytes);
        form.extend(b"\r\n");
    }
    form.extend(b"--edge--\r\n");
    form
}

const KIND: (&str, &str) = ("content-type", "multipart/form-data; boundary=edge");

fn ask(server: &Running, fields: &[(&str, &str)], file: Option<(&str, &[u8])>) -> Answer {
    server.send(ROUTE, &[KIND], &form(fields, file))
}

#[test]
fn a_recording_is_transcribed() {
    let server = server(ServeOptions::default());
    let audio = std::fs::read(data("speech/speech.flac")).unwrap();
    let file = Some(("speech.flac", audio.as_slice()));
    let of = |format: &str| {
        let answer = ask(
            &server,
            &[("model", MODEL), ("response_format", format)],
            file,
        );
        assert_eq!(answer.status, 200, "{format}: {}", answer.text());
        answer
    };
    let plain = ask(&server, &[("model", MODEL)], file).json();
    let text = plain["text"].as_str().unwrap();
    assert_eq!(of("json").json(), plain);
    assert_eq!(of("text").text(), format!("{text}\n"));
    let verbose = of("verbose_json").json();
    let segments = verbose["segments"].as_array().unwrap();
    assert!(!segments.is_empty());
    let joined: String = segments
        .iter()
        .map(|s| s["text"].as_str().unwrap())
        .collect();
    assert_eq!(verbose["text"], joined.trim());
    let seconds = verbose["duration"].as_f64().unwrap();
    assert!(
        segments
            .iter()
            .all(|s| s["start"].as_f64().unwrap() <= seconds + 30.0)
    );
    let spoken = segments
        .iter()
        .filter(|s| !s["text"].as_str().unwrap().trim().is_empty());
    let srt = of("srt").text();
    assert_eq!(srt.matches(" --> ").count(), spoken.count());
    let vtt = of("vtt").text();
    assert_eq!(
        vtt.strip_prefix("WEBVTT\n\n").unwrap().replace('.', ","),
        srt.replace('.', ",")
    );
    // A multilingual model accepts a language, and detects it if there is none.
    let german = [
        ("model", "whisper-b"),
        ("language", "de"),
        ("response_format", "verbose_json"),
    ];
    let german = ask(&server, &german, file).json();
    assert_eq!(german["language"], "de");
    let found = [
        ("model", "whisper-b"),
        ("response_format", "verbose_json"),
        ("temperature", "0.4"),
    ];
    let found = ask(&server, &found, file).json();
    assert!(found["language"].is_string(), "{found}");
    let hot: Vec<&Value> = found["segments"]
        .as_array()
        .unwrap()
        .iter()
        .map(|s| &s["temperature"])
        .collect();
    assert!(
        !hot.is_empty() && hot.iter().all(|t| **t == json!(0.4)),
        "{hot:?}"
    );
}

#[test]
fn speech_is_translated_by_models_that_can() {
    let server = server(ServeOptions::default());
    let audio = std::fs::read(data("speech/speech.flac")).unwrap();
    let ask = |route: &str, model: &str, more: &[(&str, &str)]| {
        let fields = [
            &[("model", model), ("response_format", "verbose_json")],
            more,
        ]
        .concat();
        let body = form(&fields, Some(("speech.flac", &audio)));
        server.send(route, &[KIND], &body)
    };
    let translated = ask("/v1/audio/translations", "whisper-b", &[]);
    assert_eq!(translated.status, 200, "{}", translated.text());
    assert_eq!(translated.json()["task"], "translate");
    let written = ask(ROUTE, "whisper-b", &[]).json();
    assert_eq!(written["task"], "transcribe");
    // The task is a token of the prompt, so the words differ.
    assert_ne!(translated.json()["text"], written["text"]);
    let english = ask("/v1/audio/translations", MODEL, &[]);
    assert_eq!(english.status, 400, "{}", english.text());
    assert!(
        english.error().contains("English alone"),
        "{}",
        english.error()
    );
    // The terms of a request are numbers in texts.
    let late = ask(ROUTE, MODEL, &[("deadline_seconds", "0")]);
    assert_eq!(late.status, 504, "{}", late.text());
    let wrong = ask(ROUTE, MODEL, &[("priority", "high")]);
    assert_eq!(wrong.status, 400, "{}", wrong.text());
}

/// Messages with a text part and an audio part.
fn messages(format: &str, data: &str) -> Value {
    let audio = json!({"type": "input_audio", "input_audio": {"data": data, "format": format}});
    let text = json!({"type": "text", "text": "This was said:"});
    json!([{"role": "system", "content": "s"}, {"role": "user", "content": [text, audio]}])
}

#[test]
fn audio_parts_are_written_down_by_a_speech_recognizer() {
    let tiny = "tiny-rust-llama/tiny-rust-llama-q8_0.gguf";
    let paths = [data(tiny), data("speech/whisper-c")];
    let server = start_paths(&paths, ServeOptions::default());
    let model = "tiny-rust-llama-q8_0.gguf";
    let file = std::fs::read(data("speech/speech.flac")).unwrap();
    let words = ask(&server, &[("model", MODEL)], Some(("a.flac", &file))).json()["text"].clone();
    let words = words.as_str().unwrap();
    let encoded = STANDARD.encode(&file);
    let chat = |messages: Value| {
        let body = json!({"model": model, "messages": messages, "max_tokens": 4, "temperature": 0});
        server.post("/v1/chat/completions", &body)
    };
    let heard = chat(messages("flac", &encoded));
    assert_eq!(heard.status, 200, "{}", heard.text());
    let read = chat(json!([
        {"role": "system", "content": "s"},
        {"role": "user", "content": format!("This was said:\n{words}")},
    ]));
    let (heard, read) = (heard.json(), read.json());
    assert_eq!(heard["choices"], read["choices"]);
    assert_eq!(
        heard["usage"]["prompt_tokens"],
        read["usage"]["prompt_tokens"]
    );
    let input = messages("flac", &encoded);
    let body = json!({"model": model, "input": input, "max_output_tokens": 4, "temperature": 0});
    let response = server.post("/v1/responses", &body);
    assert_eq!(response.status, 200, "{}", response.text());
    let usage = &response.json()["usage"];
    assert_eq!(usage["input_tokens"], read["usage"]["prompt_tokens"]);
    for (messages, named) in [
        (
            messages("flac", "*"),
            "messages[1].content[1].input_audio.data",
        ),
        (
            messages("ogg", &encoded),
            "messages[1].content[1].input_audio.format",
        ),
        (
            messages("wav", &STANDARD.encode("no audio")),
            "messages[1].content[1].input_audio.data",
        ),
        (
            json!([{"role": "user", "content": [{"type": "input_audio"}]}]),
            "messages[0].content[0].input_audio",
        ),
        (
            json!([{"role": "user", "content": vec![json!({"type": "input_audio"}); 17]}]),
            "17 audio parts",
        ),
    ] {
        let answer = chat(messages);
        assert_eq!(answer.status, 400, "{named}: {}", answer.text());
        assert!(
            answer.error().contains(named),
            "{named}: {}",
            answer.error()
        );
    }
    drop(server);
    let server = start_paths(&paths[..1], ServeOptions::default());
    for (route, field) in [
        ("/v1/chat/completions", "messages"),
        ("/v1/responses", "input"),
    ] {
        let answer = server.post(route, &json!({field: messages("flac", &encoded)}));
        assert_eq!(answer.status, 400, "{}", answer.text());
        let said = answer.error();
        assert!(
            said.contains(&format!("{field}[1].content[1].input_audio")),
            "{said}"
        );
        assert!(said.contains("speech recognizer"), "{said}");
    }
}

#[test]
fn what_cannot_be_transcribed_is_refused() {
    let server = server(ServeOptions {
        body_bytes: 200_000,
        ..ServeOptions::default()
    });
    let wav = b"RIFF\x24\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0\x80\x3e\0\0\0\x7d\0\0\x02\0\x10\0data\0\0\0\0";
    let files: [&[u8]; 4] = [b"", b"no audio at all", &wav[..20], wav];
    for file in files {
        let answer = ask(&server, &[("model", MODEL)], Some(("a.wav", file)));
        assert_eq!(answer.status, 400, "{}", answer.text());
        assert_eq!(answer.json()["error"]["code"], "invalid_audio");
        assert!(answer.error().contains("a.wav"), "{}", answer.error());
    }
    let audio = std::fs::read(data("speech/speech.flac")).unwrap();
    let file = Some(("speech.flac", audio.as_slice()));
    let cases = [
        (vec![], "model"),
        (vec![("model", MODEL), ("model", MODEL)], "twice"),
        (
            vec![("model", MODEL), ("response_format", "xml")],
            "response_format",
        ),
        (
            vec![("model", MODEL), ("temperature", "hot")],
            "temperature",
        ),
        (
            vec![("model", MODEL), ("temperature", "1.5")],
            "temperature",
        ),
        (vec![("model", "whisper-b"), ("language", "xx")], "xx"),
        (vec![("model", MODEL), ("prompt", "before")], "prompt"),
        (vec![("model", MODEL), ("made_up", "1")], "made_up"),
        (
            vec![
                ("model", MODEL),
                ("timestamp_granularities[]", "segment"),
                ("timestamp_granularities[]", "word"),
            ],
            "word",
        ),
    ];
    for (fields, named) in cases {
        let answer = ask(&server, &fields, file);
        assert_eq!(answer.status, 400, "{fields:?}: {}", answer.text());
        assert!(
            answer.error().contains(named),
            "{fields:?}: {}",
            answer.error()
        );
    }
    assert_eq!(ask(&server, &[("model", "none")], file).status, 404);
    let none = ask(&server, &[("model", MODEL)], None);
    assert_eq!((none.status, none.error().contains("file")), (400, true));
    let many: Vec<(String, String)> = (0..40).map(|i| (format!("f{i}"), String::new())).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
    assert_eq!(ask(&server, &many, None).status, 400);
}

#[test]
fn forms_that_are_none() {
    let server = server(ServeOptions {
        body_bytes: 200_000,
        ..ServeOptions::default()
    });
    let whole = form(&[("model", MODEL)], Some(("a.wav", b"x")));
    let post = |kind: &str, body: &[u8]| server.send(ROUTE, &[("content-type", kind)], body);
    assert_eq!(post("application/json", &whole).status, 415);
    assert_eq!(post("multipart/form-data", &whole).status, 400);
    assert_eq!(
        post("multipart/form-data; boundary=other", &whole).status,
        400
    );
    assert_eq!(post(KIND.1, &whole[..whole.len() / 2]).status, 400);
    assert_eq!(post(KIND.1, b"").status, 400);
    assert_eq!(post(KIND.1, &vec![b'x'; 300_000]).status, 413);
    // A request that a web page can send cross-origin without a preflight.
    let from = |origin: &str| {
        server
            .send(ROUTE, &[KIND, ("origin", origin)], &whole)
            .status
    };
    assert_eq!(from("http://evil.example"), 403);
    assert_eq!(from("null"), 403);
    assert_eq!(from(&format!("http://{}", server.address)), 400);
}
