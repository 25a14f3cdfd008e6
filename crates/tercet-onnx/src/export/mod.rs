//! Tercet graphs as ONNX models (opset 21), that other tools show, check and run.
//!
//! [`export`] legalizes a graph for ONNX as it is legalized for an executor: what has an operator of ONNX, or a few of them,
//! is written as that, composite operators as what they decompose into, and what is left is refused, all nodes at once. The
//! meaning of a node stays, edges included: softmax of a line of `-inf` is 0, integers divide by 0, floats saturate where
//! they become integers.
//!
//! Symbols are the file's dimension parameters; arithmetic on them becomes arithmetic on `Shape`s of inputs. A state is an
//! input of its name and, where the graph assigns it, an output named `NAME.next`: who runs the model hands it back.
//!
//! A walk: `writer` is the file under construction, `node` says what becomes of an operator, with `elementwise`, `movement`,
//! `windows` and `control` by kind, `shapes` computes sizes, `file` writes.
//!
//! Specification: `https://onnx.ai/onnx/operators/`.

mod control;
mod elementwise;
mod file;
mod movement;
mod node;
mod proto;
mod shapes;
mod windows;
mod writer;

use prost::Message;
use tercet_ir::legalize::legalize;
use tercet_ir::{
    CompileError, Graph, Node, Op, Support, Symbol, Target, Tensor, TensorType, Type, Value,
};

pub use file::write;

use crate::proto::ModelProto;
use writer::{ExportNodeError, OnnxWriter};

/// The operator set that nodes are of.
pub(crate) const OPSET: i64 = 21;

/// Why a graph was not exported.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// Operators that ONNX does not have and that decompose into nothing it has: all of them.
    #[error("the graph has no form as an ONNX model")]
    Unsupported(#[from] CompileError),
    /// A node that has no form with the weights that were given.
    #[error("the graph has no form as an ONNX model: {reason}")]
    NoForm {
        /// What is in the way.
        reason: String,
    },
    /// A size that no input says.
    #[error(
        "the size `{symbol}` is an axis of no input, so that the model could not know it; give it a size before exporting"
    )]
    Unbound {
        /// The symbol.
        symbol: Symbol,
    },
    /// A tensor for a parameter that has another type.
    #[error("parameter `{name}` is {wanted}, not {given}")]
    Weight {
        /// The parameter.
        name: String,
        /// Its type.
        wanted: Type,
        /// That of the tensor.
        given: TensorType,
    },
    /// A file could not be written.
    #[error("{}: cannot be written", .path.display())]
    Write {
        /// The file.
        path: std::path::PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

/// A graph as a model. `weight` gives the tensors of parameters by their names, which become initializers; a parameter
/// without one becomes an input.
///
/// # Errors
/// [`ExportError`]: operators without a form, all at once; sizes that no input says; a weight of another type.
pub fn export(
    graph: &Graph,
    weight: impl FnMut(&str) -> Option<Tensor>,
) -> Result<ModelProto, ExportError> {
    let legal = legalize(graph, &OnnxTarget)?;
    OnnxWriter::model(&legal, weight)
}

/// What ONNX has.
struct OnnxTarget;

impl Target for OnnxTarget {
    fn name(&self) -> &'static str {
        "ONNX"
    }

    /// A node is written on trial: what can be written is supported.
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

/// How many bytes a model's message takes.
pub(crate) fn message_bytes(model: &ModelProto) -> usize {
    model.encoded_len()
}

/// The name of a value inside the file.
fn name_of(value: Value) -> String {
    match value.port {
        0 => format!("%{}", value.node.0),
        port => format!("%{}.{port}", value.node.0),
    }
}
