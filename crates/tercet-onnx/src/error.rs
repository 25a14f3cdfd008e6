//! Import errors: a list of failures per model, each with its node.

use std::fmt;
use std::path::PathBuf;

use tercet_ir::{OpError, RunError, TensorError};

/// The error of reading or importing a model.
///
/// ```
/// use tercet_onnx::{ImportOptions, OnnxError, import};
/// let error = import(vec![255u8; 16], &ImportOptions::new()).unwrap_err();
/// assert!(matches!(error, OnnxError::Decode { .. }));
/// assert!(!error.may_need_sizes());
/// ```
#[derive(Debug, thiserror::Error)]
pub enum OnnxError {
    /// A file could not be read.
    #[error("{}: cannot be read", .path.display())]
    Read {
        /// The path of the file.
        path: PathBuf,
        /// The I/O error.
        #[source]
        source: std::io::Error,
    },
    /// The bytes are not an ONNX message.
    #[error("not an ONNX file: the bytes are not a valid message; check that the file is complete")]
    Decode {
        /// The error of the protobuf decoder.
        #[source]
        source: prost::DecodeError,
    },
    /// The model as a whole is invalid, for the given reason.
    #[error("invalid model: {0}")]
    Invalid(String),
    /// All nodes that could not be imported.
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

/// The import error of one node.
///
/// ```
/// use tercet_onnx::{ModelLocation, NodeError, NodeErrorKind, OnnxError};
/// let at = ModelLocation { inside: vec![], name: "gate".to_string(), op: "Mystery".to_string() };
/// let source = NodeErrorKind::Operator("opset 21".to_string());
/// let error = OnnxError::Nodes(vec![NodeError { at, source }]);
/// assert!(error.to_string().contains("gate (Mystery)"));
/// ```
#[derive(Debug, thiserror::Error)]
#[error("{at}")]
pub struct NodeError {
    /// The location of the node.
    pub at: ModelLocation,
    /// The reason of the failure.
    #[source]
    pub source: NodeErrorKind,
}

impl OnnxError {
    /// Whether the import could succeed with known sizes or input values. Such a model is imported
    /// once per size ([`OnnxModel::import_at`](crate::OnnxModel::import_at)).
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

/// A location in a model: a node, with the name that graph viewers show, or an input, output or
/// initializer.
///
/// ```
/// use tercet_onnx::ModelLocation;
/// let location = ModelLocation {
///     inside: vec!["loop".to_string()],
///     name: "gate".to_string(),
///     op: "Mul".to_string(),
/// };
/// assert_eq!(location.to_string(), "loop / gate (Mul)");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelLocation {
    /// The enclosing functions and subgraph nodes, outermost first.
    pub inside: Vec<String>,
    /// The node's name, or `#3` for the fourth node if it has none.
    pub name: String,
    /// The operator; `input`, `output` or `initializer` for other locations.
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

/// The reason why a node could not be imported.
///
/// ```
/// use tercet_onnx::NodeErrorKind;
/// let error = NodeErrorKind::NeedsValue { index: 1, inputs: vec!["shape".to_string()] };
/// assert!(error.to_string().contains("`shape`"));
/// ```
#[derive(Debug, thiserror::Error)]
pub enum NodeErrorKind {
    /// The operator is unknown.
    #[error("the operator is not supported in {0}")]
    Operator(String),
    /// An attribute is missing, or has an unsupported type or value.
    #[error("attribute `{name}`: {reason}")]
    Attribute {
        /// The name of the attribute.
        name: String,
        /// The reason.
        reason: String,
    },
    /// The named attributes are unknown to the operator's importer.
    #[error("unsupported attributes {0}; they could change the result")]
    Unread(String),
    /// An operand is missing, or has an unsupported type or value.
    #[error("operand {index}: {reason}")]
    Operand {
        /// The index of the operand, from 0.
        index: usize,
        /// The reason.
        reason: String,
    },
    /// Shapes depend on the value of an operand, which is unknown at import time.
    #[error("operand {index} decides shapes, so its value must be known at import time; it depends on {}; set them with `ImportOptions::value`", names(.inputs))]
    NeedsValue {
        /// The index of the operand, from 0.
        index: usize,
        /// The model inputs that the operand depends on.
        inputs: Vec<String>,
    },
    /// An unsupported construct, with a remedy if there is one.
    #[error("{0}")]
    Unsupported(String),
    /// The graph builder rejected the operator.
    #[error("cannot be built")]
    Graph(#[from] OpError),
    /// A tensor could not be created.
    #[error("a tensor cannot be created")]
    Tensor(#[from] TensorError),
    /// Constant evaluation failed.
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
    /// Whether only input values are missing.
    pub(crate) fn needs_inputs(&self) -> bool {
        matches!(self, NodeErrorKind::NeedsValue { inputs, .. } if !inputs.is_empty())
    }

    /// Whether known sizes instead of symbols might suffice.
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

    /// An error for an unsupported construct.
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
