//! Searching a folder by meaning: an index of vectors on disk, and what in the folder is nearest to a query.
//!
//! An index is one safetensors file: `vectors` F32 `[n, width]` of unit length, for texts `lines` I32 `[n, 2]` (the first and the
//! last line of each passage, from 1 on), and in the header JSON with the model, the folder and its files. It holds no
//! text; passages that are found are read from the folder again. A file is written beside its place and moved there,
//! so an index is whole at any time.
//!
//! | file | does |
//! |---|---|
//! | `files.rs` | which files a folder has, and their passages |
//! | `index.rs` | the index: read, written, searched |
//! | `indexer.rs` | brings an index up to date |
//! | `side.rs` | the model, and by what an index knows it again |

mod files;
mod index;
mod indexer;
mod side;

use std::path::PathBuf;

pub use files::Unit;
pub use index::{Found, Passage, SearchIndex, SearchSettings};
pub use indexer::{Indexed, Indexer, Progress};
pub use side::{Query, Searcher};

use crate::safetensors::SafeTensorsError;
use crate::save::SaveError;

/// Why a folder was not indexed, or an index not used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(
    missing_docs,
    reason = "the fields are named by the messages above them"
)]
pub enum SearchError {
    /// The file is no safetensors file.
    #[error("{path}: is no index that can be read", path = path.display())]
    Unreadable {
        path: PathBuf,
        source: SafeTensorsError,
    },
    /// It is one, but no sound index.
    #[error("{path}: is no sound index: {reason}; make it anew", path = path.display())]
    Damaged { path: PathBuf, reason: String },
    /// A later version wrote it.
    #[error("{path}: is an index of version {version}, version {known} is read; make it anew", path = path.display())]
    Version {
        path: PathBuf,
        version: u64,
        known: u64,
    },
    /// The index is of another model.
    #[error("{path}: was made by another model; use that one, or make the index anew", path = path.display())]
    OtherModel { path: PathBuf },
    /// The index is of another folder.
    #[error("{path}: is an index of {folder}; name another file for this folder", path = path.display(), folder = folder.display())]
    OtherFolder { path: PathBuf, folder: PathBuf },
    /// The index was made with other choices.
    #[error("{path}: was made with {made}, not with {asked}; use the same choices, or make the index anew", path = path.display())]
    OtherSettings {
        path: PathBuf,
        made: String,
        asked: String,
    },
    /// The folder cannot be read.
    #[error("{path}: cannot be read", path = path.display())]
    Folder {
        path: PathBuf,
        source: std::io::Error,
    },
    /// A passage is longer than the model reads.
    #[error(
        "{path}, line {line}: the passage has {tokens} tokens, the model reads at most {most}; cut it with `--truncate`, or index by lines",
        path = path.display()
    )]
    TooLong {
        path: PathBuf,
        line: usize,
        tokens: usize,
        most: usize,
    },
    /// The model gave a vector that has no direction.
    #[error("the vector of {what} is not finite, or zero")]
    NoDirection { what: String },
    /// The index cannot be written.
    #[error(transparent)]
    Save(#[from] SaveError),
}
