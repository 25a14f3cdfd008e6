//! Errors of the command line, and how they are shown: the error and its causes, a line each.

use std::error::Error;
use std::path::PathBuf;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    /// By Ctrl-C; what was done until then was shown.
    Interrupted,
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    /// Arguments that contradict each other or the model.
    #[error("{0}")]
    Usage(String),
    #[error("{path}", path = path.display())]
    File {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("cannot write the output")]
    Output(#[from] std::io::Error),
    #[error("{what}")]
    Model {
        what: String,
        source: tercet_models::Error,
    },
    #[error(transparent)]
    Device(#[from] tercet::DeviceError),
    #[error("{path}", path = path.display())]
    Graph {
        path: PathBuf,
        source: tercet::TextError,
    },
    #[error("the graph cannot be compiled for this device")]
    Compile(#[from] tercet::CompileError),
    #[error("the run failed")]
    Run(#[from] tercet::RunError),
    #[error(transparent)]
    Npy(#[from] crate::npy::NpyError),
    #[error("{what}")]
    Tensor {
        what: String,
        source: tercet::TensorError,
    },
}

impl CliError {
    /// An error while dealing with a model, which `what` names.
    pub(crate) fn model<E: Into<tercet_models::Error>>(
        what: impl Into<String>,
    ) -> impl FnOnce(E) -> CliError {
        let what = what.into();
        move |e| CliError::Model {
            what,
            source: e.into(),
        }
    }

    pub(crate) fn is_broken_pipe(&self) -> bool {
        matches!(self, CliError::Output(e) if e.kind() == std::io::ErrorKind::BrokenPipe)
    }
}

/// Prints an error and its causes to standard error. Causes that repeat the line above are left out.
pub(crate) fn report(e: &CliError) {
    eprintln!("error: {e}");
    let mut last = e.to_string();
    let mut source = e.source();
    while let Some(cause) = source {
        let text = cause.to_string();
        if text != last {
            eprintln!("  because: {text}");
        }
        last = text;
        source = cause.source();
    }
}
