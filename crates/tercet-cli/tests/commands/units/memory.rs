use clap::Parser;
use tercet::train::TrainError;
use tercet::{CompileError, DType, NodeId, RunError, TensorError, TensorType};
use tercet_cli::internals::{CliError, FinetuneArgs, with_remedy};

#[derive(Parser)]
struct MemoryTestCli {
    #[command(flatten)]
    args: FinetuneArgs,
}

/// Error message for `e` with these arguments.
fn said(more: &[&str], e: impl Into<CliError>) -> String {
    let base = ["finetune", "--data", "d.txt", "--out", "o.gguf"];
    let cli = MemoryTestCli::parse_from(base.iter().chain(more));
    with_remedy(&cli.args, e.into()).to_string()
}

#[test]
fn what_was_asked_for_and_what_to_lower() {
    let arena = || {
        TrainError::Run(RunError::OutOfMemory {
            what: "the arena",
            bytes: 3 << 40,
        })
    };
    assert_eq!(
        said(&["--batch", "64", "--seq", "512"], arena()),
        "training exceeds the available memory: the arena of 3.0 TiB cannot be allocated; lower --batch \
         from 64 (--microbatches keeps the rows per step), or lower --seq from 512, or set \
         --checkpoint-layers, or set --remat-cheap"
    );
    assert_eq!(
        said(
            &[
                "--batch",
                "1",
                "--full",
                "--checkpoint-layers",
                "--remat-cheap"
            ],
            arena()
        ),
        "training exceeds the available memory: the arena of 3.0 TiB cannot be allocated; set a small \
         --seq, or train an adapter, without --full"
    );
}

#[test]
fn all_errors_about_memory_are_known() {
    let tensor = || TensorError::OutOfMemory {
        ty: TensorType::new(DType::F32, &[1 << 40]),
        bytes: 4 << 40,
    };
    let compile = CompileError::OutOfMemory {
        what: "the arena",
        bytes: u64::MAX,
    };
    assert!(said(&[], TrainError::Compile(compile)).contains("larger than the address space"));
    let limited = CompileError::TooLarge {
        node: NodeId(0),
        op: "matmul",
        bytes: 5 << 30,
        limit: 1 << 30,
    };
    let limited = said(&[], TrainError::Compile(limited));
    assert!(
        limited.contains("a result of matmul of 5.0 GiB"),
        "{limited}"
    );
    for e in [
        TrainError::Tensor(tensor()),
        TrainError::Run(RunError::Tensor(tensor())),
    ] {
        assert!(said(&[], e).contains("f32[1099511627776] of 4.0 TiB"));
    }
    let other = said(&[], TrainError::InconsistentStates);
    assert_eq!(other, "the training failed");
}
