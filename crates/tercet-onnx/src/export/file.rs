//! Writes models to disk: one file, or a file with external data, because messages are limited to 2
//! GiB.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use prost::Message;

use super::{ExportError, message_bytes};
use crate::proto::{ModelProto, StringStringEntryProto, TensorProto};

/// Maximum size in bytes of a model in a single file. Larger models store their large tensors as
/// external data.
const LARGEST_MESSAGE: usize = 1 << 30;

/// Minimum size in bytes of a tensor that is moved to external data.
const MIN_EXTERNAL_BYTES: usize = 1024;

/// The alignment of tensors in the external file, so that readers can memory-map them.
const ALIGNMENT: usize = 4096;

/// Writes a model to a file. The tensors of a model above 1 GiB are written to `FILE.data` next to
/// the file. The model file and the data file must stay together.
///
/// # Errors
/// [`ExportError::Write`].
pub fn write(model: ModelProto, path: &Path) -> Result<(), ExportError> {
    write_with_limit(model, path, LARGEST_MESSAGE)
}

/// Writes a model as [`write()`] does, with another limit than 1 GiB.
///
/// A model of more than `max_bytes` bytes stores its tensors of 1 KiB and more in `FILE.data`. For
/// example, 0 keeps the weights of any model apart from its graph.
///
/// # Errors
/// [`ExportError::Write`].
pub fn write_with_limit(
    mut model: ModelProto,
    path: &Path,
    max_bytes: usize,
) -> Result<(), ExportError> {
    let failed = |path: &Path| {
        let path = path.to_path_buf();
        move |source| ExportError::Write { path, source }
    };
    if message_bytes(&model) > max_bytes {
        let mut name = path.file_name().unwrap_or_default().to_os_string();
        name.push(".data");
        let beside = path.with_file_name(&name);
        move_out(&mut model, &beside, &name.to_string_lossy()).map_err(failed(&beside))?;
    }
    std::fs::write(path, model.encode_to_vec()).map_err(failed(path))
}

/// Moves the large tensors of a model into an external data file.
fn move_out(model: &mut ModelProto, path: &Path, name: &str) -> std::io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    let mut at = 0usize;
    let tensors = model.graph.iter_mut().flat_map(|g| &mut g.initializer);
    for tensor in tensors {
        let is_large = |bytes: &mut bytes::Bytes| bytes.len() >= MIN_EXTERNAL_BYTES;
        let Some(bytes) = tensor.raw_data.take_if(is_large) else {
            continue;
        };
        let gap = at.next_multiple_of(ALIGNMENT) - at;
        file.write_all(&[0; ALIGNMENT][..gap])?;
        at += gap;
        file.write_all(&bytes)?;
        note_place(tensor, name, at, bytes.len());
        at += bytes.len();
    }
    file.flush()
}

fn note_place(tensor: &mut TensorProto, file: &str, offset: usize, length: usize) {
    const EXTERNAL: i32 = 1;
    let entry = |key: &str, value: String| StringStringEntryProto {
        key: Some(key.to_string()),
        value: Some(value),
    };
    tensor.data_location = Some(EXTERNAL);
    tensor.external_data = vec![
        entry("location", file.to_string()),
        entry("offset", offset.to_string()),
        entry("length", length.to_string()),
    ];
}
