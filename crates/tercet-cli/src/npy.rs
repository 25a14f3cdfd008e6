//! NumPy's `.npy` (format versions 1 to 3) and `.npz` files.
//!
//! Reading is safe for any input. A header is at most 64 KiB, and shapes are multiplied with
//! overflow checks. Memory grows with the bytes that are present, not with the size that a header
//! claims. For every byte order and layout of a file, the resulting [`NpyArray`] is little-endian
//! and in C order.
//!
//! [`header`] parses and prints the header, [`npz`] handles archives. NumPy enhancement proposal 1
//! and `numpy.lib.format` describe the format.

pub(crate) mod header;
pub(crate) mod npz;

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use header::{NpyByteOrder, NpyHeader, NpyOrder};
pub(crate) use npz::{read_npz, write_npz};

/// Maximum size of one array in bytes. A small archive can claim any size.
pub const MAX_ARRAY_BYTES: u64 = 8 << 30;

/// Maximum rank, as in NumPy.
pub const MAX_RANK: usize = 64;

/// Supported element types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NpyDtype {
    Bool,
    I8,
    U8,
    F16,
    I16,
    U16,
    F32,
    I32,
    U32,
    F64,
    I64,
    U64,
}

impl NpyDtype {
    pub const ALL: [Self; 12] = [
        Self::Bool,
        Self::I8,
        Self::U8,
        Self::F16,
        Self::I16,
        Self::U16,
        Self::F32,
        Self::I32,
        Self::U32,
        Self::F64,
        Self::I64,
        Self::U64,
    ];

    /// NumPy's type code: kind and size in bytes.
    fn code(self) -> &'static str {
        match self {
            Self::Bool => "b1",
            Self::I8 => "i1",
            Self::U8 => "u1",
            Self::F16 => "f2",
            Self::I16 => "i2",
            Self::U16 => "u2",
            Self::F32 => "f4",
            Self::I32 => "i4",
            Self::U32 => "u4",
            Self::F64 => "f8",
            Self::I64 => "i8",
            Self::U64 => "u8",
        }
    }

    /// Size of one element in bytes.
    pub(crate) fn size_bytes(self) -> usize {
        match self {
            Self::Bool | Self::I8 | Self::U8 => 1,
            Self::F16 | Self::I16 | Self::U16 => 2,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F64 | Self::I64 | Self::U64 => 8,
        }
    }
}

/// A dense array. Invariant: the length of `bytes` matches `shape` and `dtype`.
#[derive(Debug, Clone, PartialEq)]
pub struct NpyArray<'a> {
    dtype: NpyDtype,
    shape: Vec<usize>,
    bytes: Cow<'a, [u8]>,
}

impl<'a> NpyArray<'a> {
    /// An array of little-endian elements in C order. The length of `bytes` must match `shape` and
    /// `dtype`.
    pub fn new(
        dtype: NpyDtype,
        shape: Vec<usize>,
        bytes: impl Into<Cow<'a, [u8]>>,
    ) -> Result<Self, NpyFormatError> {
        let bytes = bytes.into();
        let expected = len_bytes(dtype, &shape)?;
        let found = bytes.len() as u64;
        if found != expected {
            return Err(NpyFormatError::Length { expected, found });
        }
        Ok(Self {
            dtype,
            shape,
            bytes,
        })
    }

    /// Element type, shape, bytes.
    pub fn into_parts(self) -> (NpyDtype, Vec<usize>, Vec<u8>) {
        (self.dtype, self.shape, self.bytes.into_owned())
    }
}

/// Errors of reading and writing array files.
#[derive(Debug, thiserror::Error)]
pub enum NpyError {
    #[error("cannot {action} {}", path.display())]
    File {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("cannot read array {}", path.display())]
    Array {
        path: PathBuf,
        source: NpyFormatError,
    },
    #[error("cannot read array `{entry}` in {}", path.display())]
    Entry {
        path: PathBuf,
        entry: String,
        source: NpyFormatError,
    },
    #[error("{} contains `{entry}` twice", path.display())]
    DuplicateEntry { path: PathBuf, entry: String },
    #[error("cannot {action} the archive {}", path.display())]
    Archive {
        action: &'static str,
        path: PathBuf,
        source: zip::result::ZipError,
    },
}

/// Errors in the bytes of an array.
#[derive(Debug, thiserror::Error)]
pub enum NpyFormatError {
    #[error("the file does not start with NumPy's magic bytes")]
    Magic,
    #[error("format version {major}.{minor} is not supported; expected 1.0, 2.0 or 3.0")]
    Version { major: u8, minor: u8 },
    #[error(
        "header of {len_bytes} bytes is too long; at most {} bytes are supported",
        header::MAX_LEN_BYTES
    )]
    HeaderLength { len_bytes: u32 },
    #[error("the header at byte {offset_bytes}: expected {expected}")]
    Header {
        offset_bytes: usize,
        expected: &'static str,
    },
    #[error(
        "element type `{descr}` is not supported; convert to one of \
         bool, i1, u1, f2, f4, i4, u4, f8, i8 with numpy's astype"
    )]
    Dtype { descr: String },
    #[error("{rank} dimensions are too many; at most {MAX_RANK} are supported")]
    Rank { rank: usize },
    #[error("array of shape {shape:?} is too large; at most {MAX_ARRAY_BYTES} bytes are supported")]
    TooLarge { shape: Vec<usize> },
    #[error("expected {expected} bytes of data for this shape and element type, found {found}")]
    Length { expected: u64, found: u64 },
    #[error("trailing data after the array's {expected} bytes")]
    Trailing { expected: u64 },
    #[error("the data cannot be read")]
    Read(#[from] io::Error),
}

