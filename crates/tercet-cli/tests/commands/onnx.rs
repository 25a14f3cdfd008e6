//! ONNX models through the commands: run, inspect, explain, verify, trace.

use crate::common::{Scratch, bad, f32s, good, json, npy, usable_devices};
use prost::Message;
use tercet_onnx::proto::*;

fn text(s: &str) -> Option<String> {
    Some(s.to_string())
}

/// Name and type of a tensor. Dimensions that are not numbers become symbols.
fn info(name: &str, elem_type: i32, dims: &[&str]) -> ValueInfoProto {
    let dim = |d: &&str| DimensionProto {
        dim_value: d.parse().ok(),
        dim_param: d.parse::<i64>().is_err().then(|| d.to_string()),
    };
    let shape = Some(TensorShapeProto {
        dim: dims.iter().map(dim).collect(),
    });
    let value = Some(TypeValue::Tensor(TensorTypeProto {
        elem_type: Some(elem_type),
        shape,
    }));
    ValueInfoProto {
        name: text(name),
        r#type: Some(TypeProto { value }),
    }
}

fn node(op: &str, input: &[&str], output: &str) -> NodeProto {
    NodeProto {
        op_type: text(op),
        input: input.iter().map(|s| s.to_string()).collect(),
        output: vec![output.to_string()],
        ..NodeProto::default()
    }
}

/// `y = relu(reshape(x @ w, shape))` with `x [rows, 9]`, and `z = x @ w`.
fn model() -> ModelProto {
    let weights = (0..9 * 8).map(|i| f32::from(i as u8) / 8.0 - 4.0);
    let w = TensorProto {
        name: text("w"),
        dims: vec![9, 8],
        data_type: Some(1),
        float_data: weights.collect(),
        ..TensorProto::default()
    };
    let graph = GraphProto {
        node: vec![
            node("MatMul", &["x", "w"], "z"),
            node("Reshape", &["z", "shape"], "r"),
            node("Relu", &["r"], "y"),
        ],
        initializer: vec![w],
        input: vec![info("x", 1, &["rows", "9"]), info("shape", 7, &["2"])],
        output: vec![info("y", 1, &["?", "?"]), info("z", 1, &["rows", "8"])],
        ..GraphProto::default()
    };
    ModelProto {
        ir_version: Some(9),
        producer_name: text("by hand"),
        graph: Some(graph),
        opset_import: vec![OperatorSetIdProto {
            domain: None,
            version: Some(18),
        }],
        metadata_props: vec![StringStringEntryProto {
            key: text("author"),
            value: text("nobody"),
        }],
        ..ModelProto::default()
    }
}

struct Files {
    dir: Scratch,
    model: String,
    x: String,
    shape: String,
}

fn files(test: &str) -> Files {
    let dir = Scratch::new(test);
    let ones = npy("<f4", "(2, 9)", &f32s(&[1.0; 18]));
    let sizes: Vec<u8> = [-1i64, 4].iter().flat_map(|n| n.to_le_bytes()).collect();
    Files {
        model: dir.file("m.onnx", model().encode_to_vec()),
        x: format!("x={}", dir.file("x.npy", ones)),
        shape: format!("shape={}", dir.file("s.npy", npy("<i8", "(2,)", &sizes))),
        dir,
    }
}

#[test]
fn a_model_runs_on_every_device_and_writes_its_outputs() {
    let f = files("onnx-run");
    // Columns of the weights: sums of j / 8 + i - 4 over nine rows i.
    let sums: Vec<f64> = (0..8).map(|j| 9.0 * f64::from(j) / 8.0).collect();
    for device in usable_devices() {
        let given = ["-i", &f.x, "-i", &f.shape, "--device", &device];
        let rows = json(&[&["run", &f.model, "--json"], &given[..]].concat());
        assert_eq!(rows[0]["name"], "y");
        assert_eq!(rows[0]["shape"], serde_json::json!([4, 4]));
        let z: Vec<f64> = serde_json::from_value(rows[1]["values"].clone()).unwrap();
        assert_eq!(z, [sums.clone(), sums.clone()].concat(), "{device}");
    }
    let to = f.dir.path("out.npz");
    good(&["run", &f.model, "-i", &f.x, "-i", &f.shape, "-o", &to]);
    let archive = std::fs::read(&to).unwrap();
    let has = |name: &[u8]| archive.windows(name.len()).any(|w| w == name);
    assert!(has(b"y.npy") && has(b"z.npy"));
}

