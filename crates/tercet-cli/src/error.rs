//! Errors of the command line and their output: the error and each of its causes on a separate
//! line.

use std::error::Error;
use std::path::PathBuf;

use crate::output;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandOutcome {
    Done,
    /// Ended by Ctrl-C, after printing the results so far.
    Interrupted,
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// Arguments that contradict each other or the model.
    #[error("{0}")]
    Usage(String),
    /// The chat template of the model cannot be applied.
    #[error("the chat template rejects the conversation: {0}")]
    Template(String),
    #[error("cannot read {path}", path = path.display())]
    File {
        path: PathBuf,
        source: std::io::Error,
    },
    #[cfg(feature = "splat")]
    #[error("cannot use the image {path}: {reason}", path = path.display())]
    Picture { path: PathBuf, reason: String },
    /// The training images or the initial scene are unsuitable for fitting.
    #[cfg(feature = "splat")]
    #[error("{0}")]
    Fit(String),
    #[error("cannot write {path}", path = path.display())]
    Write {
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
    /// A model that another command runs.
    #[error("{what}: it is {found}; use {command}")]
    OtherCommand {
        what: String,
        found: &'static str,
        command: &'static str,
    },
    /// Keys of a model's configuration that would be ignored, with `--strict`.
    #[error("{what}: {file} has keys that would be ignored: {keys}; remove them, or omit --strict")]
    IgnoredKeys {
        what: String,
        file: &'static str,
        keys: String,
    },
    #[error(transparent)]
    Device(#[from] tercet::DeviceError),
    #[error("{path} is not a valid graph in text form", path = path.display())]
    Graph {
        path: PathBuf,
        source: tercet::TextError,
    },
    #[error("the ONNX model {path} cannot be used{hint}", path = path.display(), hint = hint(source))]
    Onnx {
        path: PathBuf,
        source: tercet_onnx::OnnxError,
    },
    #[error("cannot export the ONNX model {path}", path = path.display())]
    Export {
        path: PathBuf,
        source: tercet_onnx::ExportError,
    },
    #[error("the graph cannot be compiled for this device")]
    Compile(#[from] tercet::CompileError),
    #[error("{device} differs from the reference at {value} by more than the tolerance")]
    Diverges { device: &'static str, value: String },
    #[error("{what}; {remedy}")]
    Memory { what: String, remedy: String },
    #[error("the graph cannot be verified")]
    Verify(#[from] tercet::EvaluateError),
    #[error(transparent)]
    Tune(#[from] tercet::TuneError),
    #[error("the run failed")]
    Run(#[from] tercet::RunError),
    #[error("the training step cannot be built")]
    Step(#[from] tercet::train::StepError),
    #[error("the training failed")]
    Train(#[from] tercet::train::TrainError),
    #[error("the trained weights cannot be read")]
    Trained(#[from] tercet_models::ModelError),
    #[error(transparent)]
    Npy(#[from] crate::npy::NpyError),
    #[error("the MCP server `{server}` {reason}")]
    Mcp { server: String, reason: String },
    #[cfg(feature = "hub")]
    #[error(transparent)]
    Hub(#[from] tercet_hub::HubError),
    #[cfg(feature = "serve")]
    #[error(transparent)]
    Serve(#[from] tercet_serve::ServeError),
    #[error("{what}")]
    Tensor {
        what: String,
        source: tercet::TensorError,
    },
}

/// Names the flag for inputs that determine shapes, if the error is about one.
fn hint(e: &tercet_onnx::OnnxError) -> &'static str {
    use tercet_onnx::{NodeErrorKind, OnnxError};
    let needs = |e: &tercet_onnx::NodeError| matches!(e.source, NodeErrorKind::NeedsValue { .. });
    match e {
        OnnxError::Nodes(nodes) if nodes.iter().any(needs) => {
            "; provide the values that determine shapes with --input NAME=FILE.npy"
        }
        OnnxError::Nodes(_)
        | OnnxError::Read { .. }
        | OnnxError::Decode { .. }
        | OnnxError::Invalid(_) => "",
    }
}

/// The name of standard input in errors.
pub(crate) const STANDARD_INPUT: &str = "standard input";

impl CliError {
    /// Wraps a model error in the message `what`.
    pub(crate) fn model<E: Into<tercet_models::Error>>(
        what: impl Into<String>,
    ) -> impl FnOnce(E) -> CliError {
        let what = what.into();
        move |e| CliError::Model {
            what,
            source: e.into(),
        }
    }

    /// Whether a text exceeds the model's context.
    pub(crate) fn is_context(&self) -> bool {
        use tercet_models::{Error, ModelError};
        let source = match self {
            CliError::Model { source, .. } => source,
            _ => return false,
        };
        matches!(source, Error::Model(ModelError::Context { .. }))
    }

    /// Whether standard input or standard output failed.
    pub(crate) fn is_of_terminal(&self) -> bool {
        match self {
            CliError::Output(_) => true,
            CliError::File { path, .. } => path.as_os_str() == STANDARD_INPUT,
            _ => false,
        }
    }

    pub(crate) fn is_broken_pipe(&self) -> bool {
        matches!(self, CliError::Output(e) if e.kind() == std::io::ErrorKind::BrokenPipe)
    }
}

/// Prints an error and its causes to standard error. Continuation lines are indented, so that text
/// from a file cannot imitate an error message.
pub(crate) fn report(e: &CliError) {
    output::print_note(format_args!("error: {}", indented(&e.to_string())));
    for cause in causes(e) {
        output::print_note(format_args!("  because: {}", indented(&cause)));
    }
}

pub fn indented(text: &str) -> String {
    let mut lines = text.lines();
    let mut indented = lines.next().unwrap_or_default().to_string();
    for line in lines {
        let margin = if line.starts_with("  ") { "" } else { "  " };
        indented += &format!("\n{margin}{line}");
    }
    indented
}

/// The causes of an error, outermost first. Skips errors that only name a file reader, causes that
/// the previous line already contains, and a path that repeats the end of the previous line.
pub fn causes(e: &(dyn Error + 'static)) -> Vec<String> {
    let mut lines = Vec::new();
    let mut last = e.to_string();
    let mut source = e.source();
    while let Some(cause) = source {
        source = cause.source();
        if is_reader(cause) {
            continue;
        }
        let mut text = cause.to_string();
        if let Some((head, rest)) = text.split_once(": ")
            && last.ends_with(head)
        {
            text = rest.to_string();
        }
        let said = text == last || last.contains(&format!(": {text}"));
        if !said {
            lines.push(text.clone());
            last = text;
        }
    }
    lines
}

/// Whether an error of the models crate only names the file reader that failed.
pub(crate) fn is_reader(e: &(dyn Error + 'static)) -> bool {
    use tercet_models::Error as Models;
    #[cfg(feature = "splat")]
    if matches!(e.downcast_ref(), Some(Models::Splat(_))) {
        return true;
    }
    matches!(
        e.downcast_ref(),
        Some(
            Models::Gguf(_)
                | Models::SafeTensors(_)
                | Models::Hf(_)
                | Models::Config(_)
                | Models::Tokenizer(_)
                | Models::Weight(_)
                | Models::Data(_)
        )
    )
}