/// Reads a `.npy` file.
pub fn read_npy(path: &Path) -> Result<NpyArray<'static>, NpyError> {
    let file = File::open(path).map_err(file_error("open", path))?;
    let len_bytes = file.metadata().map_err(file_error("read", path))?.len();
    read(&mut BufReader::new(file), len_bytes, MAX_ARRAY_BYTES).map_err(|source| NpyError::Array {
        path: path.to_owned(),
        source,
    })
}

fn file_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> NpyError {
    let path = path.to_owned();
    move |source| NpyError::File {
        action,
        path,
        source,
    }
}

/// Reads one array, which must end at the end of `reader`. `present_bytes` is a lower bound of the
/// available bytes; no more memory than that is reserved ahead.
pub fn read(
    reader: &mut impl Read,
    present_bytes: u64,
    limit_bytes: u64,
) -> Result<NpyArray<'static>, NpyFormatError> {
    let NpyHeader {
        dtype,
        order,
        layout,
        shape,
    } = header::read(reader)?;
    let expected = len_bytes(dtype, &shape)?;
    if expected > limit_bytes {
        return Err(NpyFormatError::TooLarge { shape });
    }
    let too_large = |shape: &[usize]| NpyFormatError::TooLarge {
        shape: shape.to_vec(),
    };
    let mut bytes = Vec::new();
    let reserve = usize::try_from(expected.min(present_bytes)).map_err(|_| too_large(&shape))?;
    bytes
        .try_reserve_exact(reserve)
        .map_err(|_| too_large(&shape))?;
    reader.by_ref().take(expected).read_to_end(&mut bytes)?;
    let found = bytes.len() as u64;
    if found < expected {
        return Err(NpyFormatError::Length { expected, found });
    }
    if reader.read(&mut [0])? != 0 {
        return Err(NpyFormatError::Trailing { expected });
    }
    if order == NpyByteOrder::Big {
        bytes
            .chunks_exact_mut(dtype.size_bytes())
            .for_each(<[u8]>::reverse);
    }
    if dtype == NpyDtype::Bool {
        bytes
            .iter_mut()
            .for_each(|byte| *byte = u8::from(*byte != 0));
    }
    if layout == NpyOrder::Fortran {
        bytes = c_order(&bytes, &shape, dtype.size_bytes());
    }
    NpyArray::new(dtype, shape, bytes)
}

/// The header of a `.npy` file (version 1.0), up to the first byte of data.
pub(crate) fn npy_header(dtype: NpyDtype, shape: &[usize]) -> Vec<u8> {
    header::print(dtype, shape)
}

/// Writes a `.npy` file (version 1.0).
pub fn write_npy(writer: &mut impl Write, array: &NpyArray<'_>) -> io::Result<()> {
    writer.write_all(&header::print(array.dtype, &array.shape))?;
    writer.write_all(&array.bytes)
}

/// Size of an array in bytes. The product of the dimensions must not overflow even if another
/// dimension is 0, so that strides can be computed from any accepted shape.
pub fn len_bytes(dtype: NpyDtype, shape: &[usize]) -> Result<u64, NpyFormatError> {
    if shape.len() > MAX_RANK {
        return Err(NpyFormatError::Rank { rank: shape.len() });
    }
    let extent = shape
        .iter()
        .filter(|&&dim| dim != 0)
        .try_fold(dtype.size_bytes(), |bytes, &dim| bytes.checked_mul(dim))
        .filter(|&bytes| isize::try_from(bytes).is_ok())
        .ok_or_else(|| NpyFormatError::TooLarge {
            shape: shape.to_vec(),
        })?;
    Ok(if shape.contains(&0) { 0 } else { extent as u64 })
}

/// Converts Fortran order to C order.
fn c_order(bytes: &[u8], shape: &[usize], size_bytes: usize) -> Vec<u8> {
    let mut strides = Vec::with_capacity(shape.len());
    let mut stride = size_bytes;
    for &dim in shape {
        strides.push(stride);
        stride *= dim;
    }
    let mut out = Vec::with_capacity(bytes.len());
    let mut index = vec![0; shape.len()];
    let mut offset = 0;
    while out.len() < bytes.len() {
        out.extend_from_slice(&bytes[offset..offset + size_bytes]);
        for axis in (0..shape.len()).rev() {
            index[axis] += 1;
            offset += strides[axis];
            if index[axis] < shape[axis] {
                break;
            }
            offset -= strides[axis] * shape[axis];
            index[axis] = 0;
        }
    }
    out
}
