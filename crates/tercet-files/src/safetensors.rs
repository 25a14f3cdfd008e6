//! safetensors files: a JSON header, then tensor data.
//!
//! [`SafeTensors::open`] maps the file and validates the whole header once: its length, unique
//! names and known dtypes. Tensors must cover the data section exactly, without holes or overlap,
//! as the format requires, so that a file cannot hide data. An invalid file gives a
//! [`SafeTensorsError`] with the tensor or the byte offset. Memory use is proportional to the
//! header, which has at most 100 MB.
//!
//! Tensor data may be unaligned, because the format does not require alignment. Callers that need
//! typed slices must check the alignment and copy if necessary.
//!
//! Specification: <https://github.com/huggingface/safetensors#format>.

mod dtype;
mod error;

pub use dtype::SafeDtype;
pub use error::SafeTensorsError;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::Path;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, Visitor};

use crate::foreign::clip;
use crate::mmap::MappedFile;

/// Maximum header length, the limit of the format.
pub(crate) const MAX_HEADER_BYTES: u64 = 100_000_000;
/// Size of the header's length field at the start of the file.
const LENGTH_BYTES: u64 = 8;

/// One tensor of a safetensors file.
///
/// ```
/// # let header = br#"{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
/// # let bytes = [&(header.len() as u64).to_le_bytes()[..], header, &[0; 8]].concat();
/// use tercet_files::{MappedFile, SafeTensorInfo, SafeTensors};
/// let file = SafeTensors::parse(MappedFile::from_vec(bytes))?;
/// let info: &SafeTensorInfo = &file.tensors()[0];
/// assert_eq!((info.name(), info.element_count(), info.range().len()), ("x", 2, 8));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct SafeTensorInfo {
    name: String,
    dtype: SafeDtype,
    shape: Vec<usize>,
    range: Range<usize>,
}

impl SafeTensorInfo {
    /// The name of the tensor.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The type of the elements.
    #[must_use]
    pub fn dtype(&self) -> SafeDtype {
        self.dtype
    }

    /// The dimensions in row-major order.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Number of elements.
    #[must_use]
    pub fn element_count(&self) -> usize {
        self.shape.iter().product()
    }

    /// Byte range of the data in the file.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }
}

/// An open safetensors file: its metadata, and its tensors as slices of the mapped bytes.
///
/// ```
/// use tercet_files::{MappedFile, SafeDtype, SafeTensors};
///
/// let header = br#"{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
/// let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
/// bytes.extend(header);
/// bytes.extend(1.5f32.to_le_bytes());
/// bytes.extend((-2f32).to_le_bytes());
///
/// let file = SafeTensors::parse(MappedFile::from_vec(bytes))?;
/// let x = file.tensor("x")?;
/// assert_eq!((x.dtype(), x.shape()), (SafeDtype::F32, &[2][..]));
/// assert_eq!(file.data(x)[..4], 1.5f32.to_le_bytes());
/// # Ok::<(), tercet_files::SafeTensorsError>(())
/// ```
#[derive(Clone, Debug)]
pub struct SafeTensors {
    /// Sorted by name.
    tensors: Vec<SafeTensorInfo>,
    metadata: BTreeMap<String, String>,
    file: MappedFile,
}

