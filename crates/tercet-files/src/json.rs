//! Readers of the JSON files of a folder.

use std::path::Path;

use serde_json::{Map, Value};

use crate::folder_error::FolderError;
use crate::mmap::read_small;

/// Maximum size of a JSON file, in bytes (the largest known index has about 10 MB).
pub const MAX_JSON_BYTES: u64 = 128 << 20;

/// Reads an object from a JSON file; Python's `Infinity` is read as null.
///
/// # Errors
/// [`FolderError::File`], [`FolderError::Json`].
pub fn read_json(path: &Path) -> Result<Map<String, Value>, FolderError> {
    let bytes = read_small(path, MAX_JSON_BYTES)?;
    let read = serde_json::from_slice(&bytes);
    let read = read.or_else(|error| match without_infinities(&bytes) {
        Some(bytes) => serde_json::from_slice(&bytes),
        None => Err(error),
    });
    read.map_err(|source| FolderError::Json {
        path: path.to_path_buf(),
        source,
    })
}

/// Replaces Python's `Infinity`, which is not valid JSON, by null; `None` if the file has no
/// `Infinity`.
fn without_infinities(bytes: &[u8]) -> Option<Vec<u8>> {
    const WORD: &[u8] = b"Infinity";
    let (mut out, mut in_string, mut found) = (Vec::with_capacity(bytes.len()), false, false);
    let mut rest = bytes;
    while let [first, after @ ..] = rest {
        if !in_string && rest.starts_with(WORD) {
            out.extend_from_slice(b"null");
            (rest, found) = (&rest[WORD.len()..], true);
            continue;
        }
        out.push(*first);
        rest = after;
        match (*first, in_string) {
            (b'"', _) => in_string = !in_string,
            (b'\\', true) => {
                if let [escaped, after @ ..] = rest {
                    out.push(*escaped);
                    rest = after;
                }
            }
            _ => {}
        }
    }
    found.then_some(out)
}

/// Like [`read_json`]; `None` if the file does not exist.
///
/// # Errors
/// [`FolderError::File`], [`FolderError::Json`].
pub fn read_optional_json(path: &Path) -> Result<Option<Map<String, Value>>, FolderError> {
    if path.exists() {
        read_json(path).map(Some)
    } else {
        Ok(None)
    }
}
