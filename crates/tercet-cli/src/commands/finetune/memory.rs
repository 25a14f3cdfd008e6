//! Out-of-memory errors of training: the size of the failed allocation, and the flags that reduce
//! memory use.

use std::error::Error;

use tercet::train::TrainError;
use tercet::{CompileError, EvalError, RunError, TensorError, TypeError};

use super::FinetuneArgs;
use crate::error::CliError;
use crate::output;

/// Adds a remedy to an out-of-memory error; other errors are unchanged.
pub fn with_remedy(args: &FinetuneArgs, e: CliError) -> CliError {
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
