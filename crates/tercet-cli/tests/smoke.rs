//! Runs the binary, in the profile of this test run, through every subcommand on every executor
//! that this build and machine have.
//!
//! `--help` lists the subcommands; one without a case here fails the test. The executors that
//! `TERCET_REQUIRE` names must be available. Sizes are small: these tests check that a build works,
//! not every value of every operator.
//!
//! Long: a case for each subcommand.
#![allow(
    clippy::unwrap_used,
    reason = "test helpers panic on errors, but clippy does not see them as test functions"
)]

mod common;

use serde_json::{Value, json};

#[cfg(feature = "serve")]
use common::serving;
use common::{Scratch, bad, data, demo, encoder, f32s, good, npy, tercet, text, usable_devices};

/// Defines the test of each subcommand, and the list of tested subcommands.
///
/// `smoke! { ops }` expands to `const TESTED: &[&str] = &["ops"];` and a test `ops` that calls
/// `case::ops()`.
macro_rules! smoke {
    ($($(#[$when:meta])* $name:ident)*) => {
        const TESTED: &[&str] = &[$($(#[$when])* stringify!($name)),*];
        $($(#[$when])* #[test] fn $name() { case::$name(); })*
    };
}

smoke! {
    generate chat bench perplexity finetune merge quantize embed classify rerank search
    #[cfg(feature = "audio")] transcribe
    inspect run explain export verify trace tune
    #[cfg(feature = "serve")] serve
    #[cfg(feature = "serve")] mcp
    #[cfg(feature = "splat")] splat ops models devices
}

/// Subcommands that `commands::hub` tests against a local server.
const TESTED_WITH_A_HUB: &[&str] = if cfg!(feature = "hub") {
    &["pull", "list", "rm", "show"]
} else {
    &[]
};

#[test]
fn every_subcommand_is_tested() {
    let help = good(&["--help"]).out;
    let (_, list) = help.split_once("\nCommands:\n").unwrap();
    let names = list.lines().take_while(|line| !line.is_empty());
    let names = names.filter_map(|line| line.split_whitespace().next());
    let names: Vec<&str> = names.filter(|name| *name != "help").collect();
    assert_eq!(names, [TESTED, TESTED_WITH_A_HUB].concat());
    for name in names {
        let own = good(&[name, "--help"]).out;
        assert!(own.contains(&format!("Usage: tercet {name}")), "{own}");
        assert_eq!(good(&["help", name]).out, own);
    }
}

/// The first device of each executor except the reference. The executors in `TERCET_REQUIRE` must
/// be among them.
fn executors() -> Vec<String> {
    let devices = usable_devices();
    let required = std::env::var("TERCET_REQUIRE").unwrap_or_default();
    for name in required.split(',').map(str::trim) {
        if ["cpu", "vulkan", "wgpu"].contains(&name) {
            assert!(devices.iter().any(|d| d == name), "{name}: {devices:?}");
        }
    }
    devices.into_iter().filter(|d| !d.contains(':')).collect()
}

/// An outer sum: both operands are broadcast.
const OUTER_SUM: &str = "graph {
  %a = input{name=\"a\", ty=f32[13, 1]}()
  %b = input{name=\"b\", ty=f32[1, 7]}()
  %y = binary{f=add}(%a, %b)
  return %y as \"y\"
}
";

/// Training texts.
const TEXTS: &str = "A tercet has three lines, and they rhyme.\n\nEvery executor gives the same answer.\n\n\
    Weights move where gradients point, a little at a time.\n";

/// Two splats in view of the default camera.
#[cfg(feature = "splat")]
fn scene() -> Vec<u8> {
    let names =
        "x y z f_dc_0 f_dc_1 f_dc_2 opacity scale_0 scale_1 scale_2 rot_0 rot_1 rot_2 rot_3";
    let names = names.split_whitespace();
    let lines: String = names.map(|n| format!("property float {n}\n")).collect();
    let head =
        format!("ply\nformat binary_little_endian 1.0\nelement vertex 2\n{lines}end_header\n");
    let splat = |x: f32| {
        [
            x, 0.0, 0.0, 1.0, 0.5, 0.2, 3.0, -1.0, -1.0, -1.0, 1.0, 0.0, 0.0, 0.0,
        ]
    };
    [head.into_bytes(), f32s(&splat(-0.5)), f32s(&splat(0.5))].concat()
}

mod case {
    use super::*;

    fn parsed(args: &[&str]) -> Value {
        common::json(args)
    }

    pub(super) fn generate() {
        let cpu = parsed(&["generate", "-n", "4", "--json", "--device", "cpu"]);
        for device in executors() {
            let v = parsed(&["generate", "-n", "4", "--json", "--device", &device]);
            assert_eq!(v["tokens"], cpu["tokens"], "{device}");
            assert_eq!(v["device"], device.as_str());
        }
    }

    /// All executors give the same conversation. The input is a pipe.
    pub(super) fn chat() {
        let scratch = Scratch::new("smoke-chat");
        let lines = scratch.file("lines.txt", "What is ownership?\n");
        let answer = |device: &str| {
            let mut command = tercet(&["chat", "-n", "4", "--device", device]);
            let command = command.stdin(std::fs::File::open(&lines).unwrap());
            let run = text(command.output().unwrap());
            assert_eq!(run.code, Some(0), "{}", run.err);
            run.out
        };
        let cpu = answer("cpu");
        assert!(cpu.trim().len() > 1, "{cpu}");
        for device in executors() {
            assert_eq!(answer(&device), cpu, "{device}");
        }
    }

    pub(super) fn bench() {
        for device in executors() {
            let args = ["bench", "-p", "8", "-n", "2", "-r", "1", "--json"];
            let v = parsed(&[&args[..], &["--device", &device]].concat());
            assert_eq!(v["tests"][0]["tokens"], 8);
            assert!(v["tests"][1]["tokens_per_second"].as_f64().unwrap() > 0.0);
            assert_eq!(v["device"], device.as_str());
        }
    }

    pub(super) fn perplexity() {
        let scratch = Scratch::new("smoke-perplexity");
        let texts = scratch.file("texts.txt", TEXTS);
        let of = |device: &str| {
            let args = ["perplexity", "-c", "16", "--json", "--file", &texts];
            let v = parsed(&[&args[..], &["--device", device]].concat());
            assert_eq!(v["tokens"], v["windows"].as_u64().unwrap() * 7);
            v["perplexity"].as_f64().unwrap()
        };
        let cpu = of("cpu");
        for device in executors() {
            let here = of(&device);
            assert!((here / cpu - 1.0).abs() < 1e-3, "{device}: {here} {cpu}");
        }
    }

    /// Training gives the same results on all executors, for language models and for encoders with
    /// dropout.
    pub(super) fn finetune() {
        let scratch = Scratch::new("smoke-finetune");
        let texts = scratch.file("texts.txt", TEXTS);
        let labelled = ["red green", "redish", "blue", "blueish green green"];
        let labelled = labelled.map(|text| {
            let label = i32::from(text.starts_with("red"));
            format!("{}\n", json!({"text": text, "label": label}))
        });
        let labelled = scratch.file("labelled.jsonl", labelled.concat());
        let encoder = encoder(&scratch);
        let size = [
            "--batch",
            "1",
            "--seq",
            "16",
            "--steps",
            "2",
            "--held-out",
            "0",
        ];
        let decoded = [&["--data", &texts][..], &size].concat();
        let encoded = [
            "-m",
            &encoder,
            "--data",
            &labelled,
            "--batch",
            "4",
            "--steps",
            "2",
            "--held-out",
            "0",
            "--dropout",
            "0.2",
            "--full",
        ];
        let losses = |args: &[&str], device: &str| -> Vec<(u64, f64)> {
            let out = scratch.path(device);
            let own = ["finetune", "--out", &out, "--json", "--device", device];
            let v = parsed(&[&own[..], args].concat());
            assert_eq!(v["device"], device);
            serde_json::from_value(v["losses"]["train"].clone()).unwrap()
        };
        for args in [&decoded[..], &encoded] {
            let cpu = losses(args, "cpu");
            assert_eq!(cpu.len(), 2);
            for device in executors() {
                for ((_, own), (_, cpu)) in losses(args, &device).iter().zip(&cpu) {
                    assert!((own - cpu).abs() < 1e-4 * cpu, "{device}: {own}, not {cpu}");
                }
            }
        }
    }

    /// A merged model generates the same text as the model with the adapter.
    pub(super) fn merge() {
        let scratch = Scratch::new("smoke-merge");
        let data = scratch.file("texts.txt", TEXTS);
        let (adapter, merged) = (scratch.path("adapter"), scratch.path("merged.gguf"));
        let sizes = "--steps 20 --batch 2 --seq 32 --held-out 0 --lr 5e-3 --device cpu";
        let files = ["finetune", "--data", &data, "--out", &adapter];
        good(
            &files
                .into_iter()
                .chain(sizes.split(' '))
                .collect::<Vec<_>>(),
        );
        good(&["merge", "--lora", &adapter, "--out", &merged]);
        let of = |with: [&str; 2]| {
            let [name, value] = with;
            let args = [
                "generate", "-n", "8", "--json", "--device", "cpu", name, value,
            ];
            parsed(&args)["tokens"].clone()
        };
        assert_eq!(of(["--lora", &adapter]), of(["--model", &merged]));
        assert_ne!(of(["--lora", &adapter]), of(["--seed", "0"]));
    }

    pub(super) fn quantize() {
        let scratch = Scratch::new("smoke-quantize");
        let small = scratch.path("small.gguf");
        good(&["quantize", "--type", "q4_k_m", "--out", &small]);
        let tokens = |device: &str| {
            let base = ["generate", "-n", "8", "--json", "--model", &small];
            parsed(&[&base[..], &["--device", device]].concat())["tokens"].clone()
        };
        assert!(
            executors()
                .iter()
                .all(|device| tokens(device) == tokens("cpu"))
        );
    }

    pub(super) fn embed() {
        let scratch = Scratch::new("smoke-embed");
        let model = encoder(&scratch);
        let vectors = |device: &str| -> Vec<Vec<f64>> {
            let v = parsed(&[
                "embed",
                "-m",
                &model,
                "--json",
                "--device",
                device,
                "red",
                "green bluish",
            ]);
            let rows = v.as_array().unwrap().iter();
            rows.map(|row| serde_json::from_value(row["embedding"].clone()).unwrap())
                .collect()
        };
        let cpu = vectors("cpu");
        let length: f64 = cpu[1].iter().map(|x| x * x).sum();
        assert!((length - 1.0).abs() < 1e-5 && cpu[0] != cpu[1], "{cpu:?}");
        for device in executors() {
            let own = vectors(&device);
            let pairs = own.iter().flatten().zip(cpu.iter().flatten());
            assert!(pairs.clone().count() == 16, "{device}");
            for (x, y) in pairs {
                assert!((x - y).abs() < 1e-4, "{device}: {x} instead of {y}");
            }
        }
        let table = good(&["embed", "-m", &model, "--device", "cpu", "red", "red"]);
        assert!(table.out.contains(" 1.000"), "{}", table.out);
    }

    /// Scores of texts on the CPU, which the scores of every executor must be close to.
    fn scores(args: &[&str]) -> Vec<f64> {
        let model = data("encoders/reranker-a");
        let of = |device: &str| -> Vec<f64> {
            let v = parsed(&[args, &["-m", &model, "--json", "--device", device]].concat());
            let rows = v.as_array().unwrap().iter();
            rows.map(|row| row["score"].as_f64().unwrap()).collect()
        };
        let cpu = of("cpu");
        for own in executors().iter().map(|device| of(device)) {
            let near = own.iter().zip(&cpu).all(|(x, y)| (x - y).abs() < 1e-4);
            assert!(near, "{own:?} instead of {cpu:?}");
        }
        cpu
    }

    pub(super) fn classify() {
        let scores = scores(&["classify", "a cat", "two birds"]);
        assert_eq!(scores.len(), 2);
    }

    pub(super) fn rerank() {
        let scores = scores(&["rerank", "a bird", "a cat", "two birds", "the house"]);
        assert!(scores.len() == 3 && scores.is_sorted_by(|a, b| a >= b));
    }

    pub(super) fn search() {
        let scratch = Scratch::new("smoke-search");
        std::fs::create_dir_all(scratch.path("texts")).unwrap();
        scratch.file("texts/a.txt", "a cat\n\nthe house\n");
        let (folder, index) = (scratch.path("texts"), scratch.path("i.safetensors"));
        let model = data("encoders/sentence-a");
        for device in executors() {
            good(&[
                "search", "index", "-m", &model, &folder, "-o", &index, "--device", &device,
            ]);
            let found = parsed(&[
                "search",
                "-m",
                &model,
                &index,
                "the house",
                "--json",
                "--device",
                &device,
            ]);
            assert_eq!(found[0]["text"], "the house", "{device}");
        }
    }

    #[cfg(feature = "audio")]
    pub(super) fn transcribe() {
        let (model, audio) = (data("speech/whisper-a"), data("speech/speech.flac"));
        let v = parsed(&[
            "transcribe",
            "-m",
            &model,
            &audio,
            "--format",
            "json",
            "--no-fallback",
        ]);
        assert!(v["text"].is_string(), "{v}");
    }

    pub(super) fn inspect() {
        let out = good(&["inspect", &demo("tiny-rust-llama-q8_0.gguf")]).out;
        assert!(out.contains("parameters  3,541,248"), "{out}");
    }

    pub(super) fn run() {
        let scratch = Scratch::new("smoke-run");
        let graph = scratch.file("g.tercet", OUTER_SUM);
        let of = |n: u8, scale: f32| -> Vec<f32> { (0..n).map(|i| scale * f32::from(i)).collect() };
        let (a, b) = (of(13, 10.0), of(7, 0.5));
        let a_file = scratch.file("a.npy", npy("<f4", "(13, 1)", &f32s(&a)));
        let b_file = scratch.file("b.npy", npy("<f4", "(1, 7)", &f32s(&b)));
        let (a_arg, b_arg) = (format!("a={a_file}"), format!("b={b_file}"));
        let want: Vec<f32> = a
            .iter()
            .flat_map(|a| b.iter().map(move |b| a + b))
            .collect();
        let out = scratch.path("y.npy");
        for device in executors() {
            let v = parsed(&[
                "run", &graph, "-i", &a_arg, "-i", &b_arg, "--json", "-o", &out, "--device",
                &device,
            ]);
            assert_eq!(v[0]["shape"], json!([13, 7]), "{device}");
            let values: Vec<f32> = serde_json::from_value(v[0]["values"].clone()).unwrap();
            assert_eq!(values, want, "{device}");
            let file = std::fs::read(&out).unwrap();
            assert!(file.ends_with(&f32s(&want)), "{device}");
        }
    }

    pub(super) fn explain() {
        let scratch = Scratch::new("smoke-explain");
        let graph = scratch.file("g.tercet", OUTER_SUM);
        for device in executors() {
            let out = good(&["explain", &graph, "--steps", "--device", &device]).out;
            assert!(
                out.starts_with(&format!("target          {device}\n")),
                "{out}"
            );
            assert!(out.contains("dispatches      1\n"), "{device}: {out}");
        }
    }

    /// An exported graph gives the same results as the original. That includes the embedded model,
    /// whose quantized weights are exported dequantized.
    pub(super) fn export() {
        let scratch = Scratch::new("smoke-export");
        let graph = scratch.file("g.tercet", OUTER_SUM);
        let [written, model] = ["g.onnx", "m.onnx"].map(|name| scratch.path(name));
        good(&["export", &graph, "-o", &written]);
        let v = parsed(&["verify", &written, "--json", "--device", "cpu"]);
        assert_eq!(v["agrees"], true);
        good(&["export", "-o", &model]);
        let v = parsed(&["inspect", &model, "--json"]);
        assert!(v.to_string().contains("kv_len"), "{v}");
        bad(&["export", &graph, "-o", &graph], 2, &[".onnx"]);
    }

    pub(super) fn verify() {
        let scratch = Scratch::new("smoke-verify");
        let graph = scratch.file("g.tercet", OUTER_SUM);
        let devices = [executors(), vec!["reference".to_string()]].concat();
        for device in devices {
            let v = parsed(&["verify", &graph, "--json", "--device", &device]);
            assert_eq!(v["agrees"], true, "{device}");
            assert_eq!(v["values"].as_array().unwrap().len(), 1, "{device}");
            let out = good(&[
                "verify", &graph, "--all", "--seed", "-1", "--device", &device,
            ])
            .out;
            let last = out.lines().last();
            let agrees = format!("{device} agrees with the reference");
            assert_eq!(last, Some(agrees.as_str()));
        }
    }

    pub(super) fn trace() {
        let scratch = Scratch::new("smoke-trace");
        let file = scratch.path("trace.json");
        for device in executors() {
            good(&["trace", "-n", "1", "-o", &file, "--device", &device]);
            let v: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
            let runs = v["traceEvents"].as_array().unwrap().iter();
            assert!(runs.filter(|e| e["name"] == "run").count() >= 2, "{device}");
        }
    }

    /// Only some devices have kernel variants to tune; the others must print a note.
    pub(super) fn tune() {
        let scratch = Scratch::new("smoke-tune");
        for device in executors() {
            let mut command = tercet(&["tune", "--device", &device, "--shape", "64x64x64"]);
            let cache = scratch.path("cache");
            let ended = text(command.env("TERCET_CACHE_DIR", cache).output().unwrap());
            match ended.code {
                Some(0) => assert!(ended.out.contains("64x64x64"), "{}", ended.out),
                code => {
                    assert_eq!(code, Some(1), "{device}: {}", ended.err);
                    assert!(
                        ended.err.contains("no kernel variants to measure"),
                        "{}",
                        ended.err
                    );
                }
            }
        }
    }

    /// Serves a graph on every executor, and the embedded model without an adapter.
    #[cfg(feature = "serve")]
    pub(super) fn serve() {
        let scratch = Scratch::new("smoke-serve");
        let graph = scratch.file("sum.tercet", OUTER_SUM);
        let input = |name: &str, shape: [usize; 2]| {
            let data = vec![1; shape[0] * shape[1]];
            json!({"name": name, "shape": shape, "datatype": "FP32", "data": data})
        };
        let infer = json!({"inputs": [input("a", [13, 1]), input("b", [1, 7])]});
        for device in executors() {
            let server = serving(&["serve", "-m", &graph, "--port", "0", "--device", &device]);
            let answer = server.post("/v2/models/sum/infer", &infer);
            assert_eq!(answer["outputs"][0]["shape"], json!([13, 7]), "{device}");
            assert_eq!(
                answer["outputs"][0]["data"],
                json!(vec![2.0; 13 * 7]),
                "{device}"
            );
        }
        let server = serving(&["serve", "--port", "0", "--device", "cpu"]);
        let ask = json!({"model": "tiny-rust-llama", "prompt": "Ownership is", "max_tokens": 8, "temperature": 0});
        let answer = server.post("/v1/completions", &ask);
        let written = good(&["generate", "-n", "8", "--device", "cpu"]).out;
        let expected = written.strip_prefix("Ownership is").unwrap();
        assert_eq!(
            answer["choices"][0]["text"],
            expected.trim_end_matches('\n')
        );
    }

    /// A client that ends at once gets the answers to its requests.
    #[cfg(feature = "serve")]
    pub(super) fn mcp() {
        use std::io::Write;
        let mut command = tercet(&["mcp", "--device", "cpu", "-c", "64"]);
        let command = command.stdin(std::process::Stdio::piped());
        let mut child = command
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"});
        writeln!(child.stdin.take().unwrap(), "{ping}").unwrap();
        let ended = child.wait_with_output().unwrap();
        assert!(ended.status.success());
        let answer: Value = serde_json::from_slice(&ended.stdout).unwrap();
        assert_eq!(answer, json!({"jsonrpc": "2.0", "id": 1, "result": {}}));
    }

    #[cfg(feature = "splat")]
    pub(super) fn splat() {
        let scratch = Scratch::new("smoke-splat");
        let (scene, image) = (scratch.file("s.ply", scene()), scratch.path("s.png"));
        for device in executors() {
            let v = parsed(&[
                "splat", &scene, "--size", "24x16", "--frames", "1", "-o", &image, "--json",
                "--device", &device,
            ]);
            assert_eq!(
                (&v["splats"], &v["width"]),
                (&2.into(), &24.into()),
                "{device}"
            );
            let file = std::fs::File::open(&image).unwrap();
            let reader = png::Decoder::new(std::io::BufReader::new(file)).read_info();
            let mut reader = reader.unwrap();
            let mut bytes = vec![0; reader.output_buffer_size().unwrap()];
            reader.next_frame(&mut bytes).unwrap();
            assert!(bytes.iter().any(|b| *b > 100), "{device} draws nothing");
            let fitted = scratch.path("fitted.ply");
            let v = parsed(&[
                "splat",
                "fit",
                "--from",
                &scene,
                "--views",
                "4",
                "--size",
                "16x16",
                "--gaussians",
                "20",
                "--steps",
                "3",
                "-o",
                &fitted,
                "--json",
                "--device",
                &device,
            ]);
            assert_eq!(
                (&v["steps"], &v["device"]),
                (&3.into(), &device.as_str().into())
            );
            assert!(std::fs::metadata(&fitted).unwrap().len() > 1000);
        }
    }

    pub(super) fn ops() {
        let out = good(&["ops", "binary"]).out;
        assert!(out.contains("operator     binary"), "{out}");
    }

    pub(super) fn models() {
        let out = good(&["models"]).out;
        for name in ["qwen3_moe", "modernbert", "whisper", "clip"] {
            assert!(out.contains(name), "{name}: {out}");
        }
    }

    pub(super) fn devices() {
        let out = good(&["devices"]).out;
        for device in executors() {
            assert!(out.lines().any(|l| l.starts_with(&device)), "{out}");
        }
        let compiler = out.lines().last().unwrap();
        assert!(compiler.starts_with("compiler     rustc 1."), "{compiler}");
    }
}

#[test]
fn the_version_says_what_made_the_binary() {
    let long = good(&["--version"]).out;
    assert_eq!(good(&["-V"]).out, long);
    let begin = format!("tercet {} (rustc 1.", env!("CARGO_PKG_VERSION"));
    assert!(long.starts_with(&begin), "{long}");
    assert!(long.contains(std::env::consts::ARCH), "{long}");
    let profile = if cfg!(debug_assertions) {
        "debug"
    } else {
        "release"
    };
    let profile = format!("{profile} profile, opt-level ");
    assert!(long.contains(&profile), "{long}");
}
