//! Invalid inputs are rejected before any work, and no argument is ignored.

use crate::common::{GRAPH, Scratch, bad, data, demo, f32s, good, json, npy, run, usable_devices};

#[test]
fn bounds_are_honoured_or_refused() {
    let scratch = Scratch::new("bounds");
    let graph = scratch.file("g.tercet", GRAPH);
    let rows = npy("<f4", "(9, 3)", &f32s(&[0.0; 27]));
    let x = format!("x={}", scratch.file("x.npy", rows));
    let of = |command: &str, bounds: &[&str], code: i32, parts: &[&str]| {
        let bounds = bounds.iter().flat_map(|b| ["--bound", b]);
        let args: Vec<&str> = [command, &graph].into_iter().chain(bounds).collect();
        bad(&args, code, parts);
    };
    bad(
        &["verify", &graph, "-i", &x, "--bound", "n=8"],
        1,
        &["symbol `n` is 9 in `x`, above its bound 8"],
    );
    good(&[
        "verify", &graph, "-i", &x, "--bound", "n=9", "--device", "cpu",
    ]);
    for command in ["verify", "explain"] {
        let unknown = ["unknown symbol `nosuch`", "the graph has: n"];
        of(command, &["n=8", "nosuch=3"], 2, &unknown);
        of(command, &["n=8", "n=8"], 2, &["--bound n occurs twice"]);
        of(command, &["n=0"], 2, &["a bound must be at least 1"]);
        of(command, &["=3"], 2, &["expected NAME=N"]);
        of(command, &["n=-1"], 2, &["expected NAME=N"]);
        of(command, &["n=1e3"], 2, &["expected NAME=N"]);
    }
    let known = scratch.file("known.tercet", GRAPH.replace("[n, 3]", "[2, 3]"));
    let args = ["explain", &known, "--bound", "n=8"];
    bad(&args, 2, &["unknown symbol `n`", "the graph has none"]);
    // Sizes that overflow, and sizes that exceed any memory.
    of(
        "verify",
        &["n=99999999999999"],
        2,
        &["more than 2^48 elements"],
    );
    of(
        "verify",
        &["n=9999999999999"],
        1,
        &["random data for `x`", "smaller --bound"],
    );
    of("verify", &["n=18446744073709551615"], 2, &["`x`"]);
}

#[test]
fn every_missing_bound_is_named() {
    let scratch = Scratch::new("unbounded");
    let graph = scratch.file("g.tercet", GRAPH.replace("[n, 3]", "[n, m]"));
    bad(
        &["explain", &graph],
        2,
        &["`n`, `m`", "--bound n=N --bound m=N"],
    );
}

#[test]
fn a_device_takes_what_follows_its_name_or_refuses_it() {
    let says = |device: &str, parts: &[&str]| {
        let args = ["generate", "-n", "1", "--device", device];
        bad(&args, 2, parts);
    };
    for name in ["cpu", "reference", "auto"] {
        says(&format!("{name}:zzz"), &["zzz", &format!("use `{name}`")]);
        says(&format!("{name}:"), &[&format!("use `{name}`")]);
    }
    says("abacus:1", &["no device named `abacus:1`"]);
    for name in ["vulkan", "wgpu"] {
        if usable_devices().iter().any(|d| d == name) {
            says(&format!("{name}:"), &["after the colon"]);
            says(&format!("{name}:zzz"), &["zzz"]);
        }
    }
    let args = ["tune", "--device", "cpu:zzz"];
    bad(&args, 1, &["zzz", "use `cpu`"]);
}

#[test]
fn numbers_that_are_none_are_refused() {
    for (args, part) in [
        (&["generate", "-n", "-3"][..], "-1 for no limit"),
        (&["generate", "-n", "nan"], "-1 for no limit"),
        (&["generate", "--top-k", "-2"], "0 or -1 for all"),
        (&["generate", "--seed", "-2"], "or -1 for any"),
        (&["generate", "--temp", "-1"], "from 0 to"),
        (&["generate", "--temp", "inf"], "from 0 to"),
        (&["generate", "--top-p", "-0.1"], "from 0 to 1"),
        (&["generate", "--top-p", "NaN"], "from 0 to 1"),
        (&["generate", "-c", "-1"], "from 0 (as trained) to 1048576"),
        (&["embed", "-m", "x", "--batch", "0", "y"], "of at least 1"),
        (&["trace", "-n", "x"], "-1 for no limit"),
        (
            &["tune", "--shape", "4294967295x4294967295x4294967295"],
            "three sizes",
        ),
    ] {
        bad(args, 2, &[part]);
    }
}

#[test]
fn numbers_of_llama_cpp_mean_what_they_mean_there() {
    let base = ["generate", "--json", "-c", "12", "--device", "cpu"];
    let of = |more: &[&str]| json(&[&base[..], more].concat());
    let all = of(&["-n", "-1"]);
    assert_eq!(all["stop"], "context");
    assert_eq!(all["text"], of(&["-n", "1000"])["text"]);
    let sampled = ["-n", "6", "--temp", "0.8", "--seed", "1", "--top-k"];
    assert_eq!(
        of(&[&sampled[..], &["-1"]].concat())["tokens"],
        of(&[&sampled[..], &["0"]].concat())["tokens"]
    );
    let random = ["-n", "6", "--temp", "5", "--seed"];
    let drawn = of(&[&random[..], &["-1"]].concat());
    let seed = drawn["seed"].as_u64().unwrap().to_string();
    let again = of(&[&random[..], &[seed.as_str()]].concat());
    assert_eq!(drawn["tokens"], again["tokens"]);
    assert_ne!(drawn["seed"], of(&[&random[..], &["-1"]].concat())["seed"]);
    let err = good(&["generate", "-n", "1", "--temp", "1", "--seed", "7"]).err;
    assert!(err.contains("; seed 7; stopped: length"), "{err}");
}

