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
    write_with(model, path, LARGEST_MESSAGE)
}

fn write_with(mut model: ModelProto, path: &Path, most: usize) -> Result<(), ExportError> {
    let failed = |path: &Path| {
        let path = path.to_path_buf();
        move |source| ExportError::Write { path, source }
    };
    if message_bytes(&model) > most {
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

#[cfg(test)]
mod tests {
    use super::*;
    use tercet_ir::{DType, Graph, Tensor, Type};

    #[test]
    fn large_tensors_lie_in_a_file_beside() {
        let dir = std::env::temp_dir().join(format!("tercet-export-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("model.onnx");
        let mut g = Graph::new();
        let x = g.input("x", Type::new(DType::F32, [512])).unwrap();
        let w = g.param("w", Type::new(DType::F32, [512])).unwrap();
        let y = g.add(tercet_ir::ops::Where {}, &[]).err();
        assert!(y.is_some());
        let y = g.binary(tercet_ir::scalar::BinaryFn::Add, x, w).unwrap();
        g.output("y", y).unwrap();
        let weights: Vec<f32> = (0..512).map(|i| i as f32).collect();
        let weight = Tensor::from_slice(&[512], &weights).unwrap();
        let model = super::super::export(&g, |_| Some(weight.clone())).unwrap();
        write_with(model, &path, 100).unwrap();
        assert!(std::fs::metadata(&path).unwrap().len() < 1024);
        let read = crate::OnnxModel::read(path.as_path()).unwrap();
        let imported = read.import(&crate::ImportOptions::default()).unwrap();
        let found = imported
            .params
            .iter()
            .any(|(_, t)| t.bytes() == weight.bytes());
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(found);
    }
}
