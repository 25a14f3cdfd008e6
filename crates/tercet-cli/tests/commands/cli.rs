//! The binary as users and scripts see it: output, messages, exit codes.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::common::{
    GRAPH, Scratch, bad, data, demo, f32s, good, json, npy, tercet, text, usable_devices,
};

#[test]
fn generate_streams_text_and_ends_with_statistics() {
    let first = good(&["generate", "-n", "8"]);
    assert!(first.out.starts_with("Ownership is not"), "{}", first.out);
    assert!(first.out.ends_with('\n'));
    assert!(first.err.starts_with("prefill 5 tokens, "), "{}", first.err);
    assert!(first.err.contains("decode 7 tokens, ") && first.err.ends_with("stopped: length\n"));
    assert_eq!(good(&["generate", "-n", "8"]).out, first.out);
    assert_eq!(good(&["generate", "-n", "0"]).out, "Ownership is\n");
}

#[test]
fn generate_as_json() {
    let v = json(&["generate", "--json", "-n", "8", "-p", "Ownership is"]);
    assert_eq!(v["prompt"], "Ownership is");
    assert_eq!(
        v["prompt_tokens"],
        serde_json::json!([0, 47, 792, 1307, 307])
    );
    assert_eq!(v["tokens"].as_array().unwrap().len(), 8);
    assert_eq!(v["stop"], "length");
    assert_eq!(v["prefill"]["tokens"], 5);
    assert_eq!(v["decode"]["tokens"], 7);
    let plain = good(&["generate", "-n", "8"]).out;
    assert_eq!(
        plain,
        format!("Ownership is{}\n", v["text"].as_str().unwrap())
    );
}

#[test]
fn generate_stops_at_the_context() {
    let v = json(&["generate", "--json", "-c", "10", "-n", "50"]);
    assert_eq!(v["stop"], "context");
    assert_eq!(v["tokens"].as_array().unwrap().len(), 6);
    bad(
        &["generate", "-c", "4"],
        1,
        &["5 tokens do not fit the context of 4"],
    );
    for wrong in ["-1", "1000000000000"] {
        let parts = ["--context", "from 0 (as trained) to 1048576"];
        bad(&["generate", "-c", wrong], 2, &parts);
    }
}

#[test]
fn generate_reads_the_prompt_from_standard_input() {
    let mut command = tercet(&["generate", "-n", "8", "-p", "-"]);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(b"Ownership is")
        .unwrap();
    let piped = text(child.wait_with_output().unwrap());
    assert_eq!(piped.out, good(&["generate", "-n", "8"]).out);
}

#[test]
fn generate_samples_repeatably() {
    let with = |seed| good(&["generate", "-n", "24", "--temp", "0.8", "--seed", seed]).out;
    assert_eq!(with("7"), with("7"));
    assert_ne!(with("7"), with("8"));
}

#[test]
fn generate_takes_every_form_of_the_model() {
    let reference = std::fs::read_to_string(demo("reference.json")).unwrap();
    let reference: Value = serde_json::from_str(&reference).unwrap();
    // The prompt has 5 tokens.
    let ids = &reference["ownership"]["greedy"].as_array().unwrap()[5..21];
    let folder = json(&["generate", "--json", "-n", "16", "-m", &demo("")]);
    let gguf = json(&[
        "generate",
        "--json",
        "-n",
        "16",
        "-m",
        &demo("tiny-rust-llama-f16.gguf"),
    ]);
    assert_eq!(folder["tokens"], gguf["tokens"]);
    assert_eq!(folder["text"], gguf["text"]);
    assert_eq!(folder["tokens"].as_array().unwrap(), ids);
}

#[test]
fn wrong_usage_names_what_is_accepted() {
    for (args, parts) in [
        (["--temp", "-1"], ["--temp", "from 0 to"]),
        (["--temp", "warm"], ["--temp", "from 0 to"]),
        (["--temp", "nan"], ["--temp", "from 0 to"]),
        (["--top-p", "2"], ["--top-p", "from 0 to 1"]),
        (["--device", "abacus"], ["abacus", "cpu, reference"]),
        (["--dtype", "q1"], ["--dtype", "f32, f16, bf16"]),
    ] {
        bad(&["generate", args[0], args[1]], 2, &parts);
    }
}

