//! GGUF model files, versions 2 and 3, little-endian.
//!
//! [`Gguf::open`] maps the file and validates its metadata and tensor table once. Later accesses
//! return borrowed values and slices. The file is untrusted: counts are compared with the remaining
//! bytes before memory is reserved, and all size arithmetic is checked. Names must be unique;
//! tensors must be inside the file, aligned and disjoint. The time and memory to open a file are
//! proportional to its actual header size, whatever counts the header has. An invalid file gives a
//! [`GgufError`] with the byte offset.
//!
//! A split model (`-00001-of-0000N`) is opened by any of its parts and becomes one [`Gguf`].
//!
//! Invariants of a [`Gguf`]: every metadata value decodes. Every [`GgufTensorInfo`] range is inside its
//! file and has exactly the bytes of its type and dimensions.
//!
//! Specification: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.

mod cursor;
mod error;
mod metadata;
pub(crate) mod split;
mod tensors;
mod types;
mod value;

pub use error::GgufError;
pub use metadata::GgufMetadata;
pub use tensors::GgufTensorInfo;
pub use types::GgmlType;
pub use value::{GgufArray, GgufArrayIter, GgufValue, GgufValueType};

use std::path::Path;

use crate::foreign::clip;
use crate::mmap::MappedFile;
use cursor::GgufCursor;
use tensors::GgufTensors;

/// Maximum number of metadata keys and of tensors. Real files have hundreds, and each uses some
/// tens of bytes of memory.
const MAX_ENTRIES: u64 = 1 << 20;
/// Default alignment of tensor data; `general.alignment` overrides it.
pub(crate) const DEFAULT_ALIGNMENT: u64 = 32;
/// Maximum accepted alignment.
const MAX_ALIGNMENT: u64 = 1 << 30;

/// An open GGUF model: its metadata, and its tensors as slices of the mapped files.
///
/// ```
/// use tercet_files::{Gguf, MappedFile};
///
/// // A complete file: version 3, no tensors, one metadata key.
/// let mut bytes = b"GGUF".to_vec();
/// bytes.extend(3u32.to_le_bytes());
/// bytes.extend(0u64.to_le_bytes()); // tensors
/// bytes.extend(1u64.to_le_bytes()); // metadata keys
/// bytes.extend(17u64.to_le_bytes());
/// bytes.extend(b"llama.block_count");
/// bytes.extend(4u32.to_le_bytes()); // the value type: u32
/// bytes.extend(22u32.to_le_bytes());
///
/// let gguf = Gguf::parse(MappedFile::from_vec(bytes))?;
/// assert_eq!(gguf.metadata().get_u32("llama.block_count")?, 22);
/// let missing = gguf.metadata().get_str("general.name").unwrap_err();
/// assert_eq!(missing.to_string(), "the file has no metadata key `general.name`");
/// # Ok::<(), tercet_files::GgufError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Gguf {
    version: u32,
    alignment: u64,
    metadata: GgufMetadata,
    tensors: GgufTensors,
    /// The mapped files: one, or all parts of a split model in order.
    parts: Vec<MappedFile>,
}

