use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tercet_serve::internals::{RequestLogGuard, RequestRecord, timestamp};
use tercet_serve::{LogFormat, RequestLog};

#[test]
fn timestamps_are_those_of_the_calendar() {
    for (seconds, expected) in [
        (0, "1970-01-01T00:00:00.000Z"),
        (951_782_399, "2000-02-28T23:59:59.000Z"),
        (951_782_400, "2000-02-29T00:00:00.000Z"),
        (951_868_800, "2000-03-01T00:00:00.000Z"),
        (4_107_542_400, "2100-03-01T00:00:00.000Z"),
        (1_796_000_461, "2026-11-30T01:01:01.000Z"),
    ] {
        assert_eq!(timestamp(Duration::from_secs(seconds)), expected);
    }
}

#[test]
fn a_line_has_no_line_ends_of_clients() {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&lines);
    let sink = move |line: &str| kept.lock().unwrap().push(line.to_string());
    for format in [LogFormat::Text, LogFormat::Json] {
        let record = Arc::new(RequestRecord::default());
        record.set_model(Some("a\nb \u{1b}[2J\u{202e}"), "tiny");
        record.add_ignored("store");
        record.add_ignored("user");
        record.add_ignored("user");
        let log = RequestLog::new(format, sink.clone());
        let mut guard = RequestLogGuard::new(log, record, None, ("GET", "/x"));
        guard.set_status(200);
        drop(guard);
    }
    let lines = lines.lock().unwrap();
    let [text, json] = lines.as_slice() else {
        panic!("{lines:?}");
    };
    assert!(!text.contains(['\n', '\u{1b}', '\u{202e}']), "{text}");
    assert!(
        text.contains(" GET /x 200 ") && text.ends_with(" ignored=store,user"),
        "{text}"
    );
    let json: Value = serde_json::from_str(json).unwrap();
    assert_eq!(
        (&json["status"], &json["model"]),
        (&json!(200), &json!("tiny"))
    );
    assert_eq!(json["ignored"], json!(["store", "user"]));
    assert_eq!(json["asked_model"], "a\\nb \\u{1b}[2J\\u{202e}");
}
