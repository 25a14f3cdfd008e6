//! Where memory does not suffice: how much was asked for, and which arguments ask for less.

use std::error::Error;

use tercet::train::TrainError;
use tercet::{CompileError, EvalError, RunError, TensorError, TypeError};

use super::Args;
use crate::error::CliError;
use crate::output;

/// The error with what to lower, where it is about memory; else as it is.
pub(super) fn with_remedy(args: &Args, e: CliError) -> CliError {
    match lacking(&e) {
        Some(what) => CliError::Memory {
            what: format!("training takes more memory than there is: {what}"),
            remedy: remedy(args),
        },
        None => e,
    }
}

/// What could not be had.
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
            } => of_tensor(e),
            _ => None,
        },
        CliError::Train(TrainError::Tensor(e)) | CliError::Tensor { source: e, .. } => of_tensor(e),
        CliError::Model { source, .. } => too_large(source),
        _ => None,
    }
}

fn of_tensor(e: &TensorError) -> Option<String> {
    match e {
        TensorError::OutOfMemory { ty, bytes } => Some(sized(&format!("a tensor {ty}"), *bytes)),
        TensorError::Overflow { .. } => Some(e.to_string()),
        _ => None,
    }
}

/// A type among the causes that no machine can hold.
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

/// `the arena of 12.0 GiB cannot be allocated`; sizes beyond the address space are not known.
fn sized(what: &str, bytes: u64) -> String {
    match bytes {
        u64::MAX => format!("{what} is larger than the address space"),
        bytes => format!("{what} of {} cannot be allocated", output::bytes(bytes)),
    }
}

/// The arguments that ask for less than these do.
fn remedy(args: &Args) -> String {
    let mut less = Vec::new();
    if args.batch > 1 {
        let batch = args.batch;
        less.push(format!(
            "lower --batch, which is {batch} (with --microbatches a step sees as many rows)"
        ));
    }
    less.push(match args.seq {
        Some(seq) => format!("lower --seq, which is {seq}"),
        None => "give a small --seq".to_string(),
    });
    for (flag, is_given) in [
        ("--recompute", args.recompute),
        ("--recompute-activations", args.recompute_activations),
    ] {
        if !is_given {
            less.push(format!("give {flag}"));
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
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    /// What is said of an error with these arguments.
    fn said(more: &[&str], e: impl Into<CliError>) -> String {
        let base = ["finetune", "--data", "d.txt", "--out", "o.gguf"];
        let cli = Cli::parse_from(base.iter().chain(more));
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
            "training takes more memory than there is: the arena of 3.0 TiB cannot be allocated; lower --batch, \
             which is 64 (with --microbatches a step sees as many rows), or lower --seq, which is 512, or give \
             --recompute, or give --recompute-activations"
        );
        assert_eq!(
            said(
                &[
                    "--batch",
                    "1",
                    "--full",
                    "--recompute",
                    "--recompute-activations"
                ],
                arena()
            ),
            "training takes more memory than there is: the arena of 3.0 TiB cannot be allocated; give a small \
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
        let other = said(&[], TrainError::Torn);
        assert_eq!(other, "the training failed");
    }
}