impl Gguf {
    /// Maps and validates the file at `path`. If the file is a part of a split model, the other
    /// parts in the same folder are opened as well.
    ///
    /// # Errors
    /// [`GgufError`]: the file cannot be opened, or is not a valid GGUF file. The same error is
    /// returned if a part of a split model is missing, or if parts contradict each other.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, GgufError> {
        let path = path.as_ref();
        let gguf = Self::parse_part(MappedFile::open(path)?)?;
        match split::GgufSplitIndex::read(&gguf.metadata)? {
            Some(place) => split::join(gguf, place, path),
            None => Ok(gguf),
        }
    }

    /// Validates a file that is already mapped or in memory.
    ///
    /// # Errors
    /// [`GgufError`]: the bytes are not a valid GGUF file. [`GgufError::PartAlone`]: the file is a
    /// part of a split model.
    pub fn parse(file: MappedFile) -> Result<Self, GgufError> {
        let gguf = Self::parse_part(file)?;
        match split::GgufSplitIndex::read(&gguf.metadata)? {
            Some(place) => Err(place.missing_parts_error()),
            None => Ok(gguf),
        }
    }

    /// Validates one file, which may be a part of a split model.
    fn parse_part(file: MappedFile) -> Result<Self, GgufError> {
        let mut cursor = GgufCursor::new(&file, 0);
        let version = read_version(&mut cursor)?;
        let tensor_count = cursor.count(tensors::MIN_INFO_BYTES, MAX_ENTRIES, || {
            "the tensor count".to_owned()
        })?;
        let key_count = cursor.count(metadata::MIN_ENTRY_BYTES, MAX_ENTRIES, || {
            "the metadata key count".to_owned()
        })?;
        let metadata = GgufMetadata::read(&mut cursor, key_count, file.clone())?;
        let alignment = read_alignment(&metadata)?;
        let tensors = GgufTensors::read(&mut cursor, tensor_count, alignment, &file)?;
        Ok(Self {
            version,
            alignment,
            metadata,
            tensors,
            parts: vec![file],
        })
    }

    /// The format version, 2 or 3.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The alignment of tensor data, in bytes.
    #[must_use]
    pub fn alignment(&self) -> u64 {
        self.alignment
    }

    /// The metadata, in file order.
    #[must_use]
    pub fn metadata(&self) -> &GgufMetadata {
        &self.metadata
    }

    /// The tensors, in file order.
    #[must_use]
    pub fn tensors(&self) -> &[GgufTensorInfo] {
        self.tensors.infos()
    }

    /// The tensor called `name`.
    ///
    /// # Errors
    /// [`GgufError::NoSuchTensor`].
    pub fn tensor(&self, name: &str) -> Result<&GgufTensorInfo, GgufError> {
        self.tensors
            .find(name)
            .ok_or_else(|| GgufError::NoSuchTensor { tensor: clip(name) })
    }

    /// Whether there is a tensor called `name`.
    #[must_use]
    pub fn has_tensor(&self, name: &str) -> bool {
        self.tensors.find(name).is_some()
    }

    /// The bytes of a tensor of this model: rows of whole blocks in the format of
    /// [`GgufTensorInfo::ggml_type`].
    ///
    /// # Panics
    /// Panics if `info` comes from another, longer model.
    #[must_use]
    pub fn data(&self, info: &GgufTensorInfo) -> &[u8] {
        &self.file_of(info)[info.range()]
    }

    /// The file that contains a tensor of this model.
    ///
    /// # Panics
    /// Panics if `info` comes from another model with more files.
    #[must_use]
    pub fn file_of(&self, info: &GgufTensorInfo) -> &MappedFile {
        &self.parts[info.part()]
    }

    /// The files of the model: one, or all parts of a split model in order.
    #[must_use]
    pub fn files(&self) -> &[MappedFile] {
        &self.parts
    }
}

fn read_version(cursor: &mut GgufCursor<'_>) -> Result<u32, GgufError> {
    let magic = cursor.take(4, || "the magic bytes \"GGUF\"".to_owned())?;
    if magic != b"GGUF" {
        return Err(GgufError::BadMagic {
            found: format!("\"{}\"", magic.escape_ascii()),
            hint: magic_hint(magic),
        });
    }
    let version = cursor.u32(|| "the version".to_owned())?;
    match version {
        2 | 3 => Ok(version),
        // In a big-endian file, a small version number is read with its lower 16 bits zero.
        found if found != 0 && found & 0xffff == 0 => Err(GgufError::BigEndian { found }),
        found => Err(GgufError::UnsupportedVersion { found }),
    }
}

/// A hint about the actual format of a file with another magic number.
fn magic_hint(magic: &[u8]) -> &'static str {
    const HINTS: &[(&[u8], &str)] = &[
        (b"FUGG", " (a byte-swapped GGUF file)"),
        (
            b"lmgg",
            " (a GGML file, older than GGUF; convert the model again)",
        ),
        (
            b"tjgg",
            " (a GGJT file, older than GGUF; convert the model again)",
        ),
        (
            b"fmgg",
            " (a GGMF file, older than GGUF; convert the model again)",
        ),
        (
            b"PK\x03\x04",
            " (a ZIP archive, perhaps a PyTorch checkpoint)",
        ),
        (
            b"vers",
            " (a Git LFS pointer; fetch the file itself with `git lfs pull`)",
        ),
        (b"<!DO", " (a web page, perhaps an error of the download)"),
        (b"<htm", " (a web page, perhaps an error of the download)"),
    ];
    HINTS
        .iter()
        .find(|(start, _)| magic == *start)
        .map_or("", |(_, hint)| hint)
}

fn read_alignment(metadata: &GgufMetadata) -> Result<u64, GgufError> {
    let found = metadata
        .opt_u64("general.alignment")?
        .unwrap_or(DEFAULT_ALIGNMENT);
    if found.is_power_of_two() && found <= MAX_ALIGNMENT {
        Ok(found)
    } else {
        Err(GgufError::BadAlignment {
            found,
            max: MAX_ALIGNMENT,
        })
    }
}