#[test]
fn missing_and_damaged_models_are_errors() {
    let dir = Scratch::new("damaged");
    let whole = std::fs::read(demo("tiny-rust-llama-q8_0.gguf")).unwrap();
    for (name, len) in [("head.gguf", 1000), ("body.gguf", 3_000_000)] {
        let path = dir.file(name, &whole[..len]);
        bad(&["generate", "-m", &path], 1, &[&path, "offset"]);
        bad(&["inspect", &path], 1, &[&path, "offset"]);
    }
    let garbage = dir.file("garbage.gguf", "no model at all");
    bad(
        &["inspect", &garbage],
        1,
        &[&garbage, "not a GGUF file", "offset 0"],
    );
    bad(
        &["generate", "-m", "missing.gguf"],
        1,
        &["missing.gguf", "no such file"],
    );
    bad(
        &["inspect", "missing.gguf"],
        1,
        &["missing.gguf", "no such file"],
    );
}

#[test]
fn inspect_counts_parameters() {
    for path in [demo("tiny-rust-llama-q8_0.gguf"), demo("")] {
        let plain = good(&["inspect", &path]);
        assert!(plain.out.contains("parameters  3,541,248"), "{}", plain.out);
        assert!(plain.out.lines().all(|l| l.chars().count() <= 120));
        let v = json(&["inspect", "--json", &path]);
        assert_eq!(v["parameters"], 3_541_248);
        assert_eq!(v["tensors"].as_array().unwrap().len(), 38);
        assert_eq!(v["unsupported"], Value::Null);
    }
}

#[test]
fn run_computes_on_npy_and_npz() {
    let dir = Scratch::new("run");
    let graph = dir.file("g.tercet", GRAPH);
    let zeros = npy("<f4", "(2, 3)", &f32s(&[0.0, 0.0, 0.0, 1.0, 1.0, 1.0]));
    let x = format!("x={}", dir.file("x.npy", zeros));
    let v = json(&["run", &graph, "-i", &x, "--json"]);
    assert_eq!(
        (&v[0]["name"], &v[0]["dtype"]),
        (&"y".into(), &"f32".into())
    );
    assert_eq!(v[0]["shape"], serde_json::json!([2, 3]));
    for value in v[0]["values"].as_array().unwrap() {
        assert!((value.as_f64().unwrap() - 1.0 / 3.0).abs() < 1e-6);
    }
    assert!(
        good(&["run", &graph, "-i", &x])
            .out
            .starts_with("y: f32[2, 3]\n")
    );

    // The output of one run is a valid input of another.
    let swap = GRAPH.replace("\"x\"", "\"y\"");
    let swap = dir.file("swap.tercet", swap);
    let (npz, one) = (dir.path("y.npz"), dir.path("y.npy"));
    good(&["run", &graph, "-i", &x, "-o", &npz]);
    good(&["run", &graph, "-i", &x, "-o", &one]);
    let again = json(&["run", &swap, "-i", &npz, "--json"]);
    assert_eq!(
        again,
        json(&["run", &swap, "-i", &format!("y={one}"), "--json"])
    );
    bad(
        &["run", &graph, "-i", &x, "-o", "y.txt"],
        2,
        &["y.txt", ".npz or .npy"],
    );
}

#[test]
fn run_says_what_is_wrong_with_graph_or_inputs() {
    let dir = Scratch::new("wrong");
    let graph = dir.file("g.tercet", GRAPH);
    let x = format!(
        "x={}",
        dir.file("x.npy", npy("<f4", "(1, 3)", &f32s(&[0.0; 3])))
    );
    let double = format!("x={}", dir.file("d.npy", npy("<f8", "(1, 3)", &[0; 24])));
    let flat = format!(
        "x={}",
        dir.file("f.npy", npy("<f4", "(3,)", &f32s(&[0.0; 3])))
    );
    let short = format!("x={}", dir.file("s.npy", npy("<f4", "(9, 3)", &[0; 4])));
    let wrong = x.replacen("x=", "z=", 1);
    bad(
        &["run", &graph],
        2,
        &["`x` of type f32[n, 3]", "--input x="],
    );
    bad(
        &["run", &graph, "-i", &wrong],
        2,
        &["no array `z`", "one of: x"],
    );
    bad(
        &["run", &graph, "-i", &x, "-i", &x],
        2,
        &["`x` occurs twice"],
    );
    bad(
        &["run", &graph, "-i", &double],
        2,
        &["f64", "f32", "astype"],
    );
    bad(&["run", &graph, "-i", &flat], 1, &["f32[3]", "f32[n, 3]"]);
    bad(
        &["run", &graph, "-i", &short],
        1,
        &["s.npy", "expected 108 bytes", "found 4"],
    );
    bad(&["run", &graph, "-i", "x=missing.npy"], 1, &["missing.npy"]);
    bad(&["run", "missing.tercet"], 1, &["missing.tercet"]);
    let typo = dir.file("typo.tercet", GRAPH.replace("softmax", "softmaxx"));
    bad(&["run", &typo], 1, &[&typo, "line 3, column 8", "softmaxx"]);
    let open = "graph {
  %x = rng_uniform{shape=[n], dtype=f32, lo=0, hi=1, seed=1, stream=0}()
  return %x as \"y\"
}";
    bad(
        &["run", &dir.file("open.tercet", open)],
        2,
        &["`n`", "no input determines"],
    );
}