#[test]
fn one_is_singular() {
    let err = good(&["generate", "-n", "2", "-p", "", "--device", "cpu"]).err;
    assert!(err.starts_with("prefill 1 token, "), "{err}");
    assert!(err.contains("; decode 1 token, "), "{err}");
    let scratch = Scratch::new("one");
    let graph = scratch.file("g.tercet", GRAPH);
    let out = good(&["verify", &graph, "--device", "cpu"]).out;
    assert!(out.contains("\n1 value compared; "), "{out}");
}

#[test]
fn what_cannot_be_written_is_refused_before_the_work() {
    let scratch = Scratch::new("destinations");
    let graph = scratch.file("g.tercet", GRAPH);
    let (nowhere, folder) = (scratch.path("none"), scratch.path("folder.npz"));
    std::fs::create_dir(&folder).unwrap();
    let run = |output: &str, code: i32, parts: &[&str]| {
        // The input file does not exist, so the error shows that no input was read.
        let args = ["run", &graph, "-i", "x=missing.npy", "-o", output];
        bad(&args, code, parts);
    };
    run(
        &format!("{nowhere}/y.npz"),
        1,
        &["cannot write", "does not exist", &nowhere],
    );
    run(&folder, 1, &["cannot write", "it is a folder"]);
    run("", 2, &["--output"]);
    run("y.txt", 2, &["y.txt", ".npz or .npy"]);
    run(".npz", 2, &[".npz or .npy"]);
    let unnamed = scratch.file("u.tercet", GRAPH.replace("as \"y\"", "as \"\""));
    bad(&["run", &unnamed], 2, &["has no name"]);

    let trace = format!("{nowhere}/trace.json");
    let args = ["trace", "-m", "missing.gguf", "-o", &trace];
    bad(&args, 1, &["cannot write", "does not exist"]);
    let model = scratch.path("model.gguf");
    std::fs::copy(demo("tiny-rust-llama-q8_0.gguf"), &model).unwrap();
    bad(&["trace", "-m", &model, "-o", &model], 2, &["is the model"]);
    good(&["inspect", &model]);
    // A failed command leaves no new file, and does not change an existing one.
    let fresh = scratch.path("fresh.npz");
    run(&fresh, 1, &["missing.npy"]);
    assert!(!std::path::Path::new(&fresh).exists());
    let kept = scratch.file("kept.npz", "kept");
    run(&kept, 1, &["missing.npy"]);
    assert_eq!(std::fs::read(&kept).unwrap(), b"kept");
}

#[test]
fn a_cause_is_not_said_twice() {
    let scratch = Scratch::new("twice");
    let text = GRAPH.replace("axis=1", "axis=\"one\"");
    let err = crate::common::run(&["run", &scratch.file("g.tercet", text)]).err;
    let lines: Vec<&str> = err.lines().map(str::trim).collect();
    for (at, line) in lines.iter().enumerate() {
        let cause = line.trim_start_matches("because: ");
        assert!(!lines[..at].iter().any(|l| l.contains(cause)), "{err}");
    }
}

#[test]
fn a_model_of_another_kind_names_its_command() {
    let scratch = Scratch::new("other-command");
    let names = |args: &[&str], parts: &[&str]| {
        bad(args, 1, parts);
        // Not a list of all families.
        let err = run(args).err;
        assert!(err.len() < 300 + args.concat().len(), "{err}");
    };
    let text = scratch.file("text.txt", "A text. ".repeat(100));
    for (model, parts) in [
        ("encoders/sentence-a", ["a text encoder", "`tercet embed`"]),
        ("encoders/reranker-a", ["a text encoder", "`tercet rerank`"]),
        ("encoders/tagger-a", ["a text encoder", "`tercet classify`"]),
        ("vision/vit-a", ["an image model", "`tercet classify`"]),
        (
            "speech/whisper-a",
            ["a speech recognizer", "`tercet transcribe`"],
        ),
        (
            "speech/moonshine-a",
            ["a speech recognizer", "`tercet transcribe`"],
        ),
    ] {
        let model = data(model);
        names(&["generate", "-m", &model], &parts);
        names(&["chat", "-m", &model], &parts);
        names(&["perplexity", "-m", &model, "--file", &text], &parts);
    }
    let speech = data("speech/whisper-a");
    for command in ["embed", "classify"] {
        names(
            &[command, "-m", &speech, "a text"],
            &["`tercet transcribe`"],
        );
    }
    names(
        &["rerank", "-m", &speech, "a", "b"],
        &["`tercet transcribe`"],
    );
    if cfg!(feature = "audio") {
        let llama = demo("tiny-rust-llama-q8_0.gguf");
        let audio = data("speech/speech.flac");
        let args = ["transcribe", "-m", &llama, &audio];
        names(&args, &["a language model", "`tercet generate`"]);
        let encoder = data("encoders/sentence-a");
        names(&["transcribe", "-m", &encoder, &audio], &["`tercet embed`"]);
    }
    let graph = scratch.file("g.onnx", "");
    names(
        &["generate", "-m", &graph],
        &["an ONNX model", "`tercet run`"],
    );
    names(
        &["embed", "-m", &graph, "a"],
        &["an ONNX model", "`tercet run`"],
    );
    let graph = scratch.file("g.tercet", GRAPH);
    names(
        &["chat", "-m", &graph],
        &["a graph in text form", "`tercet run`"],
    );
}
