//! The metadata table: ordered, unique keys with values decoded on demand.

use std::ops::Range;

use super::cursor::GgufCursor;
use super::error::GgufError;
use super::value::{self, GgufArray, GgufValue, GgufValueType};
use crate::foreign::clip;
use crate::mmap::MappedFile;

/// Minimum size of an entry: a length, one character, a type and one byte of value.
pub(super) const MIN_ENTRY_BYTES: u64 = 8 + 1 + 4 + 1;

#[derive(Clone, Debug)]
struct GgufEntry {
    key: Range<usize>,
    value_type: GgufValueType,
    value_at: usize,
}

/// The metadata of a GGUF file, in file order.
///
/// The typed getters accept every integer type if the value fits, because writers differ in the
/// types they use. Float getters accept both float types. Any other type is an error with the key,
/// the expected and the found type.
///
/// ```
/// # let mut bytes = b"GGUF".to_vec();
/// # bytes.extend(3u32.to_le_bytes());
/// # bytes.extend(0u64.to_le_bytes()); // tensors
/// # bytes.extend(1u64.to_le_bytes()); // metadata keys
/// # bytes.extend(17u64.to_le_bytes());
/// # bytes.extend(b"llama.block_count");
/// # bytes.extend(4u32.to_le_bytes()); // the value type: u32
/// # bytes.extend(22u32.to_le_bytes());
/// use tercet_files::gguf::{Gguf, GgufMetadata};
/// let gguf = Gguf::parse(tercet_files::MappedFile::from_vec(bytes))?;
/// let metadata: &GgufMetadata = gguf.metadata();
/// assert_eq!(metadata.get_u64("llama.block_count")?, 22);
/// assert_eq!(metadata.opt_str("general.name")?, None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct GgufMetadata {
    entries: Vec<GgufEntry>,
    /// Indices into `entries`, sorted by key.
    by_key: Vec<u32>,
    file: MappedFile,
}

/// Declares the getters of one integer type: `get_u32` (required) and `opt_u32` (optional).
macro_rules! integer_getters {
    ($($get:ident $opt:ident $ty:ty;)*) => {$(
        #[doc = concat!("The value of `key` as `", stringify!($ty), "`.")]
        ///
        /// # Errors
        /// [`GgufError::MissingKey`], [`GgufError::WrongType`], [`GgufError::OutOfRange`].
        pub fn $get(&self, key: &str) -> Result<$ty, GgufError> {
            required(key, self.$opt(key)?)
        }

        #[doc = concat!("The value of `key` as `", stringify!($ty), "`, or `None` if the key is missing.")]
        ///
        /// # Errors
        /// [`GgufError::WrongType`], [`GgufError::OutOfRange`].
        pub fn $opt(&self, key: &str) -> Result<Option<$ty>, GgufError> {
            const EXPECTED: &str = stringify!($ty);
            self.opt(key, EXPECTED, GgufValue::as_integer)?
                .map(|found| {
                    <$ty>::try_from(found).map_err(|_| GgufError::OutOfRange {
                        key: clip(key),
                        expected: EXPECTED,
                        found: found.to_string(),
                    })
                })
                .transpose()
        }
    )*};
}

impl GgufMetadata {
    pub(super) fn read(
        cursor: &mut GgufCursor<'_>,
        count: u64,
        file: MappedFile,
    ) -> Result<Self, GgufError> {
        // The caller has checked `count` against the remaining bytes and the limit on entries.
        let mut entries = Vec::with_capacity(count as usize);
        for index in 0..count {
            entries.push(read_entry(cursor, index)?);
        }
        let mut by_key: Vec<u32> = (0..count as u32).collect();
        by_key.sort_by_key(|index| &file[entries[*index as usize].key.clone()]);
        for pair in by_key.windows(2) {
            let (a, b) = (&entries[pair[0] as usize], &entries[pair[1] as usize]);
            if file[a.key.clone()] == file[b.key.clone()] {
                return Err(GgufError::DuplicateKey {
                    key: clip(&String::from_utf8_lossy(&file[a.key.clone()])),
                    first: a.key.start as u64,
                    second: b.key.start as u64,
                });
            }
        }
        Ok(Self {
            entries,
            by_key,
            file,
        })
    }

