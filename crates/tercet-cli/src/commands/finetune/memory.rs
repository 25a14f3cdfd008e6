//! Out-of-memory errors of training: the size of the failed allocation, and the flags that reduce
//! memory use.

use std::error::Error;

use tercet::train::TrainError;
use tercet::{CompileError, EvalError, RunError, TensorError, TypeError};

use super::FinetuneArgs;
use crate::error::CliError;
use crate::output;

/// Adds a remedy to an out-of-memory error; other errors are unchanged.
pub(super) fn with_remedy(args: &FinetuneArgs, e: CliError) -> CliError {
    match lacking(&e) {
        Some(what) => CliError::Memory {
            what: format!("training exceeds the available memory: {what}"),
            remedy: remedy(args),
        },
        None => e,
    }
}

/// Description of the failed allocation, if the error is about memory.
fn lacking(e: &CliError) -> Option<String> {
    match e {
        CliError::Compile(e) | CliError::Train(TrainError::Compile(e)) => match e {
            CompileError::OutOfMemory { what, bytes } => Some(sized(what, *bytes)),
            CompileError::TooLarge { op, bytes, .. } => {
                Some(sized(&format!("a result of {op}"), *bytes))
            }
            CompileError::Bounds(e) => Some(e.to_string()),
            _ => None,
        },
        CliError::Run(e) | CliError::Train(TrainError::Run(e)) => match e {
            RunError::OutOfMemory { what, bytes } => Some(sized(what, *bytes)),
            RunError::Tensor(e)
            | RunError::Node {
                source: EvalError::Tensor(e),
                ..
            } => tensor_error_text(e),
            _ => None,
        },
        CliError::Train(TrainError::Tensor(e)) | CliError::Tensor { source: e, .. } => {
            tensor_error_text(e)
        }
        CliError::Model { source, .. } => too_large(source),
        _ => None,
    }
}

fn tensor_error_text(e: &TensorError) -> Option<String> {
    match e {
        TensorError::OutOfMemory { ty, bytes } => Some(sized(&format!("a tensor {ty}"), *bytes)),
        TensorError::Overflow { .. } => Some(e.to_string()),
        _ => None,
    }
}

/// Description of a tensor type in the error chain that exceeds the address space.
fn too_large(e: &(dyn Error + 'static)) -> Option<String> {
    let mut cause = Some(e);
    while let Some(e) = cause {
        if let Some(e @ TypeError::TooLarge { .. }) = e.downcast_ref() {
            return Some(e.to_string());
        }
        cause = e.source();
    }
    None
}

/// `the arena of 12.0 GiB cannot be allocated`. Beyond the address space the size is unknown.
fn sized(what: &str, bytes: u64) -> String {
    match bytes {
        u64::MAX => format!("{what} is larger than the address space"),
        bytes => format!("{what} of {} cannot be allocated", output::bytes(bytes)),
    }
}

/// Flags whose change reduces memory use.
fn remedy(args: &FinetuneArgs) -> String {
    let mut less = Vec::new();
    if args.batch > 1 {
        let batch = args.batch;
        less.push(format!(
            "lower --batch from {batch} (--microbatches keeps the rows per step)"
        ));
    }
    less.push(match args.seq {
        Some(seq) => format!("lower --seq from {seq}"),
        None => "set a small --seq".to_string(),
    });
    for (flag, is_given) in [
        ("--checkpoint-layers", args.recompute),
        ("--remat-cheap", args.recompute_activations),
    ] {
        if !is_given {
            less.push(format!("set {flag}"));
        }
    }
    if args.full {
        less.push("train an adapter, without --full".to_string());
    }
    less.join(", or ")
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use tercet::{DType, NodeId, TensorType};

    use super::*;

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
}
