//! The inputs of `tests/data/cases`, which once gave wrong answers, errors without a reason, panics,
//! hangs or unbounded memory. Each command ends within a time and an address space.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{Run, Scratch, data, f32s, npy, text, usable_devices};

/// Maximum time of a command. The slowest takes a third of a second on two free processors.
const SECONDS: u64 = 30;
/// Maximum address space of a command on the CPU, in KiB. The thread that compiles
/// a grammar reserves a stack of 256 MiB of it.
const ADDRESS_SPACE: u64 = 3 << 20;

fn case(name: &str) -> String {
    data(&format!("cases/{name}"))
}

/// Runs a command on the CPU within the limits.
#[track_caller]
fn limited(args: &[&str]) -> Run {
    let mut child = Command::new("sh")
        .args([
            "-c",
            &format!("ulimit -v {ADDRESS_SPACE}; exec \"$0\" \"$@\""),
        ])
        .arg(env!("CARGO_BIN_EXE_tercet"))
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > Duration::from_secs(SECONDS) {
            child.kill().unwrap();
            panic!("{args:?} takes more than {SECONDS} s");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    text(child.wait_with_output().unwrap())
}

/// A command that must fail with a typed error.
#[track_caller]
fn refused(args: &[&str], said: &str) {
    let run = limited(args);
    assert_eq!(run.code, Some(1), "{args:?}: {}", run.err);
    assert!(run.err.starts_with("error: "), "{args:?}: {}", run.err);
    assert!(run.err.contains(said), "{args:?}: {}", run.err);
}

#[test]
fn published_folders_write_text() {
    for (model, ignored) in [
        ("Qwen2.5-0.5B", "use_mrope"),
        ("gemma-2-2b", "cache_implementation"),
        ("gemma-3-1b-it", "cache_implementation"),
        ("Phi-4-mini-instruct", "full_attn_mod"),
    ] {
        let model = case(&format!("llm/{model}"));
        let args = ["generate", "-m", &model, "-p", "the a", "-n", "3"];
        let args = [&args[..], &["--device", "cpu", "--json"]].concat();
        let run = limited(&args);
        assert_eq!(run.code, Some(0), "{model}: {}", run.err);
        let v: serde_json::Value = serde_json::from_str(&run.out).unwrap();
        assert_eq!(v["tokens"].as_array().map(Vec::len), Some(3), "{v}");
        assert_eq!(run.err.matches(ignored).count(), 1, "{}", run.err);
        let strict = limited(&[&args[..], &["--strict"]].concat());
        assert_ne!(strict.code, Some(0), "{model}");
        assert!(strict.err.contains(ignored), "{}", strict.err);
    }
}

#[test]
fn special_values_stay() {
    let scratch = Scratch::new("cases-graphs");
    let inf = f32::INFINITY;
    let x = npy("<f4", "(4,)", &f32s(&[f32::NAN, inf, -inf, 1.0]));
    let x = format!("x={}", scratch.file("x.npy", x));
    for device in usable_devices() {
        let graph = case("graphs/sub.tercet");
        let args = ["run", &graph, "-i", &x, "--device", &device];
        let out = crate::common::good(&args).out;
        let shown: Vec<&str> = out.split_whitespace().skip(2).collect();
        assert_eq!(shown, ["nan", "nan", "nan", "0.0"], "{device}");
    }
}

#[test]
fn models_of_exporters_run() {
    let scratch = Scratch::new("cases-onnx");
    let floats = |name: &str, shape: &str, values: &[f32]| {
        let file = scratch.file(name, npy("<f4", shape, &f32s(values)));
        format!("x={file}")
    };
    let run = |model: &str, inputs: &[&str]| {
        let mut args = vec!["run", model, "--device", "cpu"];
        inputs.iter().for_each(|input| args.extend(["-i", input]));
        let run = limited(&args);
        assert_eq!(run.code, Some(0), "{model}: {}", run.err);
        let values: Vec<f32> = run
            .out
            .split_whitespace()
            .filter_map(|word| word.parse().ok())
            .collect();
        values
    };
    let large = floats("large.npy", "(4,)", &[2e19, 1e30, f32::INFINITY, -2e19]);
    let found = run(&case("onnx/asinh.onnx"), &[&large]);
    let want = [45.135_7, 69.768_72, f32::INFINITY, -45.135_7];
    let near = |(a, b): (&f32, &f32)| a == b || (a - b).abs() < 1e-4 * b.abs();
    assert_eq!(found.len(), 4);
    assert!(found.iter().zip(&want).all(near), "{found:?}");

    let rows = floats("rows.npy", "(2, 3)", &[1.0, -2.0, 3.0, -4.0, 5.0, -6.0]);
    let found = run(&case("onnx/input_noshape.onnx"), &[&rows]);
    assert_eq!(found, [1.0, 0.0, 3.0, 0.0, 5.0, 0.0]);
    for (on, sign) in [(1u8, -1.0), (0, 1.0)] {
        let c = scratch.file(&format!("c{on}.npy"), npy("|b1", "()", &[on]));
        let found = run(
            &case("onnx/if_same_output_name.onnx"),
            &[&rows, &format!("c={c}")],
        );
        assert_eq!(found.len(), 6, "{sign} {found:?}");
    }
}

/// A folder as the hub's cache has it: links from a snapshot to blobs.
#[cfg(unix)]
#[test]
fn links_of_the_hubs_cache_are_followed() {
    let scratch = Scratch::new("cases-hub");
    let root = scratch.path("models--o--m");
    let root = Path::new(&root);
    let snapshot = root.join("snapshots/abc/onnx");
    std::fs::create_dir_all(&snapshot).unwrap();
    std::fs::create_dir_all(root.join("blobs")).unwrap();
    for (blob, name) in [("1111", "model.onnx"), ("2222", "a.data")] {
        let from = case(&format!("onnx/hub-cache/{name}"));
        std::fs::copy(from, root.join("blobs").join(blob)).unwrap();
        let target = Path::new("../../../blobs").join(blob);
        std::os::unix::fs::symlink(target, snapshot.join(name)).unwrap();
    }
    let model = snapshot.join("model.onnx").display().to_string();
    let inspected = limited(&["inspect", &model]);
    assert_eq!(inspected.code, Some(0), "{}", inspected.err);
    // A link that leaves the model's folder of the cache is refused.
    let outside = scratch.file(
        "outside",
        std::fs::read(case("onnx/hub-cache/a.data")).unwrap(),
    );
    std::fs::remove_file(snapshot.join("a.data")).unwrap();
    std::os::unix::fs::symlink(outside, snapshot.join("a.data")).unwrap();
    let run = limited(&["run", &model, "--device", "cpu"]);
    assert_eq!(run.code, Some(1), "{}", run.err);
    assert!(run.err.contains("outside"), "{}", run.err);
}

#[test]
fn claims_beyond_the_files_are_refused() {
    for (folder, said) in [
        ("cfg_layers_1e6", "num_hidden_layers` is 1000000"),
        ("cfg_layers_2e31", "num_hidden_layers` is 2147483648"),
        ("cfg_experts_1e6", "1000000 experts"),
        ("cfg_head_dim_1e8", "400000000 elements"),
        ("tok_bpe_prefix", "continuing_subword_prefix"),
        ("tok_replace_empty", "Replace"),
    ] {
        let model = case(&format!("hostile/{folder}"));
        let limits = ["-p", "ab c", "-n", "1", "-c", "16", "--device", "cpu"];
        refused(&[&["generate", "-m", &model][..], &limits].concat(), said);
        let inspected = limited(&["inspect", &model]);
        assert!(matches!(inspected.code, Some(0 | 1)), "{}", inspected.err);
    }
    for (folder, said) in [
        ("tok_fixedlength0", "FixedLength"),
        ("tok_template_unknown_special", "special token `X`"),
        ("tok_added_100k", "100000 bytes"),
        ("tok_template_A_x17", "repeats"),
    ] {
        let model = case(&format!("hostile/{folder}"));
        let args = [
            "embed",
            "-m",
            &model,
            "a b",
            "--truncate",
            "--device",
            "cpu",
        ];
        refused(&args, said);
    }
}

#[test]
fn patterns_that_multiply_are_refused() {
    for schema in ["all14", "all15", "all20"] {
        let schema = case(&format!("hostile/schema_allof/{schema}.json"));
        let args = ["generate", "--json-schema", &schema, "-n", "1"];
        let args = [&args[..], &["--device", "cpu"]].concat();
        let run = limited(&args);
        assert!(matches!(run.code, Some(0 | 1)), "{}", run.err);
        assert!(
            run.code == Some(0) || run.err.contains("patterns"),
            "{}",
            run.err
        );
    }
}

#[test]
fn long_pairs_are_cut() {
    let model = case("hostile/rerank_long/model");
    for words in [6_000, 20_000] {
        let words = "a b ".repeat(words / 2);
        let args = ["rerank", "-m", &model, &words, &words, "--truncate"];
        let run = limited(&[&args[..], &["--device", "cpu"]].concat());
        assert_eq!(run.code, Some(0), "{}", run.err);
        assert!(run.out.len() < 500, "the text is printed whole");
    }
}

#[cfg(feature = "audio")]
#[test]
fn recordings_and_recognizers_out_of_range_are_refused() {
    let (short, speech) = (
        case("hostile/speech_moonshine_maxlen1"),
        data("speech/speech.flac"),
    );
    let args = ["transcribe", "-m", &short, &speech, "--device", "cpu"];
    refused(&args, "expected at least 2");
    let (whisper, silent) = (data("speech/whisper-a"), case("hostile/wav_rate0/a.wav"));
    let args = ["transcribe", "-m", &whisper, &silent, "--device", "cpu"];
    refused(&args, "sample rate 0 Hz");
}

/// The server answers each with an error and serves on.
#[cfg(feature = "serve")]
#[test]
fn hostile_requests_leave_the_server_alive() {
    let server = crate::common::serving(&["serve", "--port", "0", "--device", "cpu", "-c", "256"]);
    for (name, code) in [
        ("serve_props_stack/body.json", None),
        ("schema_allof/body20.json", Some(400)),
    ] {
        let body = std::fs::read_to_string(case(&format!("hostile/{name}"))).unwrap();
        let mut body: serde_json::Value = serde_json::from_str(&body).unwrap();
        body["model"] = "tiny-rust-llama".into();
        let start = Instant::now();
        let (found, answer) = server.try_post("/v1/chat/completions", &body);
        assert!(start.elapsed() < Duration::from_secs(SECONDS), "{name}");
        assert!(
            code.is_none_or(|code| code == found),
            "{name}: {found} {answer}"
        );
        assert!(found < 500, "{name}: {found} {answer}");
    }
    let ask = serde_json::json!({"model": "tiny-rust-llama", "prompt": "a", "max_tokens": 1});
    let long = serde_json::json!({"model": "tiny-rust-llama", "max_tokens": 1,
        "messages": [{"role": "user", "content": "a b ".repeat(3_750_000)}]});
    let start = Instant::now();
    let (found, answer) = server.try_post("/v1/chat/completions", &long);
    assert_eq!(found, 400, "{}", &answer[..answer.len().min(300)]);
    assert!(start.elapsed() < Duration::from_secs(SECONDS));
    let answer = server.post("/v1/completions", &ask);
    assert_eq!(answer["usage"]["completion_tokens"], 1, "{answer}");
}
