//! Import and export of ONNX models as Tercet graphs.
//!
//! [`import`] reads a model and builds a [`tercet_ir::Graph`]. Symbolic dimensions stay symbolic,
//! shape arithmetic is evaluated at import time, and functions are inlined. Unsupported constructs
//! are reported all at once, with the names of the nodes. A successful import preserves the
//! semantics of the file.
//!
//! [`export`] converts a graph to a model.
//!
//! [`Session`] runs a model repeatedly and compiles it when needed. [`OnnxModel`] is a decoded file
//! with its metadata.
//!
//! Modules: `proto` is the file format, `import` handles the whole model, `node` a single node, and
//! `ops` has the operator table. `val` is the value of a name (a graph value, a known tensor, or
//! symbolic sizes). `shape_values` does shape arithmetic.
//!
//! Invariants: an attribute without support is an error. No file can make the importer panic,
//! recurse without bound, read outside the model's folder, or allocate memory out of proportion to
//! the file size.
#![deny(unsafe_code)]

mod attrs;
mod call;
mod ctx;
mod elem;
mod emulated_dtypes;
mod error;
mod export;
mod external;
mod import;
mod mapped;
mod model;
mod node;
mod ops;
mod outputs;
mod padded_value;
pub mod proto;
mod provided_inputs;
mod session;
mod shape_values;
mod sizes;
mod sort;
mod strings;
mod tensor;
mod val;

pub use error::{ModelLocation, NodeError, NodeErrorKind, OnnxError};
pub use export::{ExportError, export, write, write_with_limit};
pub use import::{ImportOptions, ImportedModel, OnnxModelSource, import, import_model};
pub use model::{OnnxModel, OnnxModelInfo, OnnxPort};
pub use outputs::MapOutput;
pub use padded_value::{DynamicSizeOutput, cut};
pub use session::{Session, SessionError};
pub use sizes::sizes_of;
pub use strings::StringTable;

/// Reads a tensor file: the initializers of a serialized `GraphProto` by name, each converted as by
/// [`read_tensor`].
///
/// # Errors
/// As [`read_tensor`].
pub fn read_tensors(bytes: Vec<u8>) -> Result<Vec<(String, tercet_ir::Tensor)>, String> {
    StringTable::default().read_tensors(bytes)
}

/// Reads the tensor of a serialized `TensorProto`. A dtype that [`tercet_ir::DType`] does not have
/// is converted to the dtype that a model input of it has: U16 to I32, 4-bit and 2-bit
/// integers to I8 and U8, 8-bit and 4-bit floats to F32. U64 is stored as the I64 with the same
/// bits. [`StringTable::read_tensor`] reads strings.
///
/// # Errors
/// The defect of the bytes, or the unsupported dtype.
pub fn read_tensor(bytes: Vec<u8>) -> Result<tercet_ir::Tensor, String> {
    StringTable::default().read_tensor(bytes)
}

/// Private items that the tests of this crate use. They are no interface: they change without notice.
#[doc(hidden)]
pub mod internals {
    pub use crate::elem::{Minifloat, MinifloatSpecials, Narrow};
    pub use crate::emulated_dtypes::{float, unsigned, wrap, wrapped};
    pub use crate::export::recurrent::{steps_first, with_rank};
}
