//! What can be wrong with a safetensors file.

use super::dtype::SafeDtype;
use crate::mmap::FileError;

/// Why a safetensors file was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(
    missing_docs,
    reason = "the fields are named by the messages above them"
)]
pub enum SafeTensorsError {
    /// The file could not be opened.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file is shorter than the header's length field.
    #[error(
        "the file has {file_len} bytes, but 8 are needed for the header length at offset 0; the download may be incomplete"
    )]
    TooShort { file_len: u64 },
    /// The header is longer than the file or the limit.
    #[error(
        "the header length at offset 0 is {header_len}, but at most {max} bytes can follow; \
         the file is incomplete or not a safetensors file"
    )]
    HeaderTooLong { header_len: u64, max: u64 },
    /// The header is not the JSON that the format asks for.
    #[error("the header is not valid at offset {offset}: {reason}")]
    BadHeader { offset: u64, reason: String },
    /// The same name twice.
    #[error("the tensor `{tensor}` is declared twice")]
    DuplicateTensor { tensor: String },
    /// The same metadata key twice.
    #[error("the key `{key}` of `__metadata__` occurs twice")]
    DuplicateMetadata { key: String },
    /// A dtype that the format does not have.
    #[error("tensor `{tensor}` has dtype `{found}`, which this reader does not know")]
    UnknownDtype { tensor: String, found: String },
    /// The number of elements or bytes does not fit 63 bits.
    #[error("the shape {shape:?} of tensor `{tensor}` overflows")]
    ShapeOverflow { tensor: String, shape: Vec<u64> },
    /// The data offsets run backwards or out of the file.
    #[error(
        "data_offsets [{begin}, {end}] of tensor `{tensor}` do not lie in the data section of \
         {data_len} bytes; the download may be incomplete"
    )]
    BadOffsets {
        tensor: String,
        begin: u64,
        end: u64,
        data_len: u64,
    },
    /// The data is not as long as dtype and shape say.
    #[error(
        "tensor `{tensor}` of {dtype} {shape:?} needs {need} bytes, its data_offsets give {found}"
    )]
    WrongLength {
        tensor: String,
        dtype: SafeDtype,
        shape: Vec<u64>,
        need: u64,
        found: u64,
    },
    /// Sub-byte elements that do not fill whole bytes.
    #[error("tensor `{tensor}` of {dtype} {shape:?} does not fill whole bytes")]
    PartialByte {
        tensor: String,
        dtype: SafeDtype,
        shape: Vec<u64>,
    },
    /// Two tensors share bytes.
    #[error(
        "tensor `{second}` begins at {second_begin} of the data section, inside `{first}`, which ends at {first_end}"
    )]
    Overlap {
        first: String,
        first_end: u64,
        second: String,
        second_begin: u64,
    },
    /// Bytes that belong to no tensor.
    #[error("bytes {begin} to {end} of the data section belong to no tensor (before {before})")]
    Hole {
        begin: u64,
        end: u64,
        before: String,
    },
    /// A tensor that is needed and not there.
    #[error("the file has no tensor `{tensor}`")]
    NoSuchTensor { tensor: String },
}