#[test]
fn inspect_says_what_the_file_declares() {
    let f = files("onnx-inspect");
    let about = json(&["inspect", &f.model, "--json"]);
    assert_eq!(about["opsets"]["ai.onnx"], 18);
    assert_eq!(about["metadata"]["author"], "nobody");
    assert_eq!(about["operators"]["MatMul"], 1);
    assert_eq!(
        about["inputs"][0]["shape"],
        serde_json::json!(["rows", "9"])
    );
    assert_eq!(about["parameters"], 72);
    assert_eq!(about["deciding"], serde_json::json!(["shape"]));
    assert_eq!(about["unsupported"], serde_json::json!([]));
    let shown = good(&["inspect", &f.model]).out;
    for part in [
        "x      float [rows, 9]",
        "determines shapes",
        "3 nodes",
        "by hand",
    ] {
        assert!(shown.contains(part), "no {part:?} in {shown}");
    }
    let mut other = model();
    other.graph.as_mut().unwrap().node[2].op_type = text("Nonsense");
    let other = f.dir.file("other.onnx", other.encode_to_vec());
    let shown = good(&["inspect", &other]).out;
    assert!(shown.contains("cannot run the model"), "{shown}");
    assert!(shown.contains("1  Nonsense"), "{shown}");
}

#[test]
fn explain_verify_and_trace_take_models() {
    let f = files("onnx-look");
    let explained = good(&[
        "explain", &f.model, "-i", &f.shape, "--bound", "rows=4", "--device", "cpu",
    ]);
    assert!(explained.out.contains("mat_mul"), "{}", explained.out);
    let verified = [
        "verify", &f.model, "-i", &f.x, "-i", &f.shape, "--json", "--device", "cpu",
    ];
    assert_eq!(json(&verified)["agrees"], true);
    let to = f.dir.path("trace.json");
    let mut trace = vec!["trace", "-m", &f.model, "-i", &f.shape, "-b", "rows=4"];
    trace.extend(["-n", "1", "--device", "cpu", "-o", &to]);
    good(&trace);
    let trace: serde_json::Value = serde_json::from_slice(&std::fs::read(&to).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    assert_eq!(events.iter().filter(|e| e["name"] == "run").count(), 2);
}

#[test]
fn integers_that_graphs_do_not_have_are_read_from_arrays() {
    let dir = Scratch::new("onnx-integers");
    let mut model = model();
    let to_double = |from: &str, to: &str| {
        let mut cast = node("Cast", &[from], to);
        cast.attribute.push(AttributeProto {
            name: text("to"),
            i: Some(11),
            r#type: Some(2),
            ..AttributeProto::default()
        });
        cast
    };
    model.graph = Some(GraphProto {
        node: vec![
            to_double("a", "x"),
            to_double("b", "y"),
            to_double("c", "z"),
        ],
        input: vec![
            info("a", 4, &["2"]),
            info("b", 5, &["2"]),
            info("c", 13, &["2"]),
        ],
        output: vec![
            info("x", 11, &["2"]),
            info("y", 11, &["2"]),
            info("z", 11, &["2"]),
        ],
        ..GraphProto::default()
    });
    let model = dir.file("m.onnx", model.encode_to_vec());
    let bytes = |list: [u64; 2], n: usize| -> Vec<u8> {
        list.iter()
            .flat_map(|x| x.to_le_bytes()[..n].to_vec())
            .collect()
    };
    let beyond = [u64::MAX - 2047, 7];
    let a = dir.file("a.npy", npy("<u2", "(2,)", &bytes([65535, 3], 2)));
    let b = dir.file(
        "b.npy",
        npy("<i2", "(2,)", &bytes([(-5i16) as u16 as u64, 9], 2)),
    );
    let c = dir.file("c.npy", npy("<u8", "(2,)", &bytes(beyond, 8)));
    let given = [format!("a={a}"), format!("b={b}"), format!("c={c}")];
    let mut command = vec!["run", &model, "--json", "--device", "cpu"];
    given.iter().for_each(|g| command.extend(["-i", g]));
    let rows = json(&command);
    let values =
        |at: usize| -> Vec<f64> { serde_json::from_value(rows[at]["values"].clone()).unwrap() };
    assert_eq!(values(0), [65535.0, 3.0]);
    assert_eq!(values(1), [-5.0, 9.0]);
    assert_eq!(values(2), [beyond[0] as f64, 7.0]);
    // An input of 64-bit integers with a sign does not take them.
    let f = files("onnx-integers-beyond");
    let shape = f
        .dir
        .file("u.npy", npy("<u8", "(2,)", &bytes([u64::MAX, 4], 8)));
    let shape = format!("shape={shape}");
    bad(
        &["run", &f.model, "-i", &f.x, "-i", &shape],
        2,
        &["`shape`", "i64"],
    );
}

#[test]
fn what_is_wrong_is_named() {
    let f = files("onnx-wrong");
    bad(
        &["run", &f.model, "-i", &f.x],
        1,
        &["#1 (Reshape)", "`shape`", "--input NAME=FILE.npy"],
    );
    bad(&["run", &f.model, "-i", &f.shape], 2, &["`x`", "missing"]);
    bad(
        &["explain", &f.model, "-i", &f.shape],
        2,
        &["`rows`", "--bound rows=N"],
    );
    bad(
        &["verify", &f.model, "-i", &f.shape, "--dtype", "f16"],
        2,
        &["--dtype", "ONNX"],
    );
    bad(
        &["trace", "-m", &f.model, "-p", "x", "-i", &f.shape],
        2,
        &["--prompt"],
    );
    bad(&["trace", "--bound", "rows=1"], 2, &["ONNX"]);
    let cut = &model().encode_to_vec()[..60];
    let cut = f.dir.file("cut.onnx", cut);
    for command in ["run", "inspect", "explain", "verify"] {
        bad(&[command, &cut], 1, &["cut.onnx", "not an ONNX file"]);
        bad(&[command, "none.onnx"], 1, &["none.onnx"]);
    }
}

/// Weights, a symbol with a bound, and an output whose size depends on data.
#[cfg(feature = "serve")]
#[test]
fn a_model_is_served() {
    use crate::common::serving;

    let w = TensorProto {
        name: text("w"),
        dims: vec![3, 2],
        data_type: Some(1),
        float_data: vec![1.0, 0.0, 0.0, 1.0, 1.0, 1.0],
        ..TensorProto::default()
    };
    let graph = GraphProto {
        node: vec![
            node("MatMul", &["x", "w"], "y"),
            node("NonZero", &["x"], "places"),
        ],
        initializer: vec![w],
        input: vec![info("x", 1, &["rows", "3"])],
        output: vec![
            info("y", 1, &["rows", "2"]),
            info("places", 7, &["2", "count"]),
        ],
        ..GraphProto::default()
    };
    let scratch = Scratch::new("onnx-serve");
    let model = ModelProto {
        graph: Some(graph),
        ..self::model()
    };
    let path = scratch.file("tiny.onnx", model.encode_to_vec());
    let flags = ["--port", "0", "--device", "cpu", "--log-format", "json"];
    let server = serving(&[&["serve", "-m", &path, "--bound", "rows=8"], &flags[..]].concat());
    for rows in [1, 2, 8] {
        let mut x = vec![0.0; rows * 3];
        (x[0], x[rows * 3 - 1]) = (2.0, 5.0);
        let input =
            serde_json::json!({"name": "x", "shape": [rows, 3], "datatype": "FP32", "data": x});
        let both = server.post(
            "/v2/models/tiny/infer",
            &serde_json::json!({"inputs": [input]}),
        );
        let outputs = both["outputs"].as_array().unwrap();
        let names: Vec<_> = outputs
            .iter()
            .map(|o| o["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, ["y", "places"]);
        assert_eq!(outputs[0]["shape"], serde_json::json!([rows, 2]));
        assert_eq!(outputs[1]["shape"], serde_json::json!([2, 2]));
        let last = (rows - 1) as u64;
        assert_eq!(outputs[1]["data"], serde_json::json!([0, last, 0, 2]));
        let one = server.post(
            "/v2/models/tiny/infer",
            &serde_json::json!({"inputs": [input], "outputs": [{"name": "places"}]}),
        );
        assert_eq!(one["outputs"].as_array().unwrap(), &outputs[1..]);
    }
    drop(server);
    let unbounded = ["serve", "-m", &path, "--port", "0", "--device", "cpu"];
    bad(&unbounded, 2, &["--bound rows=N"]);
}