impl SafeTensors {
    /// Maps and validates the file at `path`.
    ///
    /// # Errors
    /// [`SafeTensorsError`]: the file cannot be opened, or is not a valid safetensors file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, SafeTensorsError> {
        Self::parse(MappedFile::open(path)?)
    }

    /// Validates a file that is already mapped or in memory.
    ///
    /// # Errors
    /// [`SafeTensorsError`]: the bytes are not a valid safetensors file.
    pub fn parse(file: MappedFile) -> Result<Self, SafeTensorsError> {
        let header_bytes = header_bytes(&file)?;
        let header = parse_header(header_bytes)?;
        let data_begin = LENGTH_BYTES as usize + header_bytes.len();
        let data_len = (file.len() - data_begin) as u64;

        let mut metadata = BTreeMap::new();
        for (key, value) in header.metadata {
            if metadata.contains_key(&key) {
                return Err(SafeTensorsError::DuplicateMetadata { key: clip(&key) });
            }
            metadata.insert(key, value);
        }
        let mut tensors = header
            .tensors
            .into_iter()
            .map(|(name, raw)| check_tensor(name, raw, data_begin, data_len))
            .collect::<Result<Vec<_>, _>>()?;
        tensors.sort_by(|a, b| a.name.cmp(&b.name));
        if let Some(pair) = tensors.windows(2).find(|pair| pair[0].name == pair[1].name) {
            return Err(SafeTensorsError::DuplicateTensor {
                tensor: clip(&pair[0].name),
            });
        }
        check_cover(&tensors, data_begin, data_len)?;
        Ok(Self {
            tensors,
            metadata,
            file,
        })
    }

    /// The tensors, sorted by name.
    #[must_use]
    pub fn tensors(&self) -> &[SafeTensorInfo] {
        &self.tensors
    }

    /// The free-form metadata of the header (`__metadata__`).
    #[must_use]
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// The tensor called `name`.
    ///
    /// # Errors
    /// [`SafeTensorsError::NoSuchTensor`].
    pub fn tensor(&self, name: &str) -> Result<&SafeTensorInfo, SafeTensorsError> {
        self.find(name)
            .ok_or_else(|| SafeTensorsError::NoSuchTensor { tensor: clip(name) })
    }

    /// The tensor called `name`, if there is one.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&SafeTensorInfo> {
        let at = self
            .tensors
            .binary_search_by(|tensor| tensor.name.as_str().cmp(name))
            .ok()?;
        self.tensors.get(at)
    }

    /// The bytes of a tensor of this file, little-endian and possibly unaligned.
    ///
    /// # Panics
    /// Panics if `info` comes from another, longer file.
    #[must_use]
    pub fn data(&self, info: &SafeTensorInfo) -> &[u8] {
        &self.file[info.range()]
    }

    /// The mapped file.
    #[must_use]
    pub fn file(&self) -> &MappedFile {
        &self.file
    }
}

fn header_bytes(file: &[u8]) -> Result<&[u8], SafeTensorsError> {
    let file_len = file.len() as u64;
    let Some((length, rest)) = file.split_first_chunk::<{ LENGTH_BYTES as usize }>() else {
        return Err(SafeTensorsError::TooShort { file_len });
    };
    let header_len = u64::from_le_bytes(*length);
    let max = (rest.len() as u64).min(MAX_HEADER_BYTES);
    if header_len > max {
        return Err(SafeTensorsError::HeaderTooLong { header_len, max });
    }
    Ok(&rest[..header_len as usize])
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTensor {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

#[derive(Default)]
struct RawHeader {
    tensors: Vec<(String, RawTensor)>,
    metadata: Vec<(String, String)>,
    has_metadata: bool,
}

fn parse_header(bytes: &[u8]) -> Result<RawHeader, SafeTensorsError> {
    let bad = |offset: usize, reason: String| SafeTensorsError::BadHeader {
        offset: LENGTH_BYTES + offset as u64,
        reason,
    };
    let text = std::str::from_utf8(bytes)
        .map_err(|error| bad(error.valid_up_to(), "not valid UTF-8".to_owned()))?;
    if !text.starts_with('{') {
        return Err(bad(
            0,
            "expected a JSON object, which begins with `{`".to_owned(),
        ));
    }
    let mut json = serde_json::Deserializer::from_str(text);
    let header = HeaderSeed
        .deserialize(&mut json)
        .and_then(|header| json.end().map(|()| header));
    header.map_err(|error| {
        let line_begin: usize = text
            .split_inclusive('\n')
            .take(error.line().saturating_sub(1))
            .map(str::len)
            .sum();
        let message = error.to_string();
        // Drop serde's line and column: the header is one line, and the error has the byte offset.
        let reason = message
            .rfind(" at line ")
            .map_or(message.as_str(), |end| &message[..end]);
        bad(
            (line_begin + error.column().saturating_sub(1)).min(text.len()),
            clip(reason),
        )
    })
}

struct HeaderSeed;

impl<'de> DeserializeSeed<'de> for HeaderSeed {
    type Value = RawHeader;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<RawHeader, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for HeaderSeed {
    type Value = RawHeader;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors by name")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
        let mut header = RawHeader::default();
        while let Some(name) = map.next_key::<String>()? {
            if name != "__metadata__" {
                header.tensors.push((name, map.next_value()?));
                continue;
            }
            if std::mem::replace(&mut header.has_metadata, true) {
                return Err(serde::de::Error::custom("`__metadata__` occurs twice"));
            }
            header.metadata = map.next_value::<HeaderPairs>()?.0;
        }
        Ok(header)
    }
}

/// A map as a list of pairs, so that duplicate keys are detected.
struct HeaderPairs(Vec<(String, String)>);

impl<'de> Deserialize<'de> for HeaderPairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct HeaderPairsVisitor;

        impl<'de> Visitor<'de> for HeaderPairsVisitor {
            type Value = HeaderPairs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of strings")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<HeaderPairs, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(HeaderPairs(pairs))
            }
        }

        deserializer.deserialize_map(HeaderPairsVisitor)
    }
}

