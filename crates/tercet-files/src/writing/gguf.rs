//! Writer of GGUF files, version 3 (the format's `docs/gguf.md`): metadata, tensor table, aligned
//! tensor data.

use std::io::Write;
use std::path::Path;

use super::{SaveError, SavedTensorEntry, SavedTensorStorage, replace_file};
use crate::gguf::{DEFAULT_ALIGNMENT, Gguf, GgufValue, GgufValueType, split};

const VERSION: u32 = 3;

/// The encoded metadata of a file to be written.
///
/// ```
/// use tercet_files::gguf::{Gguf, GgufValue};
/// use tercet_files::writing::{GgufHeader, write_gguf};
/// # let path = std::env::temp_dir().join(format!("tercet-doc-header-{}.gguf", std::process::id()));
/// let mut header = GgufHeader::new();
/// header.push("general.architecture", GgufValue::String("llama"));
/// write_gguf(&path, &header, &[])?;
/// assert_eq!(Gguf::open(&path)?.metadata().get_str("general.architecture")?, "llama");
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct GgufHeader {
    entries: Vec<Vec<u8>>,
    alignment: u64,
}

impl Default for GgufHeader {
    fn default() -> GgufHeader {
        GgufHeader::new()
    }
}

impl GgufHeader {
    /// A header without metadata.
    #[must_use]
    pub fn new() -> GgufHeader {
        GgufHeader {
            entries: Vec::new(),
            alignment: DEFAULT_ALIGNMENT,
        }
    }

    /// The metadata of another model except the keys in `without`. Split keys are dropped, because
    /// the output is one file.
    #[must_use]
    pub fn from_gguf(gguf: &Gguf, without: &[&str]) -> GgufHeader {
        let mut header = GgufHeader {
            entries: Vec::new(),
            alignment: gguf.alignment(),
        };
        for (key, value) in gguf.metadata().iter() {
            if !without.contains(&key) && !split::KEYS.contains(&key) {
                header.push(key, value);
            }
        }
        header
    }

    /// Adds a key.
    pub fn push(&mut self, key: &str, value: GgufValue<'_>) {
        let mut bytes = string(key);
        bytes.extend(value.value_type().id().to_le_bytes());
        put(&mut bytes, value);
        self.entries.push(bytes);
    }

    /// Adds a list of strings.
    pub fn push_strings<'a>(&mut self, key: &str, all: impl Iterator<Item = &'a str>) {
        self.list(key, GgufValueType::String, all.map(string));
    }

    /// Adds a list of integers.
    pub fn push_integers(&mut self, key: &str, all: impl Iterator<Item = i32>) {
        self.list(
            key,
            GgufValueType::I32,
            all.map(|x| x.to_le_bytes().to_vec()),
        );
    }

    /// Adds a list of floats.
    pub fn push_floats(&mut self, key: &str, all: impl Iterator<Item = f32>) {
        self.list(
            key,
            GgufValueType::F32,
            all.map(|x| x.to_le_bytes().to_vec()),
        );
    }

    fn list(&mut self, key: &str, ty: GgufValueType, all: impl Iterator<Item = Vec<u8>>) {
        let mut bytes = string(key);
        bytes.extend(GgufValueType::Array.id().to_le_bytes());
        bytes.extend(ty.id().to_le_bytes());
        let at = bytes.len();
        bytes.extend([0; 8]);
        let mut count = 0u64;
        for one in all {
            bytes.extend(one);
            count += 1;
        }
        bytes[at..at + 8].copy_from_slice(&count.to_le_bytes());
        self.entries.push(bytes);
    }
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

/// Appends a value without its type id.
fn put(to: &mut Vec<u8>, value: GgufValue<'_>) {
    match value {
        GgufValue::U8(v) => to.push(v),
        GgufValue::I8(v) => to.extend(v.to_le_bytes()),
        GgufValue::U16(v) => to.extend(v.to_le_bytes()),
        GgufValue::I16(v) => to.extend(v.to_le_bytes()),
        GgufValue::U32(v) => to.extend(v.to_le_bytes()),
        GgufValue::I32(v) => to.extend(v.to_le_bytes()),
        GgufValue::F32(v) => to.extend(v.to_le_bytes()),
        GgufValue::U64(v) => to.extend(v.to_le_bytes()),
        GgufValue::I64(v) => to.extend(v.to_le_bytes()),
        GgufValue::F64(v) => to.extend(v.to_le_bytes()),
        GgufValue::Bool(v) => to.push(u8::from(v)),
        GgufValue::String(v) => to.extend(string(v)),
        GgufValue::Array(array) => {
            to.extend(array.element_type().id().to_le_bytes());
            to.extend(array.len().to_le_bytes());
            to.extend(array.bytes());
        }
    }
}

/// Writes a file with this metadata and these tensors.
///
/// # Errors
/// [`SaveError::Header`] for a storage type of another format, and the errors of writing.
pub fn write_gguf(
    path: &Path,
    header: &GgufHeader,
    entries: &[SavedTensorEntry<'_>],
) -> Result<(), SaveError> {
    let mut head = b"GGUF".to_vec();
    head.extend(VERSION.to_le_bytes());
    head.extend((entries.len() as u64).to_le_bytes());
    head.extend((header.entries.len() as u64).to_le_bytes());
    head.extend(header.entries.concat());
    let mut at = 0u64;
    for entry in entries {
        let SavedTensorStorage::Ggml(ty) = entry.storage else {
            let (name, storage) = (&entry.name, entry.storage.name());
            return Err(SaveError::Header {
                path: path.to_path_buf(),
                reason: format!("tensor `{name}`: {storage} is not a GGUF type"),
            });
        };
        head.extend(string(&entry.name));
        head.extend((entry.shape.len() as u32).to_le_bytes());
        let dims = entry.shape.iter().rev();
        dims.for_each(|dim| head.extend((*dim as u64).to_le_bytes()));
        head.extend(ty.id().to_le_bytes());
        head.extend(at.to_le_bytes());
        at = (at + entry.len_bytes as u64).next_multiple_of(header.alignment);
    }
    replace_file(path, |out| {
        let io = SaveError::io(path);
        let pad = |out: &mut dyn Write, len: u64| {
            let zeros = vec![0; (len.next_multiple_of(header.alignment) - len) as usize];
            out.write_all(&zeros).map_err(&io)
        };
        out.write_all(&head).map_err(&io)?;
        pad(out, head.len() as u64)?;
        for entry in entries {
            let bytes = (entry.bytes)()?;
            entry.expect_len(&bytes, path)?;
            out.write_all(&bytes).map_err(&io)?;
            pad(out, bytes.len() as u64)?;
        }
        Ok(())
    })
}
