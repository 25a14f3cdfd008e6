//! GGUF model files, versions 2 and 3, little-endian.
//!
//! [`Gguf::open`] maps the file, walks and checks all of its metadata and tensor table once, and
//! from then on hands out borrowed values and slices. The reader trusts nothing: counts are
//! compared with the bytes that are left before memory is reserved, all arithmetic on sizes is
//! checked, names must be unique, tensors must lie inside the file, aligned and apart from each
//! other. Opening takes time and memory in proportion to the *header*, never to what the header
//! claims, and a refused file is a [`GgufError`] that names the byte offset.
//!
//! A model in several files (`-00001-of-0000N`) is opened by any of them and is one [`Gguf`].
//!
//! Invariants of a [`Gguf`]: every metadata value decodes, every [`TensorInfo`] range is inside
//! its file and is exactly the bytes of its type and dimensions.
//!
//! Specification: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.

mod cursor;
mod error;
mod metadata;
mod split;
mod tensors;
mod types;
mod value;
pub(crate) mod write;

pub use error::GgufError;
pub use metadata::Metadata;
pub use tensors::TensorInfo;
pub use types::GgmlType;
pub use value::{Array, ArrayIter, Value, ValueType};

use std::path::Path;

use crate::mmap::MappedFile;
use cursor::Cursor;
pub(crate) use error::clip;
use tensors::Tensors;

/// More metadata keys or tensors than this is refused: real files have hundreds, and each costs
/// the reader some tens of bytes.
const MAX_ENTRIES: u64 = 1 << 20;
/// Where tensor data begins is rounded up to this unless `general.alignment` says otherwise.
const DEFAULT_ALIGNMENT: u64 = 32;
/// The largest alignment that is believed.
const MAX_ALIGNMENT: u64 = 1 << 30;

/// An open GGUF model: its metadata, and its tensors as slices of the mapped bytes of its file, or files.
///
/// ```
/// use tercet_models::{Gguf, MappedFile};
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
/// # Ok::<(), tercet_models::GgufError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Gguf {
    version: u32,
    alignment: u64,
    metadata: Metadata,
    tensors: Tensors,
    /// The file, or all parts of a model in several, in order; at least one.
    parts: Vec<MappedFile>,
}

impl Gguf {
    /// Maps and checks the file at `path`, and where it is a part of a model in several files, the others beside it.
    ///
    /// # Errors
    /// [`GgufError`]: the file cannot be opened, or is not a sound GGUF file; a part is missing, or parts contradict each
    /// other.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, GgufError> {
        let path = path.as_ref();
        let gguf = Self::parse_part(MappedFile::open(path)?)?;
        match split::Place::read(&gguf.metadata)? {
            Some(place) => split::join(gguf, place, path),
            None => Ok(gguf),
        }
    }

    /// Checks a file that is mapped or in memory already.
    ///
    /// # Errors
    /// [`GgufError`]: the bytes are not a sound GGUF file; [`GgufError::PartAlone`] when they are a part of several.
    pub fn parse(file: MappedFile) -> Result<Self, GgufError> {
        let gguf = Self::parse_part(file)?;
        match split::Place::read(&gguf.metadata)? {
            Some(place) => Err(place.alone()),
            None => Ok(gguf),
        }
    }

    /// A file, be it whole or a part.
    fn parse_part(file: MappedFile) -> Result<Self, GgufError> {
        let mut cursor = Cursor::new(&file, 0);
        let version = read_version(&mut cursor)?;
        let tensor_count = cursor.count(tensors::MIN_INFO_BYTES, MAX_ENTRIES, || {
            "the tensor count".to_owned()
        })?;
        let key_count = cursor.count(metadata::MIN_ENTRY_BYTES, MAX_ENTRIES, || {
            "the metadata key count".to_owned()
        })?;
        let metadata = Metadata::read(&mut cursor, key_count, file.clone())?;
        let alignment = read_alignment(&metadata)?;
        let tensors = Tensors::read(&mut cursor, tensor_count, alignment, &file)?;
        Ok(Self {
            version,
            alignment,
            metadata,
            tensors,
            parts: vec![file],
        })
    }

    /// The version of the format, 2 or 3.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The alignment of tensor data in bytes.
    #[must_use]
    pub fn alignment(&self) -> u64 {
        self.alignment
    }

    /// The metadata, in the order of the file.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The tensors, in the order of the file.
    #[must_use]
    pub fn tensors(&self) -> &[TensorInfo] {
        self.tensors.infos()
    }

    /// The tensor called `name`.
    ///
    /// # Errors
    /// [`GgufError::NoSuchTensor`].
    pub fn tensor(&self, name: &str) -> Result<&TensorInfo, GgufError> {
        self.tensors
            .find(name)
            .ok_or_else(|| GgufError::NoSuchTensor { tensor: clip(name) })
    }

    /// Whether there is a tensor called `name`.
    #[must_use]
    pub fn has_tensor(&self, name: &str) -> bool {
        self.tensors.find(name).is_some()
    }

    /// The bytes of a tensor of this model: rows of whole blocks, as [`TensorInfo::ggml_type`]
    /// stores them.
    ///
    /// # Panics
    /// If `info` comes from another, longer model.
    #[must_use]
    pub fn data(&self, info: &TensorInfo) -> &[u8] {
        &self.file_of(info)[info.range()]
    }

    /// The file that a tensor of this model lies in.
    ///
    /// # Panics
    /// If `info` comes from another model, of more files.
    #[must_use]
    pub fn file_of(&self, info: &TensorInfo) -> &MappedFile {
        &self.parts[info.part()]
    }

    /// The files under this reader: one, or all parts of a model in several, in order.
    #[must_use]
    pub fn files(&self) -> &[MappedFile] {
        &self.parts
    }
}

fn read_version(cursor: &mut Cursor<'_>) -> Result<u32, GgufError> {
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
        // A small version number with its bytes reversed has an empty lower half.
        found if found != 0 && found & 0xffff == 0 => Err(GgufError::BigEndian { found }),
        found => Err(GgufError::UnsupportedVersion { found }),
    }
}

/// What a file with another beginning probably is.
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

fn read_alignment(metadata: &Metadata) -> Result<u64, GgufError> {
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
