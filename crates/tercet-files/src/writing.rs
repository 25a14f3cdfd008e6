//! Atomic writing of files: a file appears complete or not at all.
//!
//! | file | content |
//! |---|---|
//! | `entry.rs` | tensors to be written, produced on demand |
//! | `gguf.rs`, `safetensors.rs` | writers of the two formats |

mod entry;
mod gguf;
mod safetensors;

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

pub use entry::{SavedTensorEntry, SavedTensorStorage, TensorBytesFn};
pub use gguf::{GgufHeader, write_gguf};
pub use safetensors::{write_noted, write_safetensors};

/// The reason why a file cannot be written.
///
/// ```
/// use tercet_files::SaveError;
/// use tercet_files::writing::replace_bytes;
/// let error = replace_bytes("no/such/folder/file".as_ref(), b"text").unwrap_err();
/// assert!(matches!(error, SaveError::Io { .. }));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(
    missing_docs,
    reason = "the fields are named by the messages above them"
)]
pub enum SaveError {
    /// The operating system reported an error.
    #[error("{path}: cannot be written", path = path.display())]
    Io {
        path: PathBuf,
        source: std::io::Error,
    },
    /// The header of a file is invalid.
    #[error("{path}: cannot create the header: {reason}", path = path.display())]
    Header { path: PathBuf, reason: String },
    /// A tensor cannot be created.
    #[error("tensor `{tensor}`")]
    Tensor {
        tensor: String,
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The target is the model itself, which would be overwritten.
    #[error("{path}: the target is the model itself; choose another path", path = path.display())]
    OverModel { path: PathBuf },
    /// The model has no tensor of this name, or the shape differs.
    #[error("tensor `{tensor}` of shape {found:?} does not match the model, which has {expected}")]
    NotOfModel {
        tensor: String,
        found: Vec<usize>,
        expected: String,
    },
    /// The operation is not supported.
    #[error("{0}")]
    Unsupported(String),
}

impl SaveError {
    /// The error of the operating system for this path.
    pub fn io(path: &Path) -> impl Fn(std::io::Error) -> SaveError + '_ {
        move |source| SaveError::Io {
            path: path.to_path_buf(),
            source,
        }
    }
}

/// Writes to a temporary file in the same folder and renames it when it is complete. Until the
/// rename, the previous file stays.
///
/// # Errors
/// The errors of `write`, and [`SaveError::Io`].
pub fn replace_file(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> Result<(), SaveError>,
) -> Result<(), SaveError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let partial = path.with_file_name(format!(".{name}.{}.partial", std::process::id()));
    let io = SaveError::io(path);
    let written = File::create(&partial).map_err(&io).and_then(|file| {
        let mut out = BufWriter::with_capacity(1 << 20, file);
        write(&mut out)?;
        let file = out.into_inner().map_err(|e| io(e.into_error()))?;
        file.sync_all().map_err(&io)
    });
    let moved = written.and_then(|()| std::fs::rename(&partial, path).map_err(&io));
    if moved.is_err() {
        // The original error is more informative than an error of this clean-up.
        let _ = std::fs::remove_file(&partial);
    }
    moved
}

/// Writes these bytes to a file atomically.
///
/// # Errors
/// [`SaveError::Io`].
pub fn replace_bytes(path: &Path, bytes: &[u8]) -> Result<(), SaveError> {
    replace_file(path, |out| {
        out.write_all(bytes).map_err(SaveError::io(path))
    })
}
