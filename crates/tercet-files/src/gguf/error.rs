//! Errors in a GGUF file: each has the byte offset, and the expected and found values.

use std::path::PathBuf;

use super::types::GgmlType;
use super::value::GgufValueType;
use crate::foreign::clip;
use crate::mmap::FileError;

/// The reason why a GGUF file is rejected, or why a requested value is not available.
///
/// Names from the file are truncated to 120 characters and their control characters are escaped, so
/// that messages stay readable for any file content.
///
/// ```
/// use tercet_files::{Gguf, GgufError, MappedFile};
/// let error = Gguf::parse(MappedFile::from_vec(vec![0; 32])).unwrap_err();
/// assert!(matches!(error, GgufError::BadMagic { .. }));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(
    missing_docs,
    reason = "the fields are named by the messages above them"
)]
pub enum GgufError {
    /// The file cannot be opened.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file does not begin with `GGUF`.
    #[error("not a GGUF file: expected the bytes \"GGUF\" at offset 0, found {found}{hint}")]
    BadMagic { found: String, hint: &'static str },
    /// The file is big-endian.
    #[error(
        "big-endian GGUF files are not supported (the version at offset 4 reads as {found:#010x}); \
         convert the file to little-endian"
    )]
    BigEndian { found: u32 },
    /// The format version is not 2 or 3.
    #[error(
        "GGUF version {found} at offset 4 is not supported, expected 2 or 3; \
         convert the model again with current tools"
    )]
    UnsupportedVersion { found: u32 },
    /// The file is truncated.
    #[error(
        "the file ends inside {what}: expected {need} bytes at offset {offset}, found {left}; \
         the download may be incomplete"
    )]
    Truncated {
        what: String,
        offset: u64,
        need: u64,
        left: u64,
    },
    /// A count exceeds what the remaining bytes can hold.
    #[error("{what} at offset {offset} is {count}, but at most {max} can follow it")]
    CountTooLarge {
        what: String,
        offset: u64,
        count: u64,
        max: u64,
    },
    /// A string is not UTF-8.
    #[error("{what} at offset {offset} is not valid UTF-8 (first bad byte at offset {bad})")]
    InvalidUtf8 { what: String, offset: u64, bad: u64 },
    /// A metadata key or tensor name is empty.
    #[error("{what} at offset {offset} is an empty string")]
    EmptyName { what: &'static str, offset: u64 },
    /// A value type is not in the specification.
    #[error("unknown value type {found} of `{key}` at offset {offset}; expected 0 to 12")]
    UnknownValueType {
        key: String,
        offset: u64,
        found: u32,
    },
    /// A boolean is neither 0 nor 1.
    #[error("the boolean in `{key}` at offset {offset} is {found}; expected 0 or 1")]
    InvalidBool { key: String, offset: u64, found: u8 },
    /// Arrays are nested too deeply.
    #[error("`{key}` nests arrays more than {max} deep at offset {offset}")]
    ArrayTooDeep {
        key: String,
        offset: u64,
        max: usize,
    },
    /// A metadata key occurs twice.
    #[error("the metadata key `{key}` occurs twice, at offsets {first} and {second}")]
    DuplicateKey {
        key: String,
        first: u64,
        second: u64,
    },
    /// A tensor name occurs twice.
    #[error("the tensor `{tensor}` is declared twice, at offsets {first} and {second}")]
    DuplicateTensor {
        tensor: String,
        first: u64,
        second: u64,
    },
    /// `general.alignment` is not a supported power of two.
    #[error("general.alignment is {found}; expected a power of two from 1 to {max}")]
    BadAlignment { found: u64, max: u64 },
    /// A tensor has more dimensions than ggml supports.
    #[error(
        "tensor `{tensor}` has {found} dimensions at offset {offset}; at most {max} are supported"
    )]
    TooManyDims {
        tensor: String,
        offset: u64,
        found: u32,
        max: u32,
    },
    /// The number of elements does not fit 63 bits.
    #[error("the dimensions {dims:?} of tensor `{tensor}` at offset {offset} overflow")]
    DimsOverflow {
        tensor: String,
        offset: u64,
        dims: Vec<u64>,
    },
    /// A tensor type is not in the specification.
    #[error("tensor `{tensor}` has type {found} at offset {offset}, which {why}")]
    UnknownTensorType {
        tensor: String,
        offset: u64,
        found: u32,
        why: String,
    },
    /// A row is not a whole number of quantization blocks.
    #[error(
        "rows of tensor `{tensor}` have {row} elements, which is not a multiple of {ty}'s block of {block}"
    )]
    PartialBlock {
        tensor: String,
        row: u64,
        ty: GgmlType,
        block: u64,
    },
    /// Tensor data is not aligned to the file's alignment.
    #[error(
        "data of tensor `{tensor}` begins at {relative} in the data section (given at offset \
         {offset}), which is not a multiple of the alignment {alignment}"
    )]
    UnalignedTensor {
        tensor: String,
        offset: u64,
        relative: u64,
        alignment: u64,
    },
    /// Tensor data extends beyond the end of the file.
    #[error(
        "data of tensor `{tensor}` needs {bytes} bytes from file offset {begin}, but the file has \
         {file_len} bytes; the download may be incomplete"
    )]
    TensorOutOfFile {
        tensor: String,
        begin: u64,
        bytes: u64,
        file_len: u64,
    },
    /// Two tensors overlap.
    #[error(
        "tensors `{first}` (up to file offset {first_end}) and `{second}` (from {second_begin}) overlap"
    )]
    OverlappingTensors {
        first: String,
        first_end: u64,
        second: String,
        second_begin: u64,
    },
    /// A required metadata key is missing.
    #[error("the file has no metadata key `{key}`")]
    MissingKey { key: String },
    /// A metadata value has another type than requested.
    #[error("metadata key `{key}` is {found}; expected {expected}")]
    WrongType {
        key: String,
        expected: &'static str,
        found: String,
    },
    /// A metadata number is out of range of the requested type.
    #[error("metadata key `{key}` is {found}, which does not fit {expected}")]
    OutOfRange {
        key: String,
        expected: &'static str,
        found: String,
    },
    /// The part number or the part count of a split model is invalid.
    #[error(
        "invalid part of a split model: `split.no` is {number} (from 0) and `split.count` is \
         {count}"
    )]
    BadSplit { number: u32, count: u32 },
    /// The file name of a part of a split model does not have the expected form, so the other parts
    /// cannot be located.
    #[error(
        "{path} is part {number} of {count}, but its name does not end in `{suffix}`, so the \
         other parts cannot be found; restore the original file names", path = path.display()
    )]
    PartName {
        path: PathBuf,
        number: u32,
        count: u32,
        suffix: String,
    },
    /// A part of a split model was passed without a path.
    #[error("the bytes are part {number} of {count} of a model; open it by its path")]
    PartAlone { number: u32, count: u32 },
    /// A part of a split model is missing.
    #[error(
        "part {number} of {count} is missing: {path}; all parts must be in one folder",
        path = path.display()
    )]
    MissingPart {
        path: PathBuf,
        number: u32,
        count: u32,
    },
    /// Another part of a split model cannot be read.
    #[error("part {number} of {count}, {path}", path = path.display())]
    Part {
        path: PathBuf,
        number: u32,
        count: u32,
        source: Box<GgufError>,
    },
    /// The parts of a split model contradict each other.
    #[error("{path} does not belong to the other parts: {reason}", path = path.display())]
    PartMismatch { path: PathBuf, reason: String },
    /// A required tensor is missing.
    #[error("the file has no tensor `{tensor}`")]
    NoSuchTensor { tensor: String },
}

impl GgufError {
    pub(crate) fn wrong_type(key: &str, expected: &'static str, found: GgufValueType) -> Self {
        Self::WrongType {
            key: clip(key),
            expected,
            found: found.name().to_owned(),
        }
    }
}
