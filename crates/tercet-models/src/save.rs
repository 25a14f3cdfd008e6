//! Writing models and adapters: a file is there whole or not at all.
//!
//! | file | does |
//! |---|---|
//! | `model.rs` | a model's files again, with some of its weights replaced |
//! | `quantize.rs` | a model as a GGUF file with its matrices in another format |
//! | `folder/` | a folder of safetensors as a GGUF file |
//! | `entry.rs` | a tensor to be written, made when its turn comes |

mod entry;
mod folder;
mod model;
mod quantize;

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::builder::ModelError;
pub(crate) use entry::{Entry, Storage};
pub use model::{PackedAs, SaveOptions, Saved, name_classes, save_model};
pub(crate) use model::{Replacement, rewrite};
pub use quantize::{Quantized, Recipe, Rounded, quantize_model};

/// Why something could not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(
    missing_docs,
    reason = "the fields are named by the messages above them"
)]
pub enum SaveError {
    /// The operating system refused.
    #[error("{path}: cannot be written", path = path.display())]
    Io {
        path: PathBuf,
        source: std::io::Error,
    },
    /// A header that is no sound one.
    #[error("{path}: the header cannot be made: {reason}", path = path.display())]
    Header { path: PathBuf, reason: String },
    /// A tensor could not be made.
    #[error("tensor `{tensor}`")]
    Tensor {
        tensor: String,
        source: Box<ModelError>,
    },
    /// The model itself would be overwritten.
    #[error("{path}: is the model that is read; name another place", path = path.display())]
    OverModel { path: PathBuf },
    /// A tensor that the model does not have, or of another shape.
    #[error("tensor `{tensor}` is {found:?}, which the model has {expected}")]
    NotOfModel {
        tensor: String,
        found: Vec<usize>,
        expected: String,
    },
    /// Something that is not done.
    #[error("{0}")]
    Unsupported(String),
}

impl SaveError {
    pub(crate) fn io(path: &Path) -> impl Fn(std::io::Error) -> SaveError + '_ {
        move |source| SaveError::Io {
            path: path.to_path_buf(),
            source,
        }
    }
}

/// Writes a file beside its place and moves it there when it is whole; what was there before stays until then.
pub(crate) fn replace_file(
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
        // The error that led here says more than one of this.
        let _ = std::fs::remove_file(&partial);
    }
    moved
}

/// Writes these bytes as a file, whole or not at all.
pub(crate) fn replace_bytes(path: &Path, bytes: &[u8]) -> Result<(), SaveError> {
    replace_file(path, |out| {
        out.write_all(bytes).map_err(SaveError::io(path))
    })
}
