//! Runs the ten programs on small models, and compares the guide with them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tercet::{Device, Tensor};
use tercet_models::onnx::{ImportOptions, Session};
use tercet_models::{LanguageModel, TextOptions};

const TASKS: [&str; 10] = [
    "write",
    "chat",
    "embed",
    "transcribe",
    "classify",
    "onnx",
    "graph",
    "train",
    "custom_operator",
    "device",
];
const MAX_LINES: usize = 8;
const MAX_COLUMNS: usize = 100;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn source(task: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/bin");
    fs::read_to_string(path.join(task).with_extension("rs")).unwrap()
}

/// A folder with the models and recordings that the programs open.
fn folder(task: &str) -> PathBuf {
    let data = root().join("tests/data");
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(task);
    let files = [
        ("model.gguf", "tiny-rust-llama/tiny-rust-llama-q8_0.gguf"),
        ("encoder", "encoders/sentence-a"),
        ("speech-model", "speech/moonshine-a"),
        ("speech.flac", "speech/speech.flac"),
        ("image-model", "vision/vit-a"),
        ("photo.png", "vision/pictures/wide.png"),
        ("model.onnx", "onnx-torch/mlp.dynamo.onnx"),
    ];
    for (name, from) in files {
        copy(&data.join(from), &dir.join(name));
    }
    dir
}

fn copy(from: &Path, to: &Path) {
    if from.is_dir() {
        for entry in fs::read_dir(from).unwrap() {
            let name = entry.unwrap().file_name();
            copy(&from.join(&name), &to.join(&name));
        }
        return;
    }
    fs::create_dir_all(to.parent().unwrap()).unwrap();
    fs::copy(from, to).unwrap();
}

/// Runs a program in a folder and returns whether it succeeds, its output and its messages.
fn run_in(program: &str, dir: &Path) -> (bool, String, String) {
    let output = Command::new(program).current_dir(dir).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.success(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

fn run(task: &str, program: &str) -> String {
    let (succeeds, out, messages) = run_in(program, &folder(task));
    assert!(succeeds, "{task}: {messages}");
    out
}

fn generated(prompt: &str, options: &TextOptions) -> String {
    let path = root().join("tests/data/tiny-rust-llama/tiny-rust-llama-q8_0.gguf");
    let mut model = LanguageModel::options()
        .device(Device::cpu())
        .open(path)
        .unwrap();
    model.generate(prompt, options).unwrap()
}

#[test]
fn write() {
    let options = TextOptions::new().max_tokens(32).stop("\n\n");
    let text = run("write", env!("CARGO_BIN_EXE_write"));
    assert_eq!(text, generated("Ownership is", &options));
    assert!(text.starts_with(" not referenced"), "{text:?}");
}

#[test]
fn chat() {
    let [first, second] = [(); 2].map(|()| run("chat", env!("CARGO_BIN_EXE_chat")));
    assert!(first.len() > 10, "{first:?}");
    assert_eq!(first, second, "the seed determines the answer");
}

#[test]
fn embed() {
    let product = run("embed", env!("CARGO_BIN_EXE_embed"));
    let product: f32 = product.trim().parse().unwrap();
    assert!(product > -1.0 && product < 1.0, "{product}");
}

#[test]
fn transcribe() {
    let text = run("transcribe", env!("CARGO_BIN_EXE_transcribe"));
    assert!(!text.trim().is_empty());
}

#[test]
fn classify() {
    let found = run("classify", env!("CARGO_BIN_EXE_classify"));
    let (label, score) = found.trim().split_once(' ').unwrap();
    let score: f32 = score.parse().unwrap();
    assert!(
        label.starts_with("class-") && (0.25..1.0).contains(&score),
        "{found}"
    );
}

#[test]
fn onnx() {
    let found = run("onnx", env!("CARGO_BIN_EXE_onnx"));
    let path = root().join("tests/data/onnx-torch/mlp.dynamo.onnx");
    let options = ImportOptions::new();
    let mut session = Session::open(&*path, &Device::reference(), &options).unwrap();
    let x = Tensor::from_slice(&[2, 6], &[0.5f32; 12]).unwrap();
    let outputs = session.run(&[("x", &x)], None).unwrap();
    assert_eq!(found.lines().count(), outputs.len());
    for (line, (name, output)) in found.lines().zip(&outputs) {
        let values = output.as_slice::<f32>().unwrap();
        assert_eq!(line, format!("{name}: {:?} {values:.3?}", output.shape()));
    }
}

#[test]
fn graph() {
    // softmax(-1, -1, -1) and softmax(1, 3, 5)
    let found = run("graph", env!("CARGO_BIN_EXE_graph"));
    assert_eq!(found, "[0.333, 0.333, 0.333, 0.016, 0.117, 0.867]\n");
}

#[test]
fn train() {
    assert_eq!(run("train", env!("CARGO_BIN_EXE_train")), "[2.0, 1.0]\n");
}

#[test]
fn custom_operator() {
    let found = run("custom_operator", env!("CARGO_BIN_EXE_custom_operator"));
    assert_eq!(found, "[2.0, 9.0, 28.0]\n");
}

#[test]
fn device() {
    let found = run("device", env!("CARGO_BIN_EXE_device"));
    assert!(
        found.lines().any(|line| line.starts_with("cpu: ")),
        "{found}"
    );
    let text = generated("A trait is", &TextOptions::new().max_tokens(16));
    assert!(found.ends_with(&format!("{text}\n")), "{found}");
}

#[test]
fn a_missing_model_is_named() {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("empty");
    fs::create_dir_all(&dir).unwrap();
    let (succeeds, _, messages) = run_in(env!("CARGO_BIN_EXE_write"), &dir);
    assert!(!succeeds && messages.contains("model.gguf"), "{messages}");
}

#[test]
fn each_main_function_is_short() {
    for task in TASKS {
        let source = source(task);
        let (_, body) = source
            .split_once("fn main() -> Result<(), Box<dyn Error>> {\n")
            .unwrap();
        let (body, _) = body.split_once("    Ok(())\n}\n").unwrap();
        let is_code =
            |line: &&str| !matches!(line.trim(), "" | "}") && !line.trim().starts_with("//");
        let lines = body.lines().filter(is_code).count();
        assert!((1..=MAX_LINES).contains(&lines), "{task}: {lines} lines");
        let longest = source.lines().map(|line| line.chars().count()).max();
        assert!(longest <= Some(MAX_COLUMNS), "{task}: {longest:?} columns");
    }
}

#[test]
fn the_guide_shows_the_programs() {
    let guide = fs::read_to_string(root().join("docs/guide/ten-tasks.md")).unwrap();
    let blocks: Vec<&str> = guide.split("```rust\n").skip(1).collect();
    let blocks: Vec<&str> = blocks
        .iter()
        .filter_map(|rest| rest.split("```\n").next())
        .collect();
    assert_eq!(blocks.len(), TASKS.len());
    for (task, block) in TASKS.into_iter().zip(blocks) {
        // The guide explains the program itself.
        let source = source(task);
        let (_, code) = source.split_once("\n\n").unwrap();
        assert_eq!(
            block, code,
            "docs/guide/ten-tasks.md has another `{task}`; copy it from there"
        );
    }
}
