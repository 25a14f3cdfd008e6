//! Errors in a safetensors file.

use super::dtype::SafeDtype;
use crate::mmap::FileError;

/// The reason why a safetensors file is rejected.
///
/// ```
/// use tercet_files::{MappedFile, SafeTensors, SafeTensorsError};
/// let error = SafeTensors::parse(MappedFile::from_vec(vec![0; 4])).unwrap_err();
/// assert!(matches!(error, SafeTensorsError::TooShort { file_len: 4 }));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(
    missing_docs,
    reason = "the fields are named by the messages above them"
)]
pub enum SafeTensorsError {
    /// The file cannot be opened.
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
    /// The header is not JSON of the specified form.
    #[error("the header is not valid at offset {offset}: {reason}")]
    BadHeader { offset: u64, reason: String },
    /// A tensor name occurs twice.
    #[error("the tensor `{tensor}` is declared twice")]
    DuplicateTensor { tensor: String },
    /// A metadata key occurs twice.
    #[error("the key `{key}` of `__metadata__` occurs twice")]
    DuplicateMetadata { key: String },
    /// A dtype is not in the specification.
    #[error("tensor `{tensor}` has the unknown dtype `{found}`")]
    UnknownDtype { tensor: String, found: String },
    /// The number of elements or bytes does not fit 63 bits.
    #[error("the shape {shape:?} of tensor `{tensor}` overflows")]
    ShapeOverflow { tensor: String, shape: Vec<u64> },
    /// The data offsets are reversed or outside the file.
    #[error(
        "data_offsets [{begin}, {end}] of tensor `{tensor}` are outside the data section of \
         {data_len} bytes; the download may be incomplete"
    )]
    BadOffsets {
        tensor: String,
        begin: u64,
        end: u64,
        data_len: u64,
    },
    /// The data length does not match dtype and shape.
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
    /// Sub-byte elements do not fill whole bytes.
    #[error("tensor `{tensor}` of {dtype} {shape:?} does not fill whole bytes")]
    PartialByte {
        tensor: String,
        dtype: SafeDtype,
        shape: Vec<u64>,
    },
    /// Two tensors overlap.
    #[error(
        "tensor `{second}` begins at {second_begin} of the data section, inside `{first}`, which ends at {first_end}"
    )]
    Overlap {
        first: String,
        first_end: u64,
        second: String,
        second_begin: u64,
    },
    /// Some bytes belong to no tensor.
    #[error("bytes {begin} to {end} of the data section belong to no tensor (before {before})")]
    Hole {
        begin: u64,
        end: u64,
        before: String,
    },
    /// A required tensor is missing.
    #[error("the file has no tensor `{tensor}`")]
    NoSuchTensor { tensor: String },
}
