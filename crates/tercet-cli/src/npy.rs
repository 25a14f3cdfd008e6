//! NumPy's `.npy` (format versions 1 to 3) and `.npz` files.
//!
//! Reading survives any input: a header is at most 64 KiB, shapes are multiplied with overflow
//! checks, and memory grows with the bytes that are there, not with those that a header promises.
//! Whatever a file's byte order and layout, an [`NpyArray`] is little-endian and in C order.
//!
//! [`header`] parses and prints the header, [`npz`] handles archives. The format is described in
//! NumPy enhancement proposal 1 and in `numpy.lib.format`.

mod header;
mod npz;

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use header::{ByteOrder, Header, Layout};
pub(crate) use npz::{read_npz, write_npz};

/// One array of a file may have this many bytes; a small archive can claim any size.
pub(crate) const MAX_ARRAY_BYTES: u64 = 8 << 30;

/// The largest rank that NumPy has.
pub(crate) const MAX_RANK: usize = 64;

/// The element types that are read and written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NpyDtype {
    Bool,
    I8,
    U8,
    F16,
    F32,
    I32,
    U32,
    F64,
    I64,
}

impl NpyDtype {
    pub(crate) const ALL: [Self; 9] = [
        Self::Bool,
        Self::I8,
        Self::U8,
        Self::F16,
        Self::F32,
        Self::I32,
        Self::U32,
        Self::F64,
        Self::I64,
    ];

    /// NumPy's code: kind and size in bytes.
    fn code(self) -> &'static str {
        match self {
            Self::Bool => "b1",
            Self::I8 => "i1",
            Self::U8 => "u1",
            Self::F16 => "f2",
            Self::F32 => "f4",
            Self::I32 => "i4",
            Self::U32 => "u4",
            Self::F64 => "f8",
            Self::I64 => "i8",
        }
    }

    /// The size of one element.
    pub(crate) fn size_bytes(self) -> usize {
        match self {
            Self::Bool | Self::I8 | Self::U8 => 1,
            Self::F16 => 2,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F64 | Self::I64 => 8,
        }
    }
}

/// A dense array. Invariant: `bytes` is as long as `shape` and `dtype` say.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct NpyArray<'a> {
    dtype: NpyDtype,
    shape: Vec<usize>,
    bytes: Cow<'a, [u8]>,
}

impl<'a> NpyArray<'a> {
    /// An array of little-endian elements in C order; `bytes` must have the length that `shape` and
    /// `dtype` give.
    pub(crate) fn new(
        dtype: NpyDtype,
        shape: Vec<usize>,
        bytes: impl Into<Cow<'a, [u8]>>,
    ) -> Result<Self, FormatError> {
        let bytes = bytes.into();
        let expected = len_bytes(dtype, &shape)?;
        let found = bytes.len() as u64;
        if found != expected {
            return Err(FormatError::Length { expected, found });
        }
        Ok(Self {
            dtype,
            shape,
            bytes,
        })
    }

    /// Element type, shape, bytes.
    pub(crate) fn into_parts(self) -> (NpyDtype, Vec<usize>, Vec<u8>) {
        (self.dtype, self.shape, self.bytes.into_owned())
    }
}

/// What a file can be refused for.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NpyError {
    #[error("cannot {action} {}", path.display())]
    File {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("{} is no array that can be read", path.display())]
    Array { path: PathBuf, source: FormatError },
    #[error("`{entry}` in {} is no array that can be read", path.display())]
    Entry {
        path: PathBuf,
        entry: String,
        source: FormatError,
    },
    #[error("{} holds `{entry}` twice", path.display())]
    DuplicateEntry { path: PathBuf, entry: String },
    #[error("cannot {action} the archive {}", path.display())]
    Archive {
        action: &'static str,
        path: PathBuf,
        source: zip::result::ZipError,
    },
}

/// What is wrong with the bytes of an array.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FormatError {
    #[error("it does not begin with NumPy's magic bytes")]
    Magic,
    #[error("format version {major}.{minor} is not known; 1.0, 2.0 and 3.0 are")]
    Version { major: u8, minor: u8 },
    #[error(
        "the header claims {len_bytes} bytes; at most {} are read",
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
    #[error("{rank} dimensions; at most {MAX_RANK} are read")]
    Rank { rank: usize },
    #[error("an array of shape {shape:?} is too large; at most {MAX_ARRAY_BYTES} bytes are read")]
    TooLarge { shape: Vec<usize> },
    #[error("shape and element type need {expected} bytes of data, found {found}")]
    Length { expected: u64, found: u64 },
    #[error("data goes on after the {expected} bytes of the array")]
    Trailing { expected: u64 },
    #[error("the data cannot be read")]
    Read(#[from] io::Error),
}

/// Reads a `.npy` file.
pub(crate) fn read_npy(path: &Path) -> Result<NpyArray<'static>, NpyError> {
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

/// Reads one array, which must end where `reader` ends. `present_bytes` is what is certainly
/// there: only so much memory is reserved ahead.
fn read(
    reader: &mut impl Read,
    present_bytes: u64,
    limit_bytes: u64,
) -> Result<NpyArray<'static>, FormatError> {
    let Header {
        dtype,
        order,
        layout,
        shape,
    } = header::read(reader)?;
    let expected = len_bytes(dtype, &shape)?;
    if expected > limit_bytes {
        return Err(FormatError::TooLarge { shape });
    }
    let too_large = |shape: &[usize]| FormatError::TooLarge {
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
        return Err(FormatError::Length { expected, found });
    }
    if reader.read(&mut [0])? != 0 {
        return Err(FormatError::Trailing { expected });
    }
    if order == ByteOrder::Big {
        bytes
            .chunks_exact_mut(dtype.size_bytes())
            .for_each(<[u8]>::reverse);
    }
    if dtype == NpyDtype::Bool {
        bytes
            .iter_mut()
            .for_each(|byte| *byte = u8::from(*byte != 0));
    }
    if layout == Layout::Fortran {
        bytes = c_order(&bytes, &shape, dtype.size_bytes());
    }
    NpyArray::new(dtype, shape, bytes)
}

/// Writes a `.npy` file (version 1.0).
pub(crate) fn write_npy(writer: &mut impl Write, array: &NpyArray<'_>) -> io::Result<()> {
    writer.write_all(&header::print(array.dtype, &array.shape))?;
    writer.write_all(&array.bytes)
}

/// The bytes of an array. The product of the dimensions must fit even where another dimension is 0,
/// so that strides can be computed from any accepted shape.
fn len_bytes(dtype: NpyDtype, shape: &[usize]) -> Result<u64, FormatError> {
    if shape.len() > MAX_RANK {
        return Err(FormatError::Rank { rank: shape.len() });
    }
    let extent = shape
        .iter()
        .filter(|&&dim| dim != 0)
        .try_fold(dtype.size_bytes(), |bytes, &dim| bytes.checked_mul(dim))
        .filter(|&bytes| isize::try_from(bytes).is_ok())
        .ok_or_else(|| FormatError::TooLarge {
            shape: shape.to_vec(),
        })?;
    Ok(if shape.contains(&0) { 0 } else { extent as u64 })
}

/// Rearranges elements whose first index runs fastest so that the last one does.
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

#[cfg(test)]
mod tests;
