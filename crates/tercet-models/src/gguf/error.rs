//! What can be wrong with a GGUF file: each error names the byte offset, what was expected there
//! and what was found.

use std::path::PathBuf;

use super::types::GgmlType;
use super::value::ValueType;
use crate::mmap::FileError;

/// Why a GGUF file was refused, or a value of it could not be had.
///
/// Names that come from the file are cut at 120 characters and their control characters escaped,
/// so that a message stays readable whatever the file holds.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(
    missing_docs,
    reason = "the fields are named by the messages above them"
)]
pub enum GgufError {
    /// The file could not be opened.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file does not begin with `GGUF`.
    #[error("not a GGUF file: expected the bytes \"GGUF\" at offset 0, found {found}{hint}")]
    BadMagic { found: String, hint: &'static str },
    /// The file was written for big-endian machines.
    #[error(
        "big-endian GGUF files are not supported (the version at offset 4 reads as {found:#010x}); \
         convert the file to little-endian"
    )]
    BigEndian { found: u32 },
    /// A version other than 2 and 3.
    #[error(
        "GGUF version {found} at offset 4 is not supported, versions 2 and 3 are; \
         convert the model again with current tools"
    )]
    UnsupportedVersion { found: u32 },
    /// The file ends inside something.
    #[error(
        "the file ends inside {what}: {need} bytes expected at offset {offset}, {left} left; \
         the download may be incomplete"
    )]
    Truncated {
        what: String,
        offset: u64,
        need: u64,
        left: u64,
    },
    /// A count that the rest of the file could not hold.
    #[error("{what} at offset {offset} is {count}, but at most {max} can follow it")]
    CountTooLarge {
        what: String,
        offset: u64,
        count: u64,
        max: u64,
    },
    /// A string that is not UTF-8.
    #[error("{what} at offset {offset} is not valid UTF-8 (first bad byte at offset {bad})")]
    InvalidUtf8 { what: String, offset: u64, bad: u64 },
    /// A metadata key or tensor name of no characters.
    #[error("{what} at offset {offset} is an empty string")]
    EmptyName { what: &'static str, offset: u64 },
    /// A value type that the format does not have.
    #[error("value type {found} of `{key}` at offset {offset} does not exist, 0 to 12 do")]
    UnknownValueType {
        key: String,
        offset: u64,
        found: u32,
    },
    /// A boolean other than 0 and 1.
    #[error("the boolean in `{key}` at offset {offset} is {found}, neither 0 nor 1")]
    InvalidBool { key: String, offset: u64, found: u8 },
    /// Arrays of arrays beyond any real use.
    #[error("`{key}` nests arrays more than {max} deep at offset {offset}")]
    ArrayTooDeep {
        key: String,
        offset: u64,
        max: usize,
    },
    /// The same metadata key twice.
    #[error("the metadata key `{key}` occurs twice, at offsets {first} and {second}")]
    DuplicateKey {
        key: String,
        first: u64,
        second: u64,
    },
    /// The same tensor name twice.
    #[error("the tensor `{tensor}` is declared twice, at offsets {first} and {second}")]
    DuplicateTensor {
        tensor: String,
        first: u64,
        second: u64,
    },
    /// `general.alignment` is not a power of two.
    #[error("general.alignment is {found}, it must be a power of two from 1 to {max}")]
    BadAlignment { found: u64, max: u64 },
    /// More dimensions than ggml has.
    #[error(
        "tensor `{tensor}` has {found} dimensions at offset {offset}, at most {max} are possible"
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
    /// A tensor type that the format does not have.
    #[error("tensor `{tensor}` has type {found} at offset {offset}, which {why}")]
    UnknownTensorType {
        tensor: String,
        offset: u64,
        found: u32,
        why: String,
    },
    /// A row is not a whole number of quantisation blocks.
    #[error(
        "rows of tensor `{tensor}` have {row} elements, which is not a multiple of {ty}'s block of {block}"
    )]
    PartialBlock {
        tensor: String,
        row: u64,
        ty: GgmlType,
        block: u64,
    },
    /// The data does not begin at the file's alignment.
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
    /// The data does not lie inside the file.
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
    /// Two tensors share bytes.
    #[error(
        "tensors `{first}` (up to file offset {first_end}) and `{second}` (from {second_begin}) overlap"
    )]
    OverlappingTensors {
        first: String,
        first_end: u64,
        second: String,
        second_begin: u64,
    },
    /// A metadata key that is needed and not there.
    #[error("the file has no metadata key `{key}`")]
    MissingKey { key: String },
    /// A metadata value of another type than the reader needs.
    #[error("metadata key `{key}` must be {expected}, it is {found}")]
    WrongType {
        key: String,
        expected: &'static str,
        found: String,
    },
    /// A metadata number that does not fit.
    #[error("metadata key `{key}` is {found}, which does not fit {expected}")]
    OutOfRange {
        key: String,
        expected: &'static str,
        found: String,
    },
    /// The numbers of a part of a model in several files make no sense.
    #[error("`split.no` is {number} (from 0) and `split.count` is {count}; there is no such part")]
    BadSplit { number: u32, count: u32 },
    /// A part of a model in several files whose name does not lead to the others.
    #[error(
        "{path} is part {number} of {count}, but its name does not end in `{suffix}`, by which the others \
         are found; rename the parts as they were", path = path.display()
    )]
    PartName {
        path: PathBuf,
        number: u32,
        count: u32,
        suffix: String,
    },
    /// A part of a model in several files that came without a path.
    #[error("the bytes are part {number} of {count} of a model; open it by its path")]
    PartAlone { number: u32, count: u32 },
    /// A part of a model in several files is not there.
    #[error(
        "part {number} of {count} is missing: {path}; all parts must be in one folder",
        path = path.display()
    )]
    MissingPart {
        path: PathBuf,
        number: u32,
        count: u32,
    },
    /// Another part of a model in several files than the opened one cannot be read.
    #[error("part {number} of {count}, {path}", path = path.display())]
    Part {
        path: PathBuf,
        number: u32,
        count: u32,
        source: Box<GgufError>,
    },
    /// The parts of a model in several files contradict each other.
    #[error("{path} does not belong to the other parts: {reason}", path = path.display())]
    PartMismatch { path: PathBuf, reason: String },
    /// A tensor that is needed and not there.
    #[error("the file has no tensor `{tensor}`")]
    NoSuchTensor { tensor: String },
}

impl GgufError {
    pub(crate) fn wrong_type(key: &str, expected: &'static str, found: ValueType) -> Self {
        Self::WrongType {
            key: clip(key),
            expected,
            found: found.name().to_owned(),
        }
    }
}

/// A name from a file made fit for a message: control characters escaped, and cut when long.
pub(crate) fn clip(name: &str) -> String {
    const MAX_CHARS: usize = 120;
    let mut clipped = String::new();
    for (index, character) in name.chars().enumerate() {
        if index == MAX_CHARS {
            clipped.push_str("...");
            break;
        }
        if character.is_control() {
            clipped.extend(character.escape_default());
        } else {
            clipped.push(character);
        }
    }
    clipped
}
