//! Writer of safetensors files: the format's own crate writes the header, then the tensors follow
//! in order.

use std::path::Path;

use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};

use super::{SaveError, SavedTensorEntry, SavedTensorStorage, replace_file};

/// Writes a file with these tensors, wider element types first, so that all are aligned.
///
/// # Errors
/// [`SaveError::Header`] for a storage type of another format, and the errors of writing.
pub fn write_safetensors(path: &Path, entries: Vec<SavedTensorEntry<'_>>) -> Result<(), SaveError> {
    write_noted(path, entries, &[("format", "pt".to_string())])
}

/// Writes a file with these tensors, and with metadata in the header.
///
/// # Errors
/// The errors of [`write_safetensors`].
pub fn write_noted(
    path: &Path,
    mut entries: Vec<SavedTensorEntry<'_>>,
    notes: &[(&str, String)],
) -> Result<(), SaveError> {
    let refused = |reason: String| SaveError::Header {
        path: path.to_path_buf(),
        reason,
    };
    let element = |e: &SavedTensorEntry<'_>| e.len_bytes / e.shape.iter().product::<usize>().max(1);
    entries.sort_by(|a, b| (element(b), &a.name).cmp(&(element(a), &b.name)));
    let mut infos = Vec::with_capacity(entries.len());
    let mut at = 0;
    for entry in &entries {
        let SavedTensorStorage::Safe(dtype) = entry.storage else {
            let (name, storage) = (&entry.name, entry.storage.name());
            return Err(refused(format!(
                "tensor `{name}`: {storage} is not a safetensors type"
            )));
        };
        let dtype: Dtype = serde_json::from_value(dtype.name().into())
            .map_err(|e| refused(format!("tensor `{}`: {e}", entry.name)))?;
        let end = at + entry.len_bytes;
        infos.push((
            entry.name.clone(),
            TensorInfo {
                dtype,
                shape: entry.shape.clone(),
                data_offsets: (at, end),
            },
        ));
        at = end;
    }
    let notes = notes
        .iter()
        .map(|(key, text)| (key.to_string(), text.clone()));
    let header = Metadata::new(Some(notes.collect()), infos);
    let header = header.map_err(|e| refused(e.to_string()))?;
    let mut header = serde_json::to_vec(&header).map_err(|e| refused(e.to_string()))?;
    header.resize(header.len().next_multiple_of(8), b' ');
    if header.len() as u64 > crate::safetensors::MAX_HEADER_BYTES {
        let reason = format!("it has {} bytes, more than readers accept", header.len());
        return Err(refused(reason));
    }
    replace_file(path, |out| {
        let io = SaveError::io(path);
        out.write_all(&(header.len() as u64).to_le_bytes())
            .map_err(&io)?;
        out.write_all(&header).map_err(&io)?;
        for entry in &entries {
            let bytes = (entry.bytes)()?;
            entry.expect_len(&bytes, path)?;
            out.write_all(&bytes).map_err(&io)?;
        }
        Ok(())
    })
}
