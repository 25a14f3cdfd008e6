//! ONNX models as Tercet graphs.
//!
//! [`import`] reads a model and builds a [`tercet_ir::Graph`]: symbols of the file stay symbols, arithmetic on shapes is
//! done while importing and never runs, functions are written out. What is not supported is refused here, all of it at
//! once, with the names of the nodes; a model that was imported means what its file says.
//!
//! [`export`] goes the other way: a graph as a model.
//!
//! [`Session`] runs a model again and again and compiles when it must; [`OnnxModel`] is a file that was read, and what it says.
//!
//! A walk: `proto` is the file, `import` the model as a whole, `node` one node after the other, `ops` the table of operators,
//! `val` what a name stands for (a value of the graph, a known tensor, sizes with symbols), `nums` the arithmetic on shapes.
//!
//! Invariants: an attribute that is not honoured is an error; nothing in a file makes the importer panic, recurse without
//! bound, read outside the model's folder, or take memory out of proportion to the file.
#![deny(unsafe_code)]

mod attrs;
mod bounded;
mod call;
mod ctx;
mod elem;
mod error;
mod export;
mod external;
mod given;
mod import;
mod mapped;
mod model;
mod narrow;
mod node;
mod nums;
mod ops;
mod outputs;
pub mod proto;
mod session;
mod sizes;
mod sort;
mod strings;
mod tensor;
mod val;

pub use bounded::{DynamicSizeOutput, cut};
pub use error::{ModelLocation, NodeError, NodeErrorKind, OnnxError};
pub use export::{ExportError, export, write};
pub use import::{ImportOptions, ImportedModel, OnnxModelSource, import, import_model};
pub use model::{OnnxModel, OnnxModelInfo, OnnxPort};
pub use outputs::MapOutput;
pub use session::{Session, SessionError};
pub use sizes::sizes_of;
pub use strings::StringTable;

/// The initializers of a serialized `GraphProto` by their names, each as [`read_tensor`] gives it: a file of tensors.
///
/// # Errors
/// As [`read_tensor`].
pub fn read_tensors(bytes: Vec<u8>) -> Result<Vec<(String, tercet_ir::Tensor)>, String> {
    StringTable::default().read_tensors(bytes)
}

/// The tensor of a serialized `TensorProto`. Of dtypes that [`tercet_ir::DType`] does not have it is what a model's input of that
/// dtype takes: 16-bit integers as I32, those of 4 and 2 bits as I8 and U8, U64 by its bits as I64, 8-bit and 4-bit floats as F32.
/// Strings are read by [`StringTable::read_tensor`].
///
/// # Errors
/// What is wrong with the bytes, or the dtype that is not supported.
pub fn read_tensor(bytes: Vec<u8>) -> Result<tercet_ir::Tensor, String> {
    StringTable::default().read_tensor(bytes)
}
