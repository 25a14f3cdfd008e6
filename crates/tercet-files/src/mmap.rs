//! Read-only memory-mapped files.
//!
//! Model files have gigabytes of weights, most of which are read once, in place. Every reader of
//! this crate therefore works on a [`MappedFile`] and returns slices of it. A clone only increments
//! a reference count, and the mapping stays alive until the last tensor that points into it is
//! dropped.
//!
//! Invariant: the bytes keep their length and address during the lifetime of a `MappedFile`. No
//! process may truncate or rewrite the file in that time. To replace a model file, rename a new one
//! over it, as download tools do.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::Mmap;

/// The reason why a file cannot be opened for reading.
///
/// ```
/// use tercet_files::{FileError, MappedFile};
/// let error = MappedFile::open("no/such/model.gguf").unwrap_err();
/// assert!(matches!(error, FileError::NotFound { .. }));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The file does not exist.
    #[error("{path}: no such file", path = path.display())]
    NotFound {
        /// The requested path.
        path: PathBuf,
    },
    /// The path is a directory or a device, not a regular file.
    #[error("{path}: not a regular file; expected a model file", path = path.display())]
    NotAFile {
        /// The requested path.
        path: PathBuf,
    },
    /// The file is empty; usually an unfinished download.
    #[error("{path}: the file is empty; download it again", path = path.display())]
    Empty {
        /// The requested path.
        path: PathBuf,
    },
    /// A file that is read as a whole (JSON) exceeds the size limit.
    #[error("{path}: {len} bytes exceed the limit of {max}", path = path.display())]
    TooLong {
        /// The requested path.
        path: PathBuf,
        /// Length of the file, in bytes.
        len: u64,
        /// The limit, in bytes.
        max: u64,
    },
    /// The operating system reported an error.
    #[error("{path}: cannot be read", path = path.display())]
    Io {
        /// The requested path.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
}

impl FileError {
    /// The error of the operating system for this path.
    #[must_use]
    pub fn from_io(path: &Path, source: io::Error) -> Self {
        let path = path.to_path_buf();
        if source.kind() == io::ErrorKind::NotFound {
            Self::NotFound { path }
        } else {
            Self::Io { path, source }
        }
    }
}

#[derive(Debug)]
enum FileStorage {
    Mapped(Mmap),
    Owned(Vec<u8>),
}

impl Deref for FileStorage {
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
/// use tercet_files::MappedFile;
///
/// let file = MappedFile::from_vec(b"bytes that are already in memory".to_vec());
/// assert_eq!(&file.as_ref()[..5], b"bytes");
/// assert!(MappedFile::open("no/such/model.gguf").is_err());
/// ```
#[derive(Clone, Debug)]
pub struct MappedFile {
    storage: Arc<FileStorage>,
    path: Option<Arc<Path>>,
}

impl MappedFile {
    /// Maps the regular file at `path` read-only.
    ///
    /// # Errors
    /// [`FileError`]: the file is missing, a directory or empty, or the operating system reports an
    /// error.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, FileError> {
        let path = path.as_ref();
        let file = open_regular(path)?.0;
        #[allow(
            unsafe_code,
            reason = "memory mapping has no safe interface; this is the crate's only mapping"
        )]
        // SAFETY: the mapping is private to this value, read-only, and of a non-empty regular file.
        // It cannot be checked that no process truncates or rewrites the file during its lifetime.
        // The module documentation makes that a condition of use, as every memory-mapped reader
        // must.
        let map = unsafe { Mmap::map(&file) }.map_err(|source| FileError::from_io(path, source))?;
        Ok(Self {
            storage: Arc::new(FileStorage::Mapped(map)),
            path: Some(Arc::from(path)),
        })
    }

    /// Wraps bytes that are already in memory (an embedded model, a test).
    #[must_use]
    pub fn from_vec(bytes: Vec<u8>) -> Self {
        Self {
            storage: Arc::new(FileStorage::Owned(bytes)),
            path: None,
        }
    }

    /// The path from which this file was opened, if any.
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

/// Opens the regular, non-empty file at `path`; also returns its length in bytes.
///
/// # Errors
/// [`FileError`]: the file is missing, not a regular file or empty, or cannot be opened.
pub fn open_regular(path: &Path) -> Result<(File, u64), FileError> {
    // Check the file type before opening: opening a FIFO would block until a writer appears.
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

/// Reads a whole small file, such as JSON, of at most `max` bytes into memory.
///
/// # Errors
/// [`FileError::TooLong`] for a longer file, and the errors of [`open_regular`].
pub fn read_small(path: &Path, max: u64) -> Result<Vec<u8>, FileError> {
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
