//! Graphs over the Open Inference Protocol.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::server::{Answer, shared};

const INFER: &str = "/v2/models/rows/infer";
const OCTETS: &str = "application/octet-stream";

fn request(x: Value, k: Value) -> Value {
    json!({"id": "42", "inputs": [
        {"name": "x", "shape": [2, 3], "datatype": "FP32", "data": x},
        {"name": "k", "shape": [], "datatype": "INT32", "data": k},
    ]})
}

fn numbers(value: &Value) -> Vec<f64> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|x| x.as_f64().unwrap())
        .collect()
}

#[test]
fn a_graph_is_described() {
    let server = shared();
    let json = server.get("/v2/models/rows").json();
    let inputs = json!([{"name": "x", "datatype": "FP32", "shape": [-1, 3]}, {"name": "k", "datatype": "INT32", "shape": []}]);
    assert_eq!(json["inputs"], inputs);
    assert_eq!(
        json["outputs"][2],
        json!({"name": "b", "datatype": "BOOL", "shape": [-1, 3]})
    );
    assert_eq!(server.get("/v2/models/rows/ready").status, 200);
    assert_eq!(server.get("/v2/models/tiny").status, 404);
    assert_eq!(json["versions"], json!(["1"]));
    assert_eq!(server.get("/v2/models/rows/versions/1").json(), json);
    assert_eq!(server.get("/v2/models/rows/versions/1/ready").status, 200);
    let other = server.get("/v2/models/rows/versions/2");
    assert_eq!(other.status, 404);
    assert!(other.error().contains("has only version 1"));
    // The message of an error is a string, as the protocol specifies.
    let config = server.get("/v2/models/rows/config");
    assert_eq!(config.status, 404);
    assert!(config.json()["error"].is_string());
    assert_eq!(
        server.get("/v2").json()["extensions"],
        json!(["binary_tensor_data"])
    );
    assert_eq!(server.get("/v2/health/ready").status, 200);
}

