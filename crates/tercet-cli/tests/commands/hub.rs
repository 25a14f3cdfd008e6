//! Models by name, from a local server that behaves as the hub does.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

#[allow(
    dead_code,
    reason = "the tests of the crate use all of the server, these only a part"
)]
#[path = "../../../tercet-hub/tests/hub/server.rs"]
mod server;

use crate::common::{GRAPH, Run, Scratch, demo, f32s, good, npy, tercet, text};
use server::{Access, LocalHub};

const REPO: &str = "org/tiny-GGUF";

/// A hub with the demo model in two quantizations and as a folder, and an empty home.
struct Home {
    server: LocalHub,
    scratch: Scratch,
}

fn read(path: impl AsRef<Path>) -> Vec<u8> {
    std::fs::read(path).unwrap()
}

impl Home {
    fn new(test: &str) -> Home {
        let server = LocalHub::start();
        let [small, large] =
            ["q8_0", "f16"].map(|t| read(demo(&format!("tiny-rust-llama-{t}.gguf"))));
        server.add(
            REPO,
            &[("tiny-Q8_0.gguf", &small), ("tiny-F16.gguf", &large)],
        );
        // The same files under names that let the memory decide.
        server.add(
            "org/choice",
            &[("m-Q2_K.gguf", &small), ("m-Q4_K_M.gguf", &large)],
        );
        let names = [
            "config.json",
            "model.safetensors",
            "tokenizer.json",
            "tokenizer_config.json",
        ];
        let folder = names.map(|name| (name, read(demo(name))));
        let folder: Vec<(&str, &[u8])> = folder.iter().map(|(name, b)| (*name, &**b)).collect();
        server.add("org/tiny-folder", &folder);
        Home {
            server,
            scratch: Scratch::new(test),
        }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = tercet(args);
        for variable in [
            "HF_TOKEN",
            "HUGGING_FACE_HUB_TOKEN",
            "HF_TOKEN_PATH",
            "HF_HUB_CACHE",
            "HUGGINGFACE_HUB_CACHE",
            "HF_HUB_OFFLINE",
            "TRANSFORMERS_OFFLINE",
            "SSL_CERT_FILE",
        ] {
            command.env_remove(variable);
        }
        command
            .env("HF_ENDPOINT", &self.server.endpoint)
            .env("HF_HOME", self.scratch.path("hf"))
            .env("HOME", self.scratch.path("home"))
            .current_dir(self.scratch.path(""));
        command
    }

    fn run(&self, args: &[&str]) -> Run {
        text(self.command(args).output().unwrap())
    }

    #[track_caller]
    fn good(&self, args: &[&str]) -> Run {
        let run = self.run(args);
        assert_eq!(run.code, Some(0), "{args:?}: {}", run.err);
        run
    }

    #[track_caller]
    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.good(&[args, &["--json"]].concat()).out).unwrap()
    }

    #[track_caller]
    fn bad(&self, args: &[&str], code: i32, parts: &[&str]) {
        let Run {
            code: found,
            out,
            err,
        } = self.run(args);
        assert_eq!((found, &*out), (Some(code), ""), "{args:?}: {err}");
        for part in parts {
            assert!(err.contains(part), "{args:?}: no {part:?} in: {err}");
        }
    }
}

const SHORT: [&str; 6] = ["-n", "12", "-p", "Ownership is", "--device", "cpu"];

fn expected(file: &str) -> String {
    good(&[&["generate", "-m", &demo(file)], &SHORT[..]].concat()).out
}

