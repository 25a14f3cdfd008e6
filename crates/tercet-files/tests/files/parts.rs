//! Parts of split models.

#![allow(dead_code, reason = "each test package uses a part of it")]

use std::path::{Path, PathBuf};

use tercet_files::{Gguf, MappedFile};

use super::common::{GgufWriter, string};

pub(crate) fn part_of(writer: GgufWriter, number: u16, count: u16, tensors: i32) -> GgufWriter {
    writer
        .raw("split.no", 2, &number.to_le_bytes())
        .raw("split.count", 2, &count.to_le_bytes())
        .raw("split.tensors.count", 5, &tensors.to_le_bytes())
}

pub(crate) fn path_of(dir: &Path, number: u16, count: u16) -> PathBuf {
    dir.join(format!("m-{:05}-of-{count:05}.gguf", number + 1))
}

/// Three parts with two, zero and one tensors.
pub(crate) fn parts() -> [GgufWriter; 3] {
    let first = GgufWriter::default()
        .str("general.architecture", "llama")
        .tensor("a", &[4], 24, &[1, 2, 3, 4])
        .tensor("b", &[2], 24, &[5, 6]);
    let last = GgufWriter::default().tensor("c", &[3], 24, &[7, 8, 9]);
    [
        part_of(first, 0, 3, 3),
        part_of(GgufWriter::default(), 1, 3, 3),
        part_of(last, 2, 3, 3),
    ]
}

pub(crate) fn written(dir: &Path, parts: &[GgufWriter]) {
    for (number, part) in (0..).zip(parts) {
        let path = path_of(dir, number, parts.len() as u16);
        std::fs::write(path, part.bytes()).unwrap();
    }
}

/// Splits the bytes of a whole file into parts with these numbers of tensors.
pub(crate) fn split(bytes: &[u8], sizes: &[usize]) -> Vec<GgufWriter> {
    let whole = Gguf::parse(MappedFile::from_vec(bytes.to_vec())).unwrap();
    let tensors = whole.tensors();
    let table = string(tensors[0].name().as_bytes());
    let table = bytes.windows(table.len()).position(|w| w == table).unwrap();
    // The counts and all keys precede the tensor table.
    let mut entries = vec![Vec::new(); whole.metadata().len()];
    entries[0] = bytes[24..table].to_vec();
    let mut rest = tensors;
    let mut made = Vec::new();
    for (number, size) in (0..).zip(sizes) {
        let mut part = GgufWriter::default();
        if number == 0 {
            part.entries = std::mem::take(&mut entries);
        }
        let here;
        (here, rest) = rest.split_at(*size);
        for t in here {
            part = part.tensor(t.name(), t.dims(), t.ggml_type().id(), whole.data(t));
        }
        let (count, all) = (sizes.len() as u16, tensors.len() as i32);
        made.push(part_of(part, number, count, all));
    }
    assert!(rest.is_empty());
    made
}