#[test]
fn tensors_in_json_flat_and_nested() {
    let server = shared();
    for x in [json!([0, 0, 0, 1, 2, 3]), json!([[0, 0, 0], [1, 2, 3]])] {
        let answer = server.post(INFER, &request(x, json!([2])));
        assert_eq!(answer.status, 200, "{}", answer.text());
        let json = answer.json();
        assert_eq!(
            (&json["id"], &json["model_name"]),
            (&json!("42"), &json!("rows"))
        );
        let [y, w, b] = json["outputs"].as_array().unwrap().as_slice() else {
            panic!("{json}")
        };
        assert_eq!(
            (&y["name"], &y["shape"], &y["datatype"]),
            (&json!("y"), &json!([2, 3]), &json!("FP32"))
        );
        assert!((numbers(&y["data"])[0] - 1.0 / 3.0).abs() < 1e-6);
        assert_eq!(numbers(&w["data"]), [0.0, 0.0, 0.0, 2.0, 4.0, 6.0]);
        assert_eq!(b["data"], json!([false, false, false, true, true, true]));
    }
    let mut one = request(json!([0, 0, 0, 1, 2, 3]), json!([2]));
    one["outputs"] = json!([{"name": "w"}]);
    assert_eq!(
        server.post(INFER, &one).json()["outputs"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
}

/// A request with the binary input `x`.
fn binary(x: &[f32], outputs: Value) -> (usize, Vec<u8>) {
    let head = json!({"inputs": [
        {"name": "x", "shape": [x.len() / 3, 3], "datatype": "FP32", "parameters": {"binary_data_size": x.len() * 4}},
        {"name": "k", "shape": [], "datatype": "INT32", "data": [3]},
    ], "outputs": outputs});
    let mut body = head.to_string().into_bytes();
    let length = body.len();
    body.extend(x.iter().flat_map(|v| v.to_le_bytes()));
    (length, body)
}

fn send(length: usize, body: &[u8]) -> Answer {
    let length = length.to_string();
    shared().send(
        INFER,
        &[
            ("content-type", OCTETS),
            ("inference-header-content-length", &length),
        ],
        body,
    )
}

#[test]
fn tensors_in_binary() {
    let x = [1.5f32, -2.0, f32::INFINITY];
    let outputs = json!([{"name": "w", "parameters": {"binary_data": true}}, {"name": "b", "parameters": {"binary_data": true}}]);
    let (length, body) = binary(&x, outputs);
    let answer = send(length, &body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let (head, data) = answer.body.split_at(answer.header_length.unwrap());
    let head: Value = serde_json::from_slice(head).unwrap();
    assert_eq!(head["outputs"][0]["parameters"]["binary_data_size"], 12);
    let w: Vec<f32> = data[..12]
        .chunks(4)
        .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
        .collect();
    assert_eq!(w, [4.5, -6.0, f32::INFINITY]);
    assert_eq!(data[12..], [1, 0, 0]);
    // JSON cannot represent infinity.
    let (length, body) = binary(&x, json!([{"name": "w"}]));
    let refused = send(length, &body);
    assert_eq!(refused.status, 422);
    assert!(refused.error().contains("`w`"));
}

#[test]
fn what_does_not_fit_is_refused() {
    let server = shared();
    let good = || request(json!([0, 0, 0, 1, 2, 3]), json!([2]));
    let cases: [(&str, Value, &str); 16] = [
        ("/inputs/0/name", json!("z"), "one of: x, k"),
        ("/inputs/0/datatype", json!("FP64"), "expected FP32"),
        ("/inputs/0/shape", json!([3, 3]), "shape"),
        ("/inputs/0/shape", json!([-1, 3]), "shape"),
        (
            "/inputs/0/shape",
            json!([4_294_967_296u64, 4_294_967_296u64, 3]),
            "shape",
        ),
        ("/inputs/0/shape", json!([3, 2]), "`x`"),
        ("/inputs/0/data", json!([0, 0, 0, 1, 2, "3"]), "a number"),
        ("/inputs/0/data", json!({"a": 1}), "a list"),
        ("/inputs/1/data", json!([2.5]), "whole number"),
        ("/inputs/1/data", json!([3_000_000_000u64]), "whole number"),
        ("/inputs/1/name", json!("x"), "expected FP32"),
        ("/inputs/0/data", Value::Null, "is required"),
        (
            "/inputs/0/parameters",
            json!({"binary_data_size": 24}),
            "exclude each other",
        ),
        ("/inputs", json!([]), "`x`"),
        ("/outputs", json!([{"name": "q"}]), "one of: y, w, b"),
        ("/parameters", json!({"sequence_id": 1}), "sequence_id"),
    ];
    for (place, value, named) in cases {
        let mut request = good();
        match request.pointer_mut(place) {
            Some(found) => *found = value.clone(),
            None => {
                let (parent, field) = place.rsplit_once('/').unwrap();
                request.pointer_mut(parent).unwrap()[field] = value.clone();
            }
        }
        let answer = server.post(INFER, &request);
        assert_eq!(answer.status, 400, "{place} {value}: {}", answer.text());
        assert!(
            answer.error().contains(named),
            "{place} {value}: {}",
            answer.error()
        );
    }
    let mut rows = good();
    rows["inputs"][0]["shape"] = json!([9, 3]);
    rows["inputs"][0]["data"] = json!(vec![0; 27]);
    assert!(server.post(INFER, &rows).error().contains("bound 8"));
}

#[test]
fn binary_bodies_that_are_cut_or_too_long() {
    let (length, body) = binary(&[0.0; 6], json!([{"name": "w"}]));
    assert!(
        send(length, &body[..body.len() - 1])
            .error()
            .contains("`binary_data_size` is 24, but the body has 23 more bytes")
    );
    let mut longer = body.clone();
    longer.push(0);
    assert!(send(length, &longer).error().contains("1 trailing bytes"));
    assert!(
        send(body.len() + 1, &body)
            .error()
            .contains("not a valid length within")
    );
    assert!(send(length - 1, &body).error().contains("not JSON"));
}

#[test]
fn clients_that_do_not_say_what_they_send() {
    let server = shared();
    let body = request(json!([0, 0, 0, 1, 2, 3]), json!([2])).to_string();
    let status = |route: &str, more: &str| {
        let mut stream = TcpStream::connect(&server.address).unwrap();
        let head = format!(
            "POST {route} HTTP/1.1\r\nhost: {}\r\ncontent-length: {}\r\nconnection: close\r\n{more}\r\n",
            server.address,
            body.len()
        );
        stream.write_all((head + &body).as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer[9..12].to_string()
    };
    assert_eq!(status(INFER, ""), "200");
    assert_eq!(status("/v2/models/rows/versions/1/infer", ""), "200");
    assert_eq!(status("/v2/models/rows/versions/2/infer", ""), "404");
    // Browsers send the origin.
    assert_eq!(status(INFER, "origin: http://evil.example\r\n"), "403");
    let own = format!("origin: http://{}\r\n", server.address);
    assert_eq!(status(INFER, &own), "200");
    assert_eq!(status(INFER, "content-encoding: gzip\r\n"), "415");
    // Only the inference route accepts any media type.
    assert_eq!(status("/v1/completions", ""), "415");
}