#[test]
fn operators_are_listed_as_the_documentation_has_them() {
    let page = std::fs::read_to_string(data("../../docs/reference/operators.md")).unwrap();
    assert_eq!(good(&["ops"]).out, page);
    let row = good(&["ops", "scatter_nd", "tile"]).out;
    let says = |text: &str| assert!(row.contains(text), "{text}: {row}");
    says("operator     scatter_nd");
    says("cpu          native");
    says("operator     tile");
    says("vulkan       fused");
    bad(&["ops", "nothing"], 2, &["unknown operator `nothing`"]);
}

#[test]
fn devices_are_listed() {
    let plain = good(&["devices"]).out;
    let v = json(&["devices", "--json"]);
    let names: Vec<&str> = v
        .as_array()
        .unwrap()
        .iter()
        .map(|d| d["name"].as_str().unwrap())
        .collect();
    // GPUs, or the reasons why there are none, come before the CPU and the reference.
    assert!(names.ends_with(&["cpu", "reference"]), "{names:?}");
    assert!(plain.lines().zip(&names).all(|(l, n)| l.starts_with(n)));
}

#[test]
fn every_device_writes_the_same_text() {
    let text = |device: &str| {
        let model = demo("tiny-rust-llama-f16.gguf");
        let args = [
            "generate", "--json", "-n", "16", "-m", &model, "--device", device,
        ];
        json(&args)["text"].as_str().unwrap().to_string()
    };
    let want = text("cpu");
    for device in usable_devices() {
        assert_eq!(text(&device), want, "{device}");
    }
}

#[test]
fn explain_counts_before_anything_runs() {
    let scratch = Scratch::new("explain");
    let graph = scratch.file("graph.tercet", GRAPH);
    for device in usable_devices() {
        let v = json(&[
            "explain", &graph, "--bound", "n=8", "--json", "--device", &device,
        ]);
        assert_eq!(v["host_fallbacks"], 0, "{device}");
        assert!(v["dispatches"].as_u64().unwrap() >= 1, "{device}");
        assert!(
            v["peak_bytes"].as_u64().unwrap() >= 2 * 8 * 3 * 4,
            "{device}"
        );
        assert_eq!(v["unsupported"].as_array().unwrap().len(), 0, "{device}");
        let v = json(&["explain", "--json", "--device", &device]);
        assert_eq!(v["host_fallbacks"], 0, "the embedded model on {device}");
    }
    bad(
        &["explain", &graph],
        2,
        &["symbol `n` has no upper bound", "--bound n=N"],
    );
    bad(
        &["explain", &graph, "--bound", "n"],
        2,
        &["expected NAME=N"],
    );
}

#[test]
fn explain_lists_what_is_unsupported() {
    let scratch = Scratch::new("unsupported");
    let wide = GRAPH.replace("f32", "f64");
    let graph = scratch.file("graph.tercet", wide);
    for device in usable_devices().iter().filter(|d| *d != "cpu") {
        let v = json(&[
            "explain", &graph, "--bound", "n=8", "--json", "--device", device,
        ]);
        let rows = v["unsupported"].as_array().unwrap();
        // The decomposition of softmax is unsupported too.
        assert_eq!(rows[0]["node"], "%1", "{device}");
        assert!(
            rows[0]["reason"].as_str().unwrap().contains("f32"),
            "{device}"
        );
    }
}

