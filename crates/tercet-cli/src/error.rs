//! Errors of the command line, and how they are shown: the error and its causes, a line each.

use std::error::Error;
use std::path::PathBuf;

use crate::output;

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
    #[error("cannot read {path}", path = path.display())]
    File {
        path: PathBuf,
        source: std::io::Error,
    },
    #[cfg(feature = "splat")]
    #[error("cannot use the picture {path}: {reason}", path = path.display())]
    Picture { path: PathBuf, reason: String },
    /// What a scene is fitted to, or begins as, is not enough.
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
    #[error(transparent)]
    Device(#[from] tercet::DeviceError),
    #[error("{path} is no graph in text form", path = path.display())]
    Graph {
        path: PathBuf,
        source: tercet::TextError,
    },
    #[error("the ONNX model {path} cannot be used{hint}", path = path.display(), hint = hint(source))]
    Onnx {
        path: PathBuf,
        source: tercet_onnx::OnnxError,
    },
    #[error("no ONNX model {path} was written", path = path.display())]
    Export {
        path: PathBuf,
        source: tercet_onnx::ExportError,
    },
    #[error("the graph cannot be compiled for this device")]
    Compile(#[from] tercet::CompileError),
    #[error("{device} leaves the reference at {value}")]
    Diverges { device: &'static str, value: String },
    #[error("{what}; {remedy}")]
    Memory { what: String, remedy: String },
    #[error("the graph cannot be verified")]
    Verify(#[from] tercet::VerifyError),
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
    #[cfg(feature = "serve")]
    #[error(transparent)]
    Serve(#[from] tercet_serve::ServeError),
    #[error("{what}")]
    Tensor {
        what: String,
        source: tercet::TensorError,
    },
}

/// How inputs that decide shapes are given to a command.
fn hint(e: &tercet_onnx::OnnxError) -> &'static str {
    use tercet_onnx::{OnnxError, Reason};
    let needs = |e: &tercet_onnx::NodeError| matches!(e.source, Reason::NeedsValue { .. });
    match e {
        OnnxError::Nodes(nodes) if nodes.iter().any(needs) => {
            "; values that must be known are given with --input NAME=FILE.npy"
        }
        OnnxError::Nodes(_)
        | OnnxError::Read { .. }
        | OnnxError::Decode { .. }
        | OnnxError::Invalid(_) => "",
    }
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

/// Prints an error and its causes to standard error. Further lines of one are indented: text from a file does
/// not look like an error of its own.
pub(crate) fn report(e: &CliError) {
    output::note(format_args!("error: {}", indented(&e.to_string())));
    for cause in causes(e) {
        output::note(format_args!("  because: {}", indented(&cause)));
    }
}

fn indented(text: &str) -> String {
    let mut lines = text.lines();
    let mut indented = lines.next().unwrap_or_default().to_string();
    for line in lines {
        let margin = if line.starts_with("  ") { "" } else { "  " };
        indented += &format!("\n{margin}{line}");
    }
    indented
}

/// What stands behind an error, outermost first. Left out: names of readers, which say nothing that
/// their own errors do not, causes that the line above says already, and a path that it ends with.
pub(crate) fn causes(e: &(dyn Error + 'static)) -> Vec<String> {
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

/// Errors of the models crate that only say which reader refused.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Layer(&'static str, #[source] Option<Box<Layer>>);

    #[test]
    fn a_cause_is_said_once() {
        let chain = |texts: [&'static str; 3]| {
            let [outer, middle, inner] = texts;
            let inner = Layer(inner, None);
            let middle = Layer(middle, Some(Box::new(inner)));
            causes(&Layer(outer, Some(Box::new(middle))))
        };
        assert_eq!(chain(["a", "b", "c"]), ["b", "c"]);
        assert_eq!(chain(["cannot do: it is late", "it is late", "c"]), ["c"]);
        assert_eq!(
            chain(["cannot read x.npy", "x.npy: no file", "no file"]),
            ["no file"]
        );
    }

    #[test]
    fn further_lines_are_indented() {
        assert_eq!(indented("a\n  b\nerror: c"), "a\n  b\n  error: c");
    }
}