    /// Number of keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no keys.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Keys and values, in file order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, GgufValue<'_>)> {
        self.entries
            .iter()
            .map(|entry| (self.key(entry), self.value(entry)))
    }

    /// The value of `key`, of any type.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<GgufValue<'_>> {
        let at = self
            .by_key
            .binary_search_by_key(&key.as_bytes(), |index| {
                &self.file[self.entries[*index as usize].key.clone()]
            })
            .ok()?;
        Some(self.value(&self.entries[self.by_key[at] as usize]))
    }

    integer_getters! {
        get_u32 opt_u32 u32;
        get_u64 opt_u64 u64;
        get_i64 opt_i64 i64;
    }

    /// The token id of `key`, or `None` if the key is missing. An id outside of
    /// `tokenizer.ggml.tokens` counts as missing: tools write -1 or its `u32` for a token that a
    /// vocabulary does not have.
    ///
    /// # Errors
    /// [`GgufError::WrongType`].
    pub fn opt_token(&self, key: &str) -> Result<Option<u32>, GgufError> {
        let Some(found) = self.opt(key, "u32", GgufValue::as_integer)? else {
            return Ok(None);
        };
        let tokens = self.opt_array("tokenizer.ggml.tokens", GgufValueType::String)?;
        let len = tokens.map_or(u64::from(u32::MAX), |tokens| tokens.len());
        let id = u32::try_from(found).ok();
        Ok(id.filter(|id| u64::from(*id) < len))
    }

    /// The value of `key` as `f32` (an `f64` is rounded).
    ///
    /// # Errors
    /// [`GgufError::MissingKey`], [`GgufError::WrongType`].
    pub fn get_f32(&self, key: &str) -> Result<f32, GgufError> {
        required(key, self.opt_f32(key)?)
    }

    /// The value of `key` as `f32`, or `None` if the key is missing.
    ///
    /// # Errors
    /// [`GgufError::WrongType`].
    pub fn opt_f32(&self, key: &str) -> Result<Option<f32>, GgufError> {
        let value = self.opt(key, "f32", GgufValue::as_float)?;
        Ok(value.map(|value| value as f32))
    }

    /// The value of `key` as a boolean.
    ///
    /// # Errors
    /// [`GgufError::MissingKey`], [`GgufError::WrongType`].
    pub fn get_bool(&self, key: &str) -> Result<bool, GgufError> {
        required(key, self.opt_bool(key)?)
    }

    /// The value of `key` as a boolean, or `None` if the key is missing.
    ///
    /// # Errors
    /// [`GgufError::WrongType`].
    pub fn opt_bool(&self, key: &str) -> Result<Option<bool>, GgufError> {
        self.opt(key, "bool", |value| {
            if let GgufValue::Bool(value) = value {
                Some(value)
            } else {
                None
            }
        })
    }

    /// The value of `key` as text.
    ///
    /// # Errors
    /// [`GgufError::MissingKey`], [`GgufError::WrongType`].
    pub fn get_str(&self, key: &str) -> Result<&str, GgufError> {
        required(key, self.opt_str(key)?)
    }

    /// The value of `key` as text, or `None` if the key is missing.
    ///
    /// # Errors
    /// [`GgufError::WrongType`].
    pub fn opt_str(&self, key: &str) -> Result<Option<&str>, GgufError> {
        self.opt(key, "string", GgufValue::as_str)
    }

    /// The value of `key` as an array of `element_type`.
    ///
    /// # Errors
    /// [`GgufError::MissingKey`], [`GgufError::WrongType`].
    pub fn get_array(
        &self,
        key: &str,
        element_type: GgufValueType,
    ) -> Result<GgufArray<'_>, GgufError> {
        required(key, self.opt_array(key, element_type)?)
    }

    /// The value of `key` as an array of `element_type`, or `None` if the key is missing.
    ///
    /// # Errors
    /// [`GgufError::WrongType`].
    pub fn opt_array(
        &self,
        key: &str,
        element_type: GgufValueType,
    ) -> Result<Option<GgufArray<'_>>, GgufError> {
        let array = self.opt(key, "array", |value| {
            if let GgufValue::Array(array) = value {
                Some(array)
            } else {
                None
            }
        })?;
        match array {
            Some(array) if array.element_type() != element_type => Err(GgufError::WrongType {
                key: clip(key),
                expected: element_type.array_name(),
                found: array.element_type().array_name().to_owned(),
            }),
            array => Ok(array),
        }
    }

    fn opt<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        convert: impl FnOnce(GgufValue<'a>) -> Option<T>,
    ) -> Result<Option<T>, GgufError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        match convert(value) {
            Some(converted) => Ok(Some(converted)),
            None => Err(GgufError::wrong_type(key, expected, value.value_type())),
        }
    }

    fn key(&self, entry: &GgufEntry) -> &str {
        std::str::from_utf8(&self.file[entry.key.clone()])
            .expect("invariant: keys are validated when the file is opened")
    }

    fn value(&self, entry: &GgufEntry) -> GgufValue<'_> {
        let mut cursor = GgufCursor::new(&self.file, entry.value_at);
        value::decode(&mut cursor, entry.value_type)
            .expect("invariant: values are validated when the file is opened")
    }
}

fn required<T>(key: &str, value: Option<T>) -> Result<T, GgufError> {
    value.ok_or_else(|| GgufError::MissingKey { key: clip(key) })
}

fn read_entry(cursor: &mut GgufCursor<'_>, index: u64) -> Result<GgufEntry, GgufError> {
    let key = cursor.string(|| format!("metadata key {index}"))?;
    let end = cursor.pos();
    if key.is_empty() {
        return Err(GgufError::EmptyName {
            what: "a metadata key",
            offset: end as u64,
        });
    }
    let value_type = value::read_type(cursor, key)?;
    let value_at = cursor.pos();
    value::skip(cursor, value_type, key, 0)?;
    Ok(GgufEntry {
        key: end - key.len()..end,
        value_type,
        value_at,
    })
}