#[test]
fn verify_compares_every_value() {
    let scratch = Scratch::new("verify");
    let graph = scratch.file("graph.tercet", GRAPH);
    for device in usable_devices() {
        let v = json(&[
            "verify", &graph, "--bound", "n=5", "--json", "--device", &device,
        ]);
        assert_eq!(v["agrees"], true, "{device}");
        assert_eq!(v["values"].as_array().unwrap().len(), 1, "{device}");
        let out = good(&["verify", &graph, "--device", &device]).out;
        assert!(out.contains("agrees with the reference"), "{out}");
    }
}

#[test]
fn trace_runs_graphs_in_text_form() {
    let scratch = Scratch::new("trace-graph");
    let graph = scratch.file("g.tercet", GRAPH);
    for device in usable_devices() {
        let file = scratch.path("trace.json");
        let trace = ["trace", &graph, "-b", "n=4", "-n", "2", "-o", &file];
        good(&[&trace[..], &["--device", &device]].concat());
        let v: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        let events = v["traceEvents"].as_array().unwrap();
        let runs = events.iter().filter(|e| e["name"] == "run").count();
        assert_eq!(runs, 3, "{device}");
        if device != "cpu" {
            let steps = events.iter().filter(|e| e["name"] == "softmax").count();
            assert!(steps >= 3, "{device}");
        }
    }
    let to = scratch.path("other.json");
    bad(&["trace", &graph, "-p", "x", "-o", &to], 2, &["--prompt"]);
    bad(&["trace", &graph, "-o", &graph], 2, &["is the model"]);
}

#[test]
fn every_command_records_a_trace_by_flag_and_environment() {
    let scratch = Scratch::new("trace-flag");
    let graph = scratch.file("g.tercet", GRAPH);
    let verify = ["verify", &graph, "--bound", "n=5", "--device", "cpu"];
    let (flag, variable) = (scratch.path("flag.json"), scratch.path("variable.json"));
    good(&[&verify[..], &["--trace", &flag]].concat());
    let mut command = crate::common::tercet(&verify);
    let output = command.env("TERCET_TRACE", &variable).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    for file in [flag, variable] {
        let events: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        let events = events.as_array().unwrap();
        for name in ["open device", "compile and load", "submit", "wait"] {
            assert!(events.iter().any(|e| e["name"] == name), "{file}: {name}");
        }
    }
    let nowhere = scratch.path("no/trace.json");
    bad(
        &[&verify[..], &["--trace", &nowhere]].concat(),
        2,
        &["cannot write the trace"],
    );
}

#[test]
fn trace_holds_host_phases_and_device_steps() {
    let scratch = Scratch::new("trace");
    for device in usable_devices() {
        let file = scratch.path("trace.json");
        good(&["trace", "-n", "2", "-o", &file, "--device", &device]);
        let v: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        let events = v["traceEvents"].as_array().unwrap();
        let named = |name: &str| events.iter().filter(|e| e["name"] == name).count();
        assert!(
            named("compile and load") == 1 && named("run") >= 3,
            "{device}"
        );
        if device == "cpu" {
            continue;
        }
        let phases = [
            "passes",
            "legalize",
            "plan",
            "upload",
            "submit",
            "wait and read back",
        ];
        for phase in phases {
            assert!(named(phase) >= 1, "{device}: {phase}");
        }
        // Device steps with their times.
        let timed = events.iter().any(|e| e["args"]["kernel"].is_string());
        assert!(timed, "{device}");
    }
}

#[test]
fn trace_of_parallel_sequences_lists_kernels_without_empty_steps() {
    let scratch = Scratch::new("trace-parallel");
    let file = scratch.path("trace.json");
    let args = [
        "trace",
        "-n",
        "3",
        "-c",
        "64",
        "-o",
        &file,
        "--parallel",
        "4",
    ];
    for device in usable_devices() {
        for sequences in ["1", "4"] {
            let own = ["--sequences", sequences, "--device", &device];
            let out = good(&[&args[..], &own].concat()).out;
            if device == "cpu" {
                continue;
            }
            assert!(out.contains("last run: "), "{device}: {out}");
            // The tokens of all sequences are appended to the caches by one kernel per layer.
            assert!(out.contains("rope_append_scatter"), "{device}: {out}");
            // Copies of a prompt's keys and values are empty in a run without a prompt.
            assert!(!out.contains("dynamic_slice"), "{device}: {out}");
        }
    }
    let more = ["trace", "--parallel", "2", "--sequences", "3"];
    bad(&more, 2, &["--sequences 3 is more than --parallel 2"]);
    bad(&["trace", "--sequences", "3"], 2, &["--parallel"]);
}