#[test]
fn a_named_model_is_downloaded_once_and_writes_the_same_text() {
    let home = Home::new("hub-generate");
    let want = expected("tiny-rust-llama-q8_0.gguf");
    let of = |model: &[&str]| home.run(&[&["generate"], model, &SHORT[..]].concat());
    let first = of(&["-hf", "org/tiny-GGUF:q8_0"]);
    assert_eq!((first.code, &first.out), (Some(0), &want), "{}", first.err);
    assert!(
        first.err.contains("downloading org/tiny-GGUF:q8_0: 1 file"),
        "{}",
        first.err
    );
    assert_eq!(
        home.server.sent(),
        read(demo("tiny-rust-llama-q8_0.gguf")).len()
    );
    for model in [
        &["--hf-repo=org/tiny-GGUF:Q8_0"][..],
        &["-hf", "hf.co/org/tiny-GGUF"],
        &["-hf", REPO, "-hff", "tiny-Q8_0.gguf"],
        &["-m", "org/tiny-GGUF"],
        &["-m", "tiny", "--offline"],
        &["--model=tiny:Q8_0"],
        &["-m", "hf:org/tiny-GGUF:Q8_0"],
    ] {
        let again = of(model);
        assert_eq!(
            (again.code, &again.out),
            (Some(0), &want),
            "{model:?}: {}",
            again.err
        );
    }
    assert!(home.server.requests().is_empty());
    // Another quantization, and `-m` without a download.
    let other = of(&["-hf", "org/tiny-GGUF:F16"]);
    assert_eq!(other.out, expected("tiny-rust-llama-f16.gguf"));
    let none = of(&["-m", "org/tiny-folder"]);
    assert_eq!(none.code, Some(1));
    assert!(
        none.err.contains("tercet pull org/tiny-folder"),
        "{}",
        none.err
    );
    let folder = of(&["-hf", "org/tiny-folder"]);
    assert_eq!(folder.code, Some(0), "{}", folder.err);
    assert_eq!(of(&["-m", "tiny-folder"]).out, folder.out);
    // A folder of this name is a path, not a model of the hub.
    std::fs::create_dir_all(home.scratch.path("org/tiny-folder")).unwrap();
    assert_eq!(of(&["-hf", "org/tiny-folder"]).out, folder.out);
    assert_ne!(of(&["-m", "org/tiny-folder"]).code, Some(0));
    let inspected = home.json(&["inspect", "-hf", "org/tiny-GGUF:Q8_0"]);
    assert!(inspected.to_string().contains("llama"), "{inspected}");
}

#[test]
fn pull_list_show_and_rm_manage_the_cache() {
    let home = Home::new("hub-manage");
    assert!(home.good(&["list"]).err.contains("has no models"));
    let remote = home.json(&["show", REPO]);
    let quants: Vec<_> = remote["models"]
        .as_array()
        .unwrap()
        .iter()
        .map(|m| &m["quant"])
        .collect();
    assert_eq!(quants, ["F16", "Q8_0"]);
    let remote = home.good(&["show", REPO]);
    assert!(remote.out.contains("not downloaded") && remote.out.contains("tiny-F16.gguf"));

    let pulled = home.json(&["pull", REPO]);
    let path = pulled["path"].as_str().unwrap();
    assert_eq!(read(path), read(demo("tiny-rust-llama-q8_0.gguf")));
    assert_eq!(
        (&pulled["repo"], &pulled["quant"]),
        (&REPO.into(), &"Q8_0".into())
    );
    let again = home.good(&["pull", "tiny:Q8_0"]);
    assert_eq!(again.out.lines().last(), Some(path));
    assert_eq!(again.err, "");
    home.good(&["pull", "org/tiny-GGUF:F16"]);
    home.good(&["pull", "org/tiny-folder", "--verify"]);

    let listed = home.json(&["list"]);
    let repos: Vec<_> = listed
        .as_array()
        .unwrap()
        .iter()
        .map(|row| &row["repo"])
        .collect();
    assert_eq!(repos, [REPO, "org/tiny-folder"]);
    let table = home.good(&["list"]).out;
    assert!(
        table.contains("F16, Q8_0") && table.contains("safetensors"),
        "{table}"
    );
    assert_eq!(table.lines().count(), 2);
    let shown = home.good(&["show", "tiny:Q8_0", "--offline"]).out;
    assert!(
        shown.contains(path) && shown.contains("GGUF Q8_0"),
        "{shown}"
    );

    let removed = home.good(&["rm", "tiny:F16", "org/tiny-folder"]).out;
    assert_eq!(removed.matches("freed").count(), 2);
    assert_eq!(home.json(&["list"]).as_array().unwrap().len(), 1);
    assert!(Path::new(path).exists());
    home.bad(&["rm", "tiny:F16"], 1, &["tiny:F16 is not in the cache"]);
    home.good(&["rm", "tiny"]);
    assert_eq!(home.json(&["list"]).as_array().unwrap().len(), 0);
}

