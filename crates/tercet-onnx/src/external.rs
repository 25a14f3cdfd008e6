//! External data: tensor elements in files next to the model.
//!
//! Models are untrusted. A path is accepted only if it stays inside the model's folder after all
//! symbolic links are resolved, and if it names a regular file. In the cache layout of the Hugging
//! Face hub (`models--ORG--NAME/snapshots/REVISION`, whose files link to `../../blobs`), the blobs
//! of the same model count as inside. Offset and length are checked
//! before anything is read. Each file is opened once and memory-mapped (`mapped`).

use bytes::Bytes;
use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::File;
use std::path::{Component, Path, PathBuf};

use crate::mapped;
use crate::proto::StringStringEntryProto;

/// The folder of a model's files; none if the model was provided as bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExternalDataFolder {
    path: Option<PathBuf>,
    /// The opened files by relative path.
    opened: RefCell<HashMap<String, Bytes>>,
}

impl ExternalDataFolder {
    pub(crate) fn new(path: Option<&Path>) -> ExternalDataFolder {
        ExternalDataFolder {
            path: path.map(Path::to_path_buf),
            opened: RefCell::default(),
        }
    }

    /// The `len` bytes that the entries `location`, `offset` and `length` describe.
    pub(crate) fn read(
        &self,
        entries: &[StringStringEntryProto],
        len: u64,
    ) -> Result<Bytes, String> {
        let entry = |key: &str| {
            let found = entries.iter().find(|e| e.key.as_deref() == Some(key));
            found.and_then(|e| e.value.as_deref())
        };
        let number = |key: &str| match entry(key) {
            None => Ok(None),
            Some(text) => match text.parse::<u64>() {
                Ok(n) => Ok(Some(n)),
                Err(_) => Err(format!("external data: {key} `{text}` is not a number")),
            },
        };
        let location = entry("location").ok_or("external data without a location")?;
        let (offset, length) = (number("offset")?.unwrap_or(0), number("length")?);
        if length.is_some_and(|length| length != len) {
            return Err(format!(
                "external data has {} bytes, the tensor needs {len}",
                length.unwrap_or(0)
            ));
        }
        let whole = self.open(location)?;
        let size = whole.len() as u64;
        match offset.checked_add(len).filter(|end| *end <= size) {
            // `offset` and `end` are at most the file length, which fits in a `usize`.
            Some(end) => Ok(whole.slice(offset as usize..end as usize)),
            None => Err(format!(
                "external data `{location}` has {size} bytes, the tensor needs {len} from {offset}"
            )),
        }
    }

    /// The bytes of a file inside the folder.
    fn open(&self, location: &str) -> Result<Bytes, String> {
        if let Some(bytes) = self.opened.borrow().get(location) {
            return Ok(bytes.clone());
        }
        let path = self.inside(location)?;
        let fail = |e: std::io::Error| format!("external data `{location}` cannot be read: {e}");
        let file = File::open(&path).map_err(fail)?;
        if !file.metadata().map_err(fail)?.is_file() {
            return Err(format!("external data `{location}` is not a regular file"));
        }
        let bytes = mapped::bytes_of(file).map_err(fail)?;
        let mut opened = self.opened.borrow_mut();
        opened.insert(location.to_string(), bytes.clone());
        Ok(bytes)
    }

    /// The path of a file, checked to be inside the folder.
    fn inside(&self, location: &str) -> Result<PathBuf, String> {
        let folder = self.path.as_deref().ok_or_else(|| {
            format!(
                "external data `{location}`: the model was imported from bytes; import it by its path"
            )
        })?;
        let relative = Path::new(location);
        let plain = |c: Component<'_>| matches!(c, Component::Normal(_) | Component::CurDir);
        let outside = || format!("external data `{location}` is outside the model's folder");
        if !relative.components().all(plain) || location.is_empty() {
            return Err(outside());
        }
        let fail = |e: std::io::Error| format!("external data `{location}` cannot be found: {e}");
        let folder = folder.canonicalize().map_err(fail)?;
        let path = folder.join(relative).canonicalize().map_err(fail)?;
        // Check first, because opening a named pipe would block until a writer appears.
        if !path.metadata().map_err(fail)?.is_file() {
            return Err(format!("external data `{location}` is not a regular file"));
        }
        let blobs = blobs_of(&folder);
        let is_blob = blobs.is_some_and(|blobs| path.parent() == Some(blobs.as_path()));
        match is_blob || path.starts_with(&folder) {
            true => Ok(path),
            false => Err(outside()),
        }
    }
}

/// The folder of the file contents, if `folder` belongs to a snapshot in the hub's cache layout.
fn blobs_of(folder: &Path) -> Option<PathBuf> {
    let snapshots = folder.ancestors().find(|dir| dir.ends_with("snapshots"))?;
    let model = snapshots.parent()?;
    let name = model.file_name()?.to_str()?;
    let is_snapshot = snapshots != folder && name.starts_with("models--");
    is_snapshot.then(|| model.join("blobs"))
}