fn check_tensor(
    name: String,
    raw: RawTensor,
    data_begin: usize,
    data_len: u64,
) -> Result<SafeTensorInfo, SafeTensorsError> {
    let RawTensor {
        dtype,
        shape,
        data_offsets: (begin, end),
    } = raw;
    let Some(dtype) = SafeDtype::ALL.iter().copied().find(|d| d.name() == dtype) else {
        return Err(SafeTensorsError::UnknownDtype {
            tensor: clip(&name),
            found: clip(&dtype),
        });
    };
    if begin > end || end > data_len {
        return Err(SafeTensorsError::BadOffsets {
            tensor: clip(&name),
            begin,
            end,
            data_len,
        });
    }
    // A dimension may be 0, but the other dimensions are still checked, because strides are
    // computed from them.
    let span = shape
        .iter()
        .try_fold(1_u64, |product, dim| product.checked_mul((*dim).max(1)))
        .and_then(|elements| elements.checked_mul(dtype.bits()))
        .filter(|bits| i64::try_from(*bits).is_ok());
    let Some(span) = span else {
        return Err(SafeTensorsError::ShapeOverflow {
            tensor: clip(&name),
            shape: shown(shape),
        });
    };
    let bits = if shape.contains(&0) { 0 } else { span };
    if !bits.is_multiple_of(8) {
        return Err(SafeTensorsError::PartialByte {
            tensor: clip(&name),
            dtype,
            shape: shown(shape),
        });
    }
    if bits / 8 != end - begin {
        return Err(SafeTensorsError::WrongLength {
            tensor: clip(&name),
            dtype,
            shape: shown(shape),
            need: bits / 8,
            found: end - begin,
        });
    }
    Ok(SafeTensorInfo {
        name,
        dtype,
        // The product of the dimensions fits 63 bits, so each dimension does.
        shape: shape.iter().map(|dim| *dim as usize).collect(),
        range: data_begin + begin as usize..data_begin + end as usize,
    })
}

/// The first dimensions of a shape for an error message; a malicious header can have any number.
fn shown(mut shape: Vec<u64>) -> Vec<u64> {
    shape.truncate(16);
    shape
}

/// Checks that the tensors cover the data section from the first to the last byte without holes.
fn check_cover(
    tensors: &[SafeTensorInfo],
    data_begin: usize,
    data_len: u64,
) -> Result<(), SafeTensorsError> {
    let mut by_begin: Vec<&SafeTensorInfo> = tensors.iter().collect();
    by_begin.sort_by_key(|tensor| (tensor.range.start, tensor.range.end));
    let mut previous: Option<&SafeTensorInfo> = None;
    let relative = |at: usize| (at - data_begin) as u64;
    for tensor in by_begin {
        let covered = previous.map_or(data_begin, |tensor| tensor.range.end);
        match (tensor.range.start.cmp(&covered), previous) {
            (std::cmp::Ordering::Less, Some(first)) => {
                return Err(SafeTensorsError::Overlap {
                    first: clip(&first.name),
                    first_end: relative(covered),
                    second: clip(&tensor.name),
                    second_begin: relative(tensor.range.start),
                });
            }
            (std::cmp::Ordering::Greater, _) => {
                return Err(SafeTensorsError::Hole {
                    begin: relative(covered),
                    end: relative(tensor.range.start),
                    before: format!("tensor `{}`", clip(&tensor.name)),
                });
            }
            (std::cmp::Ordering::Equal | std::cmp::Ordering::Less, _) => previous = Some(tensor),
        }
    }
    let covered = relative(previous.map_or(data_begin, |tensor| tensor.range.end));
    if covered == data_len {
        Ok(())
    } else {
        Err(SafeTensorsError::Hole {
            begin: covered,
            end: data_len,
            before: "the end of the file".to_owned(),
        })
    }
}