#[test]
fn the_memory_of_the_device_chooses() {
    let home = Home::new("hub-memory");
    let quant = |limit: &str| {
        let mut command = home.command(&["pull", "org/choice", "--json", "--device", "cpu"]);
        let run = text(command.env("TERCET_DEVICE_MEMORY", limit).output().unwrap());
        assert_eq!(run.code, Some(0), "{}", run.err);
        let pulled: Value = serde_json::from_str(&run.out).unwrap();
        pulled["quant"].as_str().unwrap().to_string()
    };
    let [small, large] =
        ["q8_0", "f16"].map(|t| read(demo(&format!("tiny-rust-llama-{t}.gguf"))).len());
    let between = (256 << 20) + (small + large) * 9 / 16;
    assert_eq!(quant(&between.to_string()), "Q2_K");
    assert_eq!(quant("4GiB"), "Q4_K_M");
    let mut command = home.command(&["generate", "-hf", "org/choice", "--device=cpu"]);
    home.good(&["rm", "org/choice"]);
    let run = text(
        command
            .env("TERCET_DEVICE_MEMORY", "1MiB")
            .output()
            .unwrap(),
    );
    assert_eq!(run.code, Some(1));
    let parts = ["no quantization of org/choice fits", "Q2_K", "1.0 MiB free"];
    assert!(
        parts.iter().all(|part| run.err.contains(part)),
        "{}",
        run.err
    );
    assert_eq!(home.json(&["list"]).as_array().unwrap().len(), 0);
}

#[test]
fn run_is_a_chat_with_a_named_model() {
    let home = Home::new("hub-run");
    let args = ["run", "org/tiny-GGUF:Q8_0", "-n", "4", "--device", "cpu"];
    let mut command = home.command(&args);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"hello\n").unwrap();
    let run = text(child.wait_with_output().unwrap());
    let chat = home.command(&["chat", "-m", &demo("tiny-rust-llama-q8_0.gguf"), "-n", "4"]);
    let chat = piped(chat, b"hello\n");
    assert_eq!((run.code, run.out), (chat.code, chat.out), "{}", run.err);
    assert!(home.server.sent() > 0);
    // Paths stay paths: nothing is asked for a file that is missing.
    std::fs::create_dir_all(home.scratch.path("graphs")).unwrap();
    for missing in ["graphs/add", "add.tercet", "x/add.onnx"] {
        assert_eq!(home.run(&["run", missing]).code, Some(1), "{missing}");
    }
    assert!(home.server.requests().is_empty());
}

fn piped(mut command: Command, input: &[u8]) -> Run {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    text(child.wait_with_output().unwrap())
}

#[test]
fn onnx_models_run_by_name() {
    let home = Home::new("hub-onnx");
    let path = home.scratch.path("relu.onnx");
    let graph = home.scratch.file("relu.tercet", GRAPH);
    good(&["export", &graph, "-o", &path]);
    home.server.add(
        "org/graphs",
        &[("onnx/model.onnx", &read(&path)), ("config.json", b"{}")],
    );
    let x = home.scratch.path("x.npy");
    std::fs::write(&x, npy("<f4", "(1, 3)", &f32s(&[1.0, 2.0, 3.0]))).unwrap();
    let input = format!("x={x}");
    let want = good(&["run", &path, "-i", &input, "--json"]).out;
    let found = home.good(&["run", "org/graphs/onnx/model.onnx", "-i", &input, "--json"]);
    assert_eq!(found.out, want);
    let inspected = home.good(&["inspect", "-hf", "org/graphs"]).out;
    assert!(inspected.to_lowercase().contains("softmax"), "{inspected}");
}

#[cfg(feature = "serve")]
#[test]
fn serve_takes_names() {
    let home = Home::new("hub-serve");
    let models = ["org/tiny-folder", "org/tiny-GGUF:Q8_0"];
    let args = [&["serve"], &models[..], &["--port", "0", "--device", "cpu"]].concat();
    let server = crate::common::serving_by(home.command(&args));
    for model in ["tiny-folder", "tiny-Q8_0"] {
        let body = serde_json::json!({"model": model, "prompt": "Ownership is", "max_tokens": 3});
        let answer = server.post("/v1/completions", &body);
        assert_eq!(answer["model"], model, "{answer}");
    }
}

