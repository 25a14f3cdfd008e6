//! JSON files of a folder.

use std::path::Path;

use serde_json::{Map, Value};

use super::{HfError, MAX_JSON_BYTES};
use crate::mmap::read_small;

pub(super) fn read_json(path: &Path) -> Result<Map<String, Value>, HfError> {
    let bytes = read_small(path, MAX_JSON_BYTES)?;
    serde_json::from_slice(&bytes).map_err(|source| HfError::Json {
        path: path.to_path_buf(),
        source,
    })
}

pub(crate) fn read_optional_json(path: &Path) -> Result<Option<Map<String, Value>>, HfError> {
    if path.exists() {
        read_json(path).map(Some)
    } else {
        Ok(None)
    }
}
