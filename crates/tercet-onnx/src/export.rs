//! Export of Tercet graphs as ONNX models (opset 21), for other tools.
//!
//! [`export`] legalizes a graph for ONNX as for an executor. Operators with an ONNX equivalent are
//! written as one or a few ONNX nodes. Composite operators are decomposed, and the remaining ones
//! are reported all at once. Semantics are preserved, including edge cases: softmax of a row of
//! `-inf` is 0, integer division by 0 is defined, and floats saturate when converted to integers.
//!
//! Symbols become dimension parameters; size expressions become arithmetic on the `Shape` of
//! inputs. A state becomes an input with its name and, if the graph assigns it, an output named
//! `NAME.next`. The caller feeds this output back as the input of the next run. Inputs and outputs in
//! BF16 are F32 in the model, because NumPy has no BF16; the model casts them.
//!
//! Modules: `writer` has the model under construction and `node` maps operators to `elementwise`,
//! `movement`, `windows`, `recurrent` and `control`. `shapes` computes sizes, and `file` writes the file.
//!
//! Specification: `https://onnx.ai/onnx/operators/`.

mod control;
mod elementwise;
mod file;
mod movement;
mod node;
mod proto;
pub(crate) mod recurrent;
mod shapes;
mod windows;
mod writer;

use prost::Message;
use tercet_ir::legalize::legalize;
use tercet_ir::{
    CompileError, Graph, Node, Op, Support, Symbol, Target, Tensor, TensorType, Type, Value,
};

pub use file::{write, write_with_limit};

use crate::proto::ModelProto;
use writer::{ExportNodeError, OnnxWriter};

/// The version of the operator set for all nodes.
pub(crate) const OPSET: i64 = 21;

/// The error of exporting a graph.
///
/// ```
/// use tercet_ir::{DType, Graph, Tensor, Type};
/// use tercet_onnx::{ExportError, export};
/// let mut g = Graph::new();
/// let w = g.param("w", Type::new(DType::F32, [2]))?;
/// let y = g.exp(w)?;
/// g.output("y", y)?;
/// let error = export(&g, |_| Some(Tensor::scalar(1f32))).unwrap_err();
/// assert!(matches!(error, ExportError::Weight { name, .. } if name == "w"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The operators that ONNX does not have and that do not decompose into ONNX operators.
    #[error("the graph cannot be expressed in ONNX")]
    Unsupported(#[from] CompileError),
    /// A node that cannot be expressed with the provided weights.
    #[error("the graph cannot be expressed in ONNX: {reason}")]
    NoForm {
        /// The reason.
        reason: String,
    },
    /// A symbolic size that is not an axis of any input.
    #[error("the size `{symbol}` is not an axis of any input; fix it before exporting")]
    Unbound {
        /// The symbol.
        symbol: Symbol,
    },
    /// The tensor of a parameter has the wrong type.
    #[error("parameter `{name}` has the wrong type: expected {wanted}, found {given}")]
    Weight {
        /// The name of the parameter.
        name: String,
        /// The type of the parameter.
        wanted: Type,
        /// The type of the tensor.
        given: TensorType,
    },
    /// A file could not be written.
    #[error("{}: cannot be written", .path.display())]
    Write {
        /// The path of the file.
        path: std::path::PathBuf,
        /// The I/O error.
        #[source]
        source: std::io::Error,
    },
}

/// Exports a graph as a model. `weight` returns the tensor of a parameter by name, which becomes an
/// initializer. A parameter without a tensor becomes an input.
///
/// # Errors
/// [`ExportError`]: all operators that ONNX cannot express, a size that no input determines, or a
/// weight of the wrong type.
pub fn export(
    graph: &Graph,
    weight: impl FnMut(&str) -> Option<Tensor>,
) -> Result<ModelProto, ExportError> {
    let legal = legalize(graph, &OnnxTarget)?;
    OnnxWriter::model(&legal, weight)
}

/// The legalization target: operators that ONNX can express.
struct OnnxTarget;

impl Target for OnnxTarget {
    fn name(&self) -> &'static str {
        "ONNX"
    }

    /// Tries to write the node; it is supported if that succeeds.
    fn supports(&self, graph: &Graph, node: &Node) -> Support {
        if let Op::Const(_) = node.op {
            return Support::Native;
        }
        let mut trial = OnnxWriter::on_trial();
        match node::emit(&mut trial, graph, node) {
            Ok(_) | Err(ExportNodeError::Unbound(_)) => Support::Native,
            Err(ExportNodeError::NoForm(reason)) => Support::Missing { reason },
        }
    }
}

/// The serialized size of a model in bytes.
pub(crate) fn message_bytes(model: &ModelProto) -> usize {
    model.encoded_len()
}

/// The name of a value in the file.
fn name_of(value: Value) -> String {
    match value.port {
        0 => format!("%{}", value.node.0),
        port => format!("%{}.{port}", value.node.0),
    }
}
