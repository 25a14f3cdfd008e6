//! Slots are shared between API keys, urgent requests go first, and requests state how long they wait.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tercet_serve::ServeOptions;

use crate::server::{Answer, MODEL, Running, shared, start_folders, start_only};

const BUSY: &str = "tercet_slots_busy{model=\"tiny\"}";
const QUEUED: &str = "tercet_requests_queued{model=\"tiny\"}";

/// A server with one slot and two keys.
fn server() -> Running {
    start_only(ServeOptions {
        slots: 1,
        api_keys: vec!["one".into(), "two".into()],
        ..ServeOptions::default()
    })
}

fn complete(server: &Running, key: &str, priority: i64) {
    let body = json!({"prompt": "fn", "max_tokens": 180, "ignore_eos": true, "priority": priority});
    let bearer = format!("Bearer {key}");
    let headers = [
        ("content-type", "application/json"),
        ("authorization", bearer.as_str()),
    ];
    let answer = server.send("/v1/completions", &headers, body.to_string().as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text());
}

/// Waits until a metric of the model has a value; false if it has not soon.
fn waits_for(server: &Running, metric: &str, value: usize) -> bool {
    let until = Instant::now() + Duration::from_secs(2);
    while Instant::now() < until {
        let headers = [("authorization", "Bearer one")];
        let page = server.fetch("/metrics", &headers).text();
        let mut rows = page.lines().filter_map(|line| line.strip_prefix(metric));
        if rows.next().map(str::trim) == Some(&*value.to_string()) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    false
}

/// Names of requests in the order in which they ended, if all others were queued while the first one
/// ran.
fn order_once(requests: &[(&'static str, &str, i64)]) -> Option<Vec<&'static str>> {
    let server = server();
    let ended = Mutex::new(Vec::new());
    let mut is_queued = true;
    std::thread::scope(|scope| {
        for (at, (name, key, priority)) in requests.iter().enumerate() {
            let (server, ended) = (&server, &ended);
            scope.spawn(move || {
                complete(server, key, *priority);
                ended.lock().unwrap().push(*name);
            });
            is_queued &= match at {
                0 => waits_for(server, BUSY, 1),
                at => waits_for(server, QUEUED, at),
            };
        }
        is_queued &= ended.lock().unwrap().is_empty();
    });
    is_queued.then(|| ended.into_inner().unwrap())
}

/// Like [`order_once`], again if a busy machine was too slow.
fn order(requests: &[(&'static str, &str, i64)]) -> Vec<&'static str> {
    let mut tries = (0..20).filter_map(|_| order_once(requests));
    tries.next().expect("the requests are queued in time")
}

#[test]
fn a_key_with_one_request_does_not_wait_for_all_of_another_key() {
    let ended = order(&[
        ("a", "one", 0),
        ("b", "one", 0),
        ("c", "one", 0),
        ("x", "two", 0),
    ]);
    assert_eq!(ended, ["a", "x", "b", "c"]);
}

#[test]
fn a_lower_number_goes_before_others() {
    let ended = order(&[
        ("a", "one", 0),
        ("b", "one", 5),
        ("c", "one", 0),
        ("d", "one", -1),
    ]);
    assert_eq!(ended, ["a", "d", "c", "b"]);
}

/// The answers to `requests`, one after the other, while a request of the key `one` with `count` completions
/// keeps the only slot busy, and its other completions wait. `None` if that was not so all the time.
fn while_busy_once(
    server: &Running,
    count: usize,
    requests: &[(&str, Value)],
) -> Option<Vec<Answer>> {
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let long = json!({"prompt": "fn", "max_tokens": 180, "ignore_eos": true, "n": count});
            let answer = ask(server, "one", &long);
            assert!([200, 503].contains(&answer.status), "{}", answer.text());
            is_done.store(true, Ordering::Relaxed);
        });
        let is_busy = waits_for(server, BUSY, 1) && waits_for(server, QUEUED, count - 1);
        let ask = |(key, body): &(&str, Value)| {
            let is_full = counted(server, QUEUED) == (count - 1) as f64;
            (is_full, ask(server, key, body))
        };
        let (full, answers): (Vec<bool>, Vec<Answer>) = requests.iter().map(ask).unzip();
        let was_busy = is_busy && full.iter().all(|is_full| *is_full);
        (was_busy && !is_done.load(Ordering::Relaxed)).then_some(answers)
    })
}

/// Like [`while_busy_once`], with new servers until a busy machine was fast enough.
fn while_busy(
    start: impl Fn() -> Running,
    count: usize,
    requests: &[(&str, Value)],
) -> (Running, Vec<Answer>) {
    let mut tries = (0..20).filter_map(|_| {
        let server = start();
        let answers = while_busy_once(&server, count, requests)?;
        Some((server, answers))
    });
    tries.next().expect("the slot is busy all the time")
}

fn ask(server: &Running, key: &str, body: &Value) -> Answer {
    let bearer = format!("Bearer {key}");
    let headers = [
        ("content-type", "application/json"),
        ("authorization", bearer.as_str()),
    ];
    server.send("/v1/completions", &headers, body.to_string().as_bytes())
}

fn counted(server: &Running, metric: &str) -> f64 {
    let page = server.fetch("/metrics", &[("authorization", "Bearer one")]);
    let page = page.text();
    let row = page.lines().find_map(|line| line.strip_prefix(metric));
    row.unwrap_or_else(|| panic!("{page}"))
        .trim()
        .parse()
        .unwrap()
}

/// A short request with further fields.
fn short(more: Value) -> Value {
    let mut body = json!({"prompt": "fn", "max_tokens": 1});
    let more = more.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(more);
    body
}

/// Status and code of an error.
fn refusal(answer: &Answer) -> (u16, String) {
    let code = answer.json()["error"]["code"].as_str().map(str::to_string);
    (answer.status, code.unwrap_or_else(|| answer.text()))
}

#[test]
fn a_request_waits_as_long_as_it_says() {
    let terms = [
        json!({"queue_seconds": 0}),
        json!({"queue_seconds": 0.01}),
        json!({"deadline_seconds": 0.01}),
        // The shorter time holds.
        json!({"deadline_seconds": 0.01, "queue_seconds": 60}),
    ];
    let requests = terms.map(|terms| ("two", short(terms)));
    let (server, answers) = while_busy(server, 1, &requests);
    let (timeout, late) = ((503, "queue_timeout"), (504, "deadline_exceeded"));
    for (answer, (status, code)) in answers.iter().zip([timeout, timeout, late, late]) {
        assert_eq!(refusal(answer), (status, code.to_string()));
    }
    assert!(answers[0].error().contains("queue_seconds"));
    assert_eq!(counted(&server, "tercet_queue_timeouts_total "), 2.0);
    assert_eq!(counted(&server, "tercet_deadline_exceeded_total "), 2.0);
    // A free slot needs no waiting.
    let answer = ask(&server, "two", &short(json!({"queue_seconds": 0})));
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(counted(&server, "tercet_started_total "), 2.0);
}

#[test]
fn a_server_limits_the_time_in_its_queue() {
    let server = || {
        start_only(ServeOptions {
            slots: 1,
            queue_time: Some(Duration::ZERO),
            ..ServeOptions::default()
        })
    };
    let requests = [("", short(json!({"queue_seconds": 60})))];
    let (_server, answers) = while_busy(server, 1, &requests);
    assert_eq!(refusal(&answers[0]), (503, "queue_timeout".to_string()));
    assert!(answers[0].error().contains("--queue-seconds"));
}

#[test]
fn a_key_that_fills_the_queue_makes_room_for_others() {
    let server = || {
        start_only(ServeOptions {
            slots: 1,
            queue: 3,
            api_keys: vec!["one".into(), "two".into()],
            ..ServeOptions::default()
        })
    };
    let requests = [("one", short(json!({}))), ("two", short(json!({})))];
    let is_full = |server: &Running| counted(server, "tercet_queue_refusals_total ");
    let mut tries = (0..20).filter_map(|_| {
        let server = server();
        let answers = while_busy_once(&server, 4, &requests[..1])?;
        Some((is_full(&server), answers))
    });
    let (refusals, answers) = tries.next().expect("the queue is full");
    assert_eq!(refusal(&answers[0]), (503, "overloaded".to_string()));
    assert_eq!(refusals, 1.0);
    // The request of the other key takes a place, so the one that fills the queue ends.
    let mut tries = (0..20).filter_map(|_| {
        let server = server();
        let own = Mutex::new(None);
        let (was_full, other) = std::thread::scope(|scope| {
            scope.spawn(|| {
                let long = json!({"prompt": "fn", "max_tokens": 180, "ignore_eos": true, "n": 4});
                *own.lock().unwrap() = Some(ask(&server, "one", &long));
            });
            let was_full = waits_for(&server, QUEUED, 3);
            (was_full, ask(&server, "two", &requests[1].1))
        });
        assert_eq!(other.status, 200, "{}", other.text());
        let own = own.into_inner().unwrap().unwrap();
        (was_full && own.status != 200).then_some(own)
    });
    let own = tries.next().expect("a request loses its place");
    assert_eq!(refusal(&own), (503, "overloaded".to_string()));
}

/// A small request of each route of a model that requests wait for.
fn requests() -> Vec<(&'static str, Value)> {
    let messages = json!([{"role": "user", "content": "hi"}]);
    let inputs = json!([
        {"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]},
        {"name": "k", "shape": [], "datatype": "INT32", "data": [1]},
    ]);
    let tiny = |body: Value| {
        let mut body = body;
        body["model"] = MODEL.into();
        body
    };
    vec![
        ("/v1/completions", tiny(json!({"prompt": "fn"}))),
        ("/v1/chat/completions", tiny(json!({"messages": messages}))),
        ("/v1/responses", tiny(json!({"input": "hi"}))),
        (
            "/v1/messages",
            tiny(json!({"messages": messages, "max_tokens": 1})),
        ),
        (
            "/api/chat",
            tiny(json!({"messages": messages, "stream": false})),
        ),
        (
            "/api/generate",
            tiny(json!({"prompt": "fn", "stream": false})),
        ),
        ("/v2/models/rows/infer", json!({"inputs": inputs})),
    ]
}

/// Sets a term of a request in the place that the route has for it.
fn with_term(route: &str, body: &Value, name: &str, value: &Value) -> Value {
    let mut body = body.clone();
    match route.starts_with("/v2") {
        true => body["parameters"] = json!({name: value}),
        false => body[name] = value.clone(),
    }
    body
}

#[test]
fn all_routes_take_the_terms_and_refuse_wrong_ones() {
    let server = shared();
    for (route, body) in requests() {
        for (name, value) in [
            ("priority", json!("high")),
            ("priority", json!(0.5)),
            ("priority", json!(1u64 << 40)),
            ("queue_seconds", json!(-1)),
            ("queue_seconds", json!(1e300)),
            ("deadline_seconds", json!("1")),
            ("deadline_seconds", json!([])),
            ("cache_salt", json!(1)),
            ("cache_salt", json!("x".repeat(300))),
        ] {
            let answer = server.post(route, &with_term(route, &body, name, &value));
            assert_eq!(answer.status, 400, "{route} {name}: {}", answer.text());
            assert!(answer.text().contains(name), "{route}: {}", answer.text());
        }
        let now = with_term(route, &body, "deadline_seconds", &json!(0));
        let answer = server.post(route, &now);
        assert_eq!(answer.status, 504, "{route}: {}", answer.text());
        let later = with_term(route, &body, "deadline_seconds", &json!(100));
        let answer = server.post(route, &later);
        assert_eq!(answer.status, 200, "{route}: {}", answer.text());
    }
}

#[test]
fn encoders_and_rerankers_take_the_terms() {
    let server = start_folders(
        &["encoders/sentence-a", "encoders/reranker-a"],
        ServeOptions::default(),
    );
    for (route, model, body) in [
        ("/v1/embeddings", "sentence-a", json!({"input": "a"})),
        ("/api/embed", "sentence-a", json!({"input": "a"})),
        ("/api/embeddings", "sentence-a", json!({"prompt": "a"})),
        (
            "/v1/rerank",
            "reranker-a",
            json!({"query": "a", "documents": ["b"]}),
        ),
        (
            "/score",
            "reranker-a",
            json!({"text_1": "a", "text_2": "b"}),
        ),
    ] {
        let mut body = body;
        body["model"] = model.into();
        for (name, value, status) in [
            ("priority", json!("high"), 400),
            ("deadline_seconds", json!(0), 504),
            ("queue_seconds", json!(0), 200),
        ] {
            let answer = server.post(route, &with_term(route, &body, name, &value));
            assert_eq!(answer.status, status, "{route} {name}: {}", answer.text());
        }
    }
}
