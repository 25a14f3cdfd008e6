//! Errors of importing: one list for a model, each with the node it is about.

use std::fmt;
use std::path::PathBuf;

use tercet_ir::{OpError, RunError, TensorError};

/// Why a model was not imported.
#[derive(Debug, thiserror::Error)]
pub enum OnnxError {
    /// A file could not be read.
    #[error("{}: cannot be read", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The bytes are no ONNX message.
    #[error("not an ONNX file: the bytes are no valid message; check that the file is complete")]
    Decode {
        /// Where the decoder stopped.
        #[source]
        source: prost::DecodeError,
    },
    /// The model says something that cannot be, as a whole.
    #[error("invalid model: {0}")]
    Invalid(String),
    /// Nodes that were not imported: all of them.
    #[error("{}", DisplayNodeErrors(.0))]
    Nodes(Vec<NodeError>),
}

struct DisplayNodeErrors<'a>(&'a [NodeError]);
impl fmt::Display for DisplayNodeErrors<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 50;
        let count = tercet_ir::counted(self.0.len(), "problem", "problems");
        write!(f, "{count}")?;
        for e in self.0.iter().take(SHOWN) {
            write!(f, "\n  {}", tercet_ir::one_line(e))?;
        }
        match self.0.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, "\n  and {more} more"),
        }
    }
}

/// What is wrong with one node.
#[derive(Debug, thiserror::Error)]
#[error("{at}")]
pub struct NodeError {
    /// The node.
    pub at: ModelLocation,
    /// What is wrong.
    #[source]
    pub source: NodeErrorKind,
}

impl OnnxError {
    /// Whether it may be that the model runs once sizes are known: nothing is refused that no sizes and no values of inputs
    /// could help. Such a model is imported for each size ([`OnnxModel::import_at`](crate::OnnxModel::import_at)).
    pub fn may_need_sizes(&self) -> bool {
        match self {
            OnnxError::Nodes(nodes) => {
                let mut reasons = nodes.iter().map(|n| &n.source);
                reasons.all(|r| r.may_need_sizes() || r.needs_inputs())
            }
            OnnxError::Read { .. } | OnnxError::Decode { .. } | OnnxError::Invalid(_) => false,
        }
    }
}

/// Where in a model: a node, as viewers show it, or something else that has a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelLocation {
    /// Functions and graphs inside nodes that the node is in, outermost first.
    pub inside: Vec<String>,
    /// The node's name, or `#3` for the fourth node without one.
    pub name: String,
    /// The operator; `input`, `output` or `initializer` for what is no node.
    pub op: String,
}

impl fmt::Display for ModelLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for outer in &self.inside {
            write!(f, "{outer} / ")?;
        }
        write!(f, "{} ({})", self.name, self.op)
    }
}

/// Why a node was not imported.
#[derive(Debug, thiserror::Error)]
pub enum NodeErrorKind {
    /// No such operator is in the table.
    #[error("the operator is not supported in {0}")]
    Operator(String),
    /// An attribute that is missing, of another type or of a value that is not supported.
    #[error("attribute `{name}`: {reason}")]
    Attribute {
        /// Its name.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// Attributes that the operator does not honour.
    #[error("unknown attributes {0}; the answer could depend on them")]
    Unread(String),
    /// An operand that is missing or of another kind.
    #[error("operand {index}: {reason}")]
    Operand {
        /// Which, from 0.
        index: usize,
        /// What is wrong.
        reason: String,
    },
    /// Shapes depend on the value of an operand, which is known only when inputs are.
    #[error("operand {index} decides shapes, so its value must be known when importing; it depends on {}; give them with `ImportOptions::value`", names(.inputs))]
    NeedsValue {
        /// Which operand, from 0.
        index: usize,
        /// The inputs of the model that it depends on.
        inputs: Vec<String>,
    },
    /// Something that is not supported, with a remedy where there is one.
    #[error("{0}")]
    Unsupported(String),
    /// The graph refuses it.
    #[error("cannot be built")]
    Graph(#[from] OpError),
    /// A tensor could not be made.
    #[error("a tensor cannot be made")]
    Tensor(#[from] TensorError),
    /// Evaluating constants failed.
    #[error("constants cannot be evaluated")]
    Fold(#[from] RunError),
}

fn names(list: &[String]) -> String {
    let quoted: Vec<String> = list.iter().map(|n| format!("`{n}`")).collect();
    match quoted.is_empty() {
        true => "data inside the model".to_string(),
        false => quoted.join(", "),
    }
}

impl NodeErrorKind {
    /// Whether values of inputs are all that is missing.
    pub(crate) fn needs_inputs(&self) -> bool {
        matches!(self, NodeErrorKind::NeedsValue { inputs, .. } if !inputs.is_empty())
    }

    /// Whether it may be that known sizes in place of symbols are all that is missing.
    pub(crate) fn may_need_sizes(&self) -> bool {
        match self {
            NodeErrorKind::Operator(_)
            | NodeErrorKind::Attribute { .. }
            | NodeErrorKind::Unread(_) => false,
            NodeErrorKind::NeedsValue { inputs, .. } => inputs.is_empty(),
            NodeErrorKind::Operand { .. }
            | NodeErrorKind::Unsupported(_)
            | NodeErrorKind::Graph(_)
            | NodeErrorKind::Tensor(_)
            | NodeErrorKind::Fold(_) => true,
        }
    }

    /// Something that is not supported.
    pub(crate) fn unsupported(what: impl Into<String>) -> NodeErrorKind {
        NodeErrorKind::Unsupported(what.into())
    }

    pub(crate) fn attribute(name: &str, reason: impl Into<String>) -> NodeErrorKind {
        NodeErrorKind::Attribute {
            name: name.to_string(),
            reason: reason.into(),
        }
    }

    pub(crate) fn operand(index: usize, reason: impl Into<String>) -> NodeErrorKind {
        NodeErrorKind::Operand {
            index,
            reason: reason.into(),
        }
    }
}
