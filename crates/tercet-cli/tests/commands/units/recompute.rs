use std::path::Path;

use clap::Parser;
use tercet::{CompileOptions, Device};
use tercet_cli::internals::{FinetuneArgs, open_model, prepare};

#[derive(Parser)]
struct PrepareTestCli {
    #[command(flatten)]
    args: FinetuneArgs,
}

/// Arena bytes of the training step that fine-tunes all weights of the embedded model with
/// these arguments.
fn arena(data: &Path, more: &[&str]) -> u64 {
    let data = data.display().to_string();
    let base = ["finetune", "--data", &data, "--out", "o.gguf", "--full"];
    let size = ["--batch", "8", "--seq", "256"];
    let cli = PrepareTestCli::parse_from(base.iter().chain(&size).chain(more));
    let (files, what) = open_model(None).unwrap();
    let device = Device::cpu();
    let prepared = prepare(&cli.args, &device, &files, &what).unwrap();
    let graph = prepared.trainer.step_graph().graph();
    let explained = device.explain(graph, &CompileOptions::new()).unwrap();
    let arena = explained.bytes.iter().find(|(kind, _)| *kind == "arena");
    arena.unwrap().1
}

#[test]
fn what_is_computed_again_takes_no_memory() {
    let name = format!("tercet-recompute-{}.txt", std::process::id());
    let data = std::env::temp_dir().join(name);
    let text: String = (0..300).map(|i| format!("line {i}\n\n")).collect();
    std::fs::write(&data, text).unwrap();
    let [plain, activations, layers, both] = [
        &[][..],
        &["--remat-cheap"],
        &["--checkpoint-layers"],
        &["--checkpoint-layers", "--remat-cheap"],
    ]
    .map(|more| arena(&data, more));
    std::fs::remove_file(&data).unwrap();
    for less in [activations, layers, both] {
        assert!(less < plain, "{less} and {plain}");
    }
}
