//! Read-only memory-mapped files.
//!
//! Model files are gigabytes long and mostly weights that are read once, in place; so every
//! reader of this crate works on a [`MappedFile`] and hands out slices of it. A clone is a
//! reference count, and the mapping lives as long as the last tensor that points into it.
//!
//! Invariant: the bytes never change their length or address while a `MappedFile` lives. The
//! file must not be truncated or rewritten by anybody meanwhile (replace model files by renaming
//! a new one over them, as every downloader does).

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::Mmap;

/// Why a file could not be opened for reading.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// There is no file of that name.
    #[error("{path}: no such file", path = path.display())]
    NotFound {
        /// The path as it was asked for.
        path: PathBuf,
    },
    /// The path is a directory or a device, not a regular file.
    #[error("{path}: is not a regular file; name a model file in it", path = path.display())]
    NotAFile {
        /// The path as it was asked for.
        path: PathBuf,
    },
    /// The file has no bytes: most often a download that did not finish.
    #[error("{path}: the file is empty; download it again", path = path.display())]
    Empty {
        /// The path as it was asked for.
        path: PathBuf,
    },
    /// A file that is read as a whole (JSON) is longer than any sane one.
    #[error("{path}: {len} bytes, more than the {max} that such a file may have", path = path.display())]
    TooLong {
        /// The path as it was asked for.
        path: PathBuf,
        /// Length of the file in bytes.
        len: u64,
        /// The limit in bytes.
        max: u64,
    },
    /// The operating system refused.
    #[error("{path}: cannot be read", path = path.display())]
    Io {
        /// The path as it was asked for.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
}

impl FileError {
    pub(crate) fn from_io(path: &Path, source: io::Error) -> Self {
        let path = path.to_path_buf();
        if source.kind() == io::ErrorKind::NotFound {
            Self::NotFound { path }
        } else {
            Self::Io { path, source }
        }
    }
}

#[derive(Debug)]
enum Storage {
    Mapped(Mmap),
    Owned(Vec<u8>),
}

impl Deref for Storage {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Owned(bytes) => bytes,
        }
    }
}

/// The bytes of a file, mapped read-only and shared by reference count.
///
/// ```
/// use tercet_models::MappedFile;
///
/// let file = MappedFile::from_vec(b"bytes that are already in memory".to_vec());
/// assert_eq!(&file.as_ref()[..5], b"bytes");
/// assert!(MappedFile::open("no/such/model.gguf").is_err());
/// ```
#[derive(Clone, Debug)]
pub struct MappedFile {
    storage: Arc<Storage>,
    path: Option<Arc<Path>>,
}

impl MappedFile {
    /// Maps the regular file at `path` read-only.
    ///
    /// # Errors
    /// [`FileError`]: missing, a directory, empty, or refused by the operating system.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, FileError> {
        let path = path.as_ref();
        let file = open_regular(path)?.0;
        #[allow(
            unsafe_code,
            reason = "memory mapping has no safe interface; this is the crate's only mapping"
        )]
        // SAFETY: the mapping is private to this value, read-only, and of a regular file that is
        // not empty. That nobody truncates or rewrites the file meanwhile cannot be checked; the
        // module documentation makes it a condition of use, as for every memory-mapped reader.
        let map = unsafe { Mmap::map(&file) }.map_err(|source| FileError::from_io(path, source))?;
        Ok(Self {
            storage: Arc::new(Storage::Mapped(map)),
            path: Some(Arc::from(path)),
        })
    }

    /// Takes bytes that are in memory already (an embedded model, a test).
    #[must_use]
    pub fn from_vec(bytes: Vec<u8>) -> Self {
        Self {
            storage: Arc::new(Storage::Owned(bytes)),
            path: None,
        }
    }

    /// The path this file was opened from, if it was.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }
}

impl AsRef<[u8]> for MappedFile {
    fn as_ref(&self) -> &[u8] {
        &self.storage
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.storage
    }
}

pub(crate) fn open_regular(path: &Path) -> Result<(File, u64), FileError> {
    // The kind is asked before opening: opening a FIFO would wait for a writer.
    let meta = std::fs::metadata(path).map_err(|source| FileError::from_io(path, source))?;
    if !meta.is_file() {
        return Err(FileError::NotAFile {
            path: path.to_path_buf(),
        });
    }
    let file = File::open(path).map_err(|source| FileError::from_io(path, source))?;
    let len = file
        .metadata()
        .map_err(|source| FileError::from_io(path, source))?
        .len();
    if len == 0 {
        return Err(FileError::Empty {
            path: path.to_path_buf(),
        });
    }
    Ok((file, len))
}

/// Reads a whole small file (JSON) of at most `max` bytes into memory.
pub(crate) fn read_small(path: &Path, max: u64) -> Result<Vec<u8>, FileError> {
    use std::io::Read;

    let too_long = |len| FileError::TooLong {
        path: path.to_path_buf(),
        len,
        max,
    };
    let (file, len) = open_regular(path)?;
    if len > max {
        return Err(too_long(len));
    }
    let mut bytes = Vec::new();
    file.take(max + 1)
        .read_to_end(&mut bytes)
        .map_err(|source| FileError::from_io(path, source))?;
    if bytes.len() as u64 > max {
        return Err(too_long(bytes.len() as u64));
    }
    Ok(bytes)
}