#[test]
fn a_device_that_is_not_there_is_explained() {
    // With an empty driver list the Vulkan loader finds no driver.
    let mut command = tercet(&["generate", "--device", "vulkan", "-n", "1"]);
    command
        .env("VK_DRIVER_FILES", "/nonexistent")
        .env("VK_ICD_FILENAMES", "/nonexistent");
    let run = text(command.output().unwrap());
    assert_ne!(run.code, Some(0), "{}", run.err);
    assert!(run.err.contains("vulkan"), "{}", run.err);
    let mut command = tercet(&["generate", "-n", "1", "--json"]);
    command
        .env("VK_DRIVER_FILES", "/nonexistent")
        .env("VK_ICD_FILENAMES", "/nonexistent");
    let run = text(command.output().unwrap());
    assert_eq!(run.code, Some(0), "{}", run.err);
    let v: Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!(v["device"], "cpu");
}

#[cfg(unix)]
#[test]
fn ctrl_c_keeps_the_text_so_far() {
    // The reference interpreter is slow enough to interrupt.
    let mut command = tercet(&["generate", "-n", "400", "--device", "reference"]);
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut begin = [0; 12];
    out.read_exact(&mut begin).unwrap();
    assert_eq!(&begin, b"Ownership is");
    let mut kill = Command::new("kill");
    let kill = kill.args(["-INT", &child.id().to_string()]).status();
    assert!(kill.unwrap().success());
    let mut rest = String::new();
    out.read_line(&mut rest).unwrap();
    let ended = text(child.wait_with_output().unwrap());
    assert_eq!(ended.code, Some(130), "{}", ended.err);
    assert!(
        ended.err.ends_with("stopped: interrupted\n"),
        "{}",
        ended.err
    );
}

#[test]
fn embed_gives_unit_vectors_and_a_table() {
    let Some(dir) = std::env::var_os("TERCET_MINILM_DIR") else {
        let reason = "TERCET_MINILM_DIR is not set; `cargo xtask test` sets it";
        assert!(std::env::var_os("TERCET_REQUIRE").is_none(), "{reason}");
        eprintln!("skipped: {reason}");
        return;
    };
    let dir = dir.into_string().unwrap();
    let v = json(&["embed", "-m", &dir, "--json", "a sentence", "another one"]);
    let rows = v.as_array().unwrap();
    assert_eq!(rows[1]["text"], "another one");
    for row in rows {
        let v: Vec<f64> = row["embedding"]
            .as_array()
            .unwrap()
            .iter()
            .map(|x| x.as_f64().unwrap())
            .collect();
        assert_eq!(v.len(), 384);
        assert!((v.iter().map(|x| x * x).sum::<f64>() - 1.0).abs() < 1e-5);
    }
    let table = good(&["embed", "-m", &dir, "a sentence", "another one"]).out;
    assert_eq!(table.lines().count(), 3);
    assert!(
        table
            .lines()
            .nth(1)
            .is_some_and(|l| l.starts_with("[1] a sentence") && l.contains("1.000"))
    );
    bad(&["embed", "-m", &dir], 2, &["no sentences"]);
}

#[test]
fn ignored_keys_of_a_configuration_are_named_once_or_refused() {
    let scratch = Scratch::new("ignored-keys");
    let from = data("decoders/llama-a");
    let config = std::fs::read_to_string(format!("{from}/config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&config).unwrap();
    config["use_mrope"] = false.into();
    config["neftune_noise_alpha"] = 5.into();
    scratch.file("config.json", config.to_string());
    let weights = scratch.path("model.safetensors");
    std::fs::copy(format!("{from}/model.safetensors"), weights).unwrap();

    let model = scratch.path("");
    let run = good(&["inspect", "--json", &model]);
    let note =
        "note: config.json: ignored keys that change nothing: neftune_noise_alpha, use_mrope\n";
    assert_eq!(run.err, note);
    let report: serde_json::Value = serde_json::from_str(&run.out).unwrap();
    let keys = ["neftune_noise_alpha", "use_mrope"];
    assert_eq!(report["ignored_keys"], serde_json::json!(keys));
    let said = [
        "would be ignored: neftune_noise_alpha, use_mrope",
        "--strict",
    ];
    bad(&["inspect", "--strict", &model], 1, &said);
    // Without such keys, the flag has no effect.
    good(&["inspect", "--strict", &from]);
}
