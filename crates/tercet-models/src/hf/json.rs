//! Readers of a folder's JSON files.

use std::path::Path;

use serde_json::{Map, Value};

use super::{HfError, MAX_JSON_BYTES};
use tercet_files::mmap::read_small;

pub(super) fn read_json(path: &Path) -> Result<Map<String, Value>, HfError> {
    let bytes = read_small(path, MAX_JSON_BYTES)?;
    let read = serde_json::from_slice(&bytes);
    let read = read.or_else(|error| match without_infinities(&bytes) {
        Some(bytes) => serde_json::from_slice(&bytes),
        None => Err(error),
    });
    read.map_err(|source| HfError::Json {
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

pub(crate) fn read_optional_json(path: &Path) -> Result<Option<Map<String, Value>>, HfError> {
    if path.exists() {
        read_json(path).map(Some)
    } else {
        Ok(None)
    }
}