#[test]
fn adapters_are_found_by_name() {
    let home = Home::new("hub-adapter");
    let data = home.scratch.file(
        "texts.txt",
        "The red tercet rhymes with the blue one.\n".repeat(40),
    );
    let adapter = home.scratch.path("adapter");
    let size = [
        "--batch", "1", "--seq", "16", "--steps", "2", "--device", "cpu",
    ];
    let own = ["finetune", "--data", &data, "--out", &adapter];
    good(&[&own[..], &size].concat());
    let names = ["adapter_config.json", "adapter_model.safetensors"];
    let files = names.map(|name| (name, read(Path::new(&adapter).join(name))));
    let files: Vec<(&str, &[u8])> = files.iter().map(|(name, b)| (*name, &**b)).collect();
    home.server.add("org/rhymes", &files);
    let of = |lora: &str| {
        home.good(&[&["generate", "--lora", lora], &SHORT[..]].concat())
            .out
    };
    let want = of(&format!("{adapter}=0.5"));
    assert_eq!(of("hf:org/rhymes=0.5"), want);
    assert_eq!(of("org/rhymes=0.5"), want);
    home.bad(
        &["generate", "-hf", "org/rhymes"],
        2,
        &["is an adapter of", "--lora hf:org/rhymes"],
    );
}

#[test]
fn refusals_are_explained_and_leave_nothing() {
    let home = Home::new("hub-refusals");
    home.server.add("org/gated", &[("m.gguf", b"x")]);
    home.server.set_access("org/gated", Access::Gated);
    let page = format!("{}/org/gated", home.server.endpoint);
    home.bad(&["pull", "org/gated"], 1, &["gated", &page, "HF_TOKEN"]);
    home.bad(
        &["chat", "-hf", "org/none"],
        1,
        &["no repository org/none", "HF_TOKEN"],
    );
    home.bad(
        &["pull", "no name"],
        1,
        &["not the name of a model", "ORG/NAME"],
    );
    home.bad(
        &["pull", REPO, "--offline"],
        1,
        &["not in the cache", "--offline"],
    );
    home.bad(
        &["generate", "-hf", "org/tiny-GGUF:Q5_0"],
        1,
        &["no quantization Q5_0", "F16, Q8_0"],
    );
    home.bad(&["chat", "-hf"], 2, &["--hf-repo"]);
    home.bad(
        &["--hf-repo", "a/b", "chat"],
        2,
        &["after the name of the command"],
    );
    home.bad(
        &["chat", "--hf-file", "x.gguf"],
        2,
        &["--hf-file needs --hf-repo"],
    );
    home.bad(&["chat", "-m", "x", "-hf", "a/b"], 2, &["--model"]);
    // An invalid command line downloads nothing.
    home.server.requests();
    home.bad(
        &["generate", "-hf", REPO, "--unknown-flag"],
        2,
        &["--unknown-flag"],
    );
    assert!(home.server.requests().is_empty());
    assert_eq!(home.json(&["list"]).as_array().unwrap().len(), 0);
    let full = home.scratch.file("file", "");
    let mut command = home.command(&["pull", REPO]);
    let run = text(
        command
            .env("HF_HOME", format!("{full}/hf"))
            .output()
            .unwrap(),
    );
    assert_eq!(run.code, Some(1));
    assert!(
        run.err
            .contains("set HF_HUB_CACHE to a folder that can be written"),
        "{}",
        run.err
    );
}

#[test]
fn a_killed_download_is_continued_by_the_next_process() {
    let home = Home::new("hub-killed");
    let seed = read(demo("tiny-rust-llama-f16.gguf"));
    let bytes: Vec<u8> = seed.iter().copied().cycle().take(40 << 20).collect();
    home.server.add("org/big", &[("big-Q8_0.gguf", &bytes)]);
    home.server.state().faults.delay = Duration::from_millis(300);
    let mut command = home.command(&["pull", "org/big"]);
    let mut child = command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let digest = home.server.digest("org/big", "big-Q8_0.gguf");
    let partial = format!("hf/hub/models--org--big/blobs/{digest}.incomplete");
    let partial = home.scratch.path(&partial);
    let arrived = || std::fs::metadata(&partial).map_or(0, |found| found.len());
    let began = Instant::now();
    while arrived() == 0 {
        assert!(began.elapsed() < Duration::from_secs(60), "nothing arrives");
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let kept = arrived() as usize;
    assert!(kept < bytes.len() && read(&partial) == bytes[..kept]);
    let listed = home.good(&["list"]).out;
    assert!(
        listed.contains("org/big") && listed.contains("incomplete"),
        "{listed}"
    );
    // Answers to the killed process are not counted.
    home.server.state().faults.delay = Duration::ZERO;
    home.server.wait_for_clients_to_leave();
    home.server.sent();
    let pulled = home.json(&["pull", "org/big"]);
    assert!(read(pulled["path"].as_str().unwrap()) == bytes);
    assert_eq!(home.server.sent(), bytes.len() - kept);
    assert!(!Path::new(&partial).exists());
}
