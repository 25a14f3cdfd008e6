//! `embed`, `rerank` and `classify` on small encoder folders.

use crate::common::{Scratch, bad, data, good, json};
use serde_json::Value;

const A: &str = "encoders/sentence-a";

fn reference(name: &str) -> Value {
    let path = format!("{}/sentences.json", data(name));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn floats(v: &Value) -> Vec<f64> {
    let all = v.as_array().unwrap().iter();
    all.map(|x| x.as_f64().unwrap()).collect()
}

fn near(got: &[f64], want: &[f64]) {
    assert_eq!(got.len(), want.len());
    for (x, y) in got.iter().zip(want) {
        assert!((x - y).abs() < 1e-4, "{x} instead of {y}");
    }
}

#[test]
fn a_vector_is_one_line() {
    let model = data(A);
    let out = good(&["embed", "-m", &model, "--json", "a cat", "the dog"]).out;
    let lines: Vec<&str> = out.lines().map(str::trim).collect();
    let vectors = lines
        .iter()
        .filter(|line| line.starts_with("\"embedding\": ["));
    assert_eq!(
        vectors.filter(|line| line.ends_with(']')).count(),
        2,
        "{out}"
    );
    // Two lines of the document, and four of each text.
    assert_eq!(lines.len(), 10, "{out}");
}

#[test]
fn embed_takes_lines_prompts_and_dimensions() {
    let scratch = Scratch::new("encoders-embed");
    let model = data(A);
    let want = reference(A);
    let texts: Vec<&str> = want["texts"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_str)
        .collect();
    // Blank lines of a file are skipped.
    let texts: Vec<&str> = texts.into_iter().filter(|t| !t.is_empty()).collect();
    let file = scratch.file("texts.txt", texts.join("\n\n"));
    for case in want["cases"].as_array().unwrap() {
        let mut args = vec![
            "embed",
            "-m",
            &model,
            "--file",
            &file,
            "--json",
            "--truncate",
        ];
        let dims = case["dims"].as_u64().map(|n| n.to_string());
        if let Some(name) = case["prompt"].as_str() {
            args.extend(["--prompt", name]);
        }
        if let Some(dims) = &dims {
            args.extend(["--dims", dims]);
        }
        let v = json(&args);
        let got: Vec<f64> = v
            .as_array()
            .unwrap()
            .iter()
            .flat_map(|row| floats(&row["embedding"]))
            .collect();
        let all = floats(&case["want"]);
        let width = all.len() / 5;
        // The third text of the reference is empty.
        let all = [&all[..2 * width], &all[3 * width..]].concat();
        near(&got, &all);
    }
    let npy = scratch.path("out.npy");
    let said = good(&["embed", "-m", &model, "--npy", &npy, "a cat", "the dog"]);
    assert_eq!(said.out, "");
    let bytes = std::fs::read(&npy).unwrap();
    let text = String::from_utf8_lossy(&bytes[..128]);
    assert!(text.contains("'<f4'") && text.contains("(2, 10)"), "{text}");
    assert_eq!(bytes.len() % 64, 2 * 10 * 4 % 64);
}

#[test]
fn what_embed_cannot_do_is_said() {
    let model = data(A);
    let long = "a cat a cat a cat a cat a cat";
    bad(
        &["embed", "-m", &model, "a", long],
        1,
        &["text 2 has 12 tokens", "at most 9", "--truncate"],
    );
    good(&["embed", "-m", &model, "--truncate", "a", long]);
    good(&["embed", "-m", &model, "--max-len", "12", "a", long]);
    bad(
        &["embed", "-m", &model, "--prompt", "qurey", "a"],
        1,
        &["qurey", "query"],
    );
    bad(
        &["embed", "-m", &model, "--dims", "11", "a"],
        1,
        &["11 dimensions", "have 10"],
    );
    bad(
        &["embed", "-m", &model, "--npy", "/nowhere/out.npy", "a"],
        1,
        &["/nowhere"],
    );
    bad(
        &[
            "embed",
            "-m",
            &model,
            "--prompt",
            "query",
            "--prompt-text",
            "x",
            "a",
        ],
        2,
        &["--prompt-text"],
    );
    bad(&["classify", "-m", &model, "a"], 1, &["BertModel"]);
    bad(&["rerank", "-m", &model, "a"], 2, &["no documents"]);
}

#[test]
fn rerank_orders_documents() {
    let name = "encoders/reranker-a";
    let (model, want) = (data(name), reference(name));
    let case = &want["cases"][0];
    let texts: Vec<&str> = want["texts"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_str)
        .collect();
    let query = case["query"].as_str().unwrap();
    let mut args = vec!["rerank", "-m", &model, "--json", query];
    args.extend(&texts);
    let v = json(&args);
    let want = floats(&case["want"]);
    let rows = v.as_array().unwrap();
    assert_eq!(rows.len(), texts.len());
    let mut last = f64::INFINITY;
    for row in rows {
        let (at, score) = (
            row["index"].as_u64().unwrap() as usize,
            row["score"].as_f64().unwrap(),
        );
        near(&[score], &[want[at]]);
        assert_eq!(row["text"], texts[at]);
        assert!(score <= last);
        last = score;
    }
    let top = good(&[
        "rerank", "-m", &model, "--top", "1", query, texts[0], texts[1],
    ])
    .out;
    assert_eq!(top.lines().count(), 1, "{top}");
    assert!(top.contains("[2]"), "{top}");
}

#[test]
fn classify_tells_labels() {
    let model = data("encoders/reranker-a");
    let v = json(&["classify", "-m", &model, "--json", "a cat"]);
    assert_eq!(v[0]["label"], "LABEL_0");
    assert_eq!(v[0]["score"], v[0]["scores"]["LABEL_0"]);
    let out = good(&["classify", "-m", &model, "a cat", "the dog"]).out;
    assert_eq!(out.lines().count(), 2, "{out}");
    assert!(out.lines().all(|line| line.contains("LABEL_0")), "{out}");
    // This folder has no tokenizer.
    bad(
        &["classify", "-m", &data("encoders/bert-a"), "a"],
        1,
        &["tokenizer.json"],
    );
}

#[test]
fn an_encoder_decoder_writes_a_text_for_a_text() {
    let model = data("text-to-text/t5-a");
    let of = |more: &[&str]| {
        let args = [
            "generate",
            "-m",
            &model,
            "--json",
            "-p",
            "translate the red bird",
        ];
        json(&[&args[..], more].concat())
    };
    let v = of(&["-n", "5", "--seed", "5"]);
    // The tokenizer appends an end token.
    assert_eq!(v["prompt_tokens"], serde_json::json!([3, 6, 13, 10, 1]));
    assert_eq!(v["tokens"].as_array().map(Vec::len), Some(5), "{v}");
    assert_eq!(v, {
        let mut again = of(&["-n", "5", "--temp", "0", "--seed", "5"]);
        for time in ["load_seconds", "prefill", "decode"] {
            again[time] = v[time].clone();
        }
        again
    });
    let drawn = |seed: &str| of(&["-n", "8", "--temp", "2", "--seed", seed])["tokens"].clone();
    assert_eq!(drawn("1"), drawn("1"));
    assert_ne!(drawn("1"), drawn("2"));
    let out = good(&["generate", "-m", &model, "-p", "the cat", "-n", "3"]).out;
    assert!(
        !out.contains("the cat"),
        "what is read is not written: {out}"
    );
    let refused = |more: &[&str], code, said| {
        let args = ["generate", "-m", &model, "-p", "the cat"];
        bad(&[&args[..], more].concat(), code, &[said]);
    };
    refused(&["--dtype", "f16"], 2, "f32");
    refused(&["--lora", "x"], 2, "--lora");
    refused(&["--chat"], 2, "no chat mode");
    refused(&["--context", "2"], 1, "2");
    // `embed` runs only the encoder.
    let rows = json(&["embed", "-m", &model, "--json", "the cat"]);
    assert_eq!(rows[0]["embedding"].as_array().map(Vec::len), Some(12));
}

/// Names of the measurements; each must have a positive time.
fn measured(args: &[&str]) -> Vec<String> {
    let args = [&["bench", "-r", "1", "--device", "cpu", "--json"], args].concat();
    let report = json(&args);
    let tests = report["tests"].as_array().unwrap().clone();
    for test in &tests {
        assert!(test["milliseconds"].as_f64().unwrap() > 0.0, "{report}");
        assert_eq!(test["seconds"].as_array().unwrap().len(), 1);
    }
    let named = tests.iter().map(|test| {
        let items = test["items"].as_f64().unwrap();
        let tokens = test["tokens"].as_u64();
        let tokens = tokens.map_or(String::new(), |n| format!(" x {n}"));
        format!("{} {items}{tokens}", test["test"].as_str().unwrap())
    });
    named.collect()
}

#[test]
fn bench_measures_texts_pictures_and_recordings() {
    let scratch = Scratch::new("encoders-bench");
    let file = scratch.file("texts.txt", "a cat\n\nthe dog\na bird\n");
    let texts = data(A);
    let args = ["-m", &texts, "-b", "3", "-p", "7", "-f", &file];
    assert_eq!(measured(&args), ["texts 3 x 7", "file 3"]);
    let pictures = data("vision/clip-a");
    let found = measured(&["-m", &pictures, "-b", "2", "-p", "4"]);
    let want = ["pictures 2", "pictures on the device 2", "texts 2 x 4"];
    assert_eq!(found, want);
    let speech = data("speech/whisper-b");
    let found = measured(&["-m", &speech, "-n", "5"]);
    let want = ["features 5", "encoder 5", "text 5 x 5", "recording 5 x 5"];
    assert_eq!(found, want);
    let table = good(&[
        "bench", "-m", &texts, "-b", "2", "-r", "1", "--device", "cpu",
    ])
    .out;
    assert!(
        table.starts_with("| model | device | dtype | test | ms | items/s |"),
        "{table}"
    );
    for (args, named) in [
        (vec!["-m", &speech, "-b", "2"], "leave out --batch"),
        (vec!["-m", &pictures, "-f", &file], "--file"),
        (vec!["-m", &texts, "-c", "8"], "--context"),
    ] {
        let args = [vec!["bench", "--device", "cpu"], args].concat();
        let status = if named == "--context" { 2 } else { 1 };
        bad(&args, status, &[named]);
    }
}

#[test]
fn classify_joins_tokens_to_pieces() {
    let model = data("encoders/tagger-a");
    let all = reference("encoders/tagger-a");
    let text = all["texts"][3].as_str().unwrap();
    let args = [
        "classify", "-m", &model, "--device", "cpu", "--join", "--json", text,
    ];
    let found = json(&args)[0]["entities"].clone();
    let want = all["cases"][0]["entities"][3].as_array().unwrap();
    let found = found.as_array().unwrap();
    assert_eq!(found.len(), want.len());
    for (found, want) in found.iter().zip(want) {
        assert_eq!(found["label"], want["name"]);
        let span = |v: &Value| [v["start"].as_u64().unwrap(), v["end"].as_u64().unwrap()];
        assert_eq!(span(found), span(want));
        let [start, end] = span(want).map(|n| n as usize);
        assert_eq!(found["text"], text[start..end]);
    }
    let people = good(&["classify", "-m", &model, "--device", "cpu", "--join", text]).out;
    assert!(people.contains("PLACE  tree"), "{people}");
    let model = data("encoders/reranker-a");
    bad(
        &["classify", "-m", &model, "--device", "cpu", "--join", text],
        2,
        &["--join"],
    );
}

#[test]
fn gguf_files_embed() {
    let file = data("encoders/gguf/bert-q8_0.gguf");
    let path = data("encoders/gguf/bert-q8_0.json");
    let want: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let text = want["texts"][0].as_str().unwrap();
    for dtype in ["f32", "auto"] {
        let args = [
            "embed", "-m", &file, "--device", "cpu", "--dtype", dtype, "--json", text,
        ];
        let found = floats(&json(&args)[0]["embedding"]);
        near(&found, &floats(&want["cases"][0]["want"])[..found.len()]);
    }
    let args = ["classify", "-m", &file, "--device", "cpu", text];
    bad(&args, 1, &["bert in GGUF for classification"]);
}

#[test]
fn rankings_show_one_short_line_for_each_document() {
    let model = data("encoders/reranker-a");
    let long = "a cat ".repeat(5000);
    let args = [
        "rerank",
        "-m",
        &model,
        "--truncate",
        "a cat",
        &long,
        "the dog",
    ];
    let out = good(&args).out;
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines.len(), 2, "{out}");
    assert!(lines.iter().all(|line| line.len() < 200), "{out}");
}
