//! Metadata values, decoded on demand from the mapped bytes.
//!
//! A value borrows the file: an array of a million tokens needs no memory until it is iterated.
//! Invariant: [`skip`] validates every byte range when the file is opened, so [`decode`] cannot
//! fail on it.

use super::cursor::GgufCursor;
use super::error::GgufError;
use crate::foreign::clip;

/// Maximum nesting depth of arrays; real files use one level.
pub(super) const MAX_ARRAY_DEPTH: usize = 4;

/// Declares [`GgufValueType`] with the ids and names of the format.
macro_rules! value_types {
    ($($(#[$doc:meta])* $name:ident = $id:literal, $text:literal, $size:expr;)*) => {
        /// The type of a metadata value.
        ///
        /// ```
        /// use tercet_files::gguf::GgufValueType;
        /// assert_eq!(GgufValueType::from_id(8), Some(GgufValueType::String));
        /// assert_eq!(GgufValueType::U32.name(), "u32");
        /// ```
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum GgufValueType { $($(#[$doc])* $name,)* }

        impl GgufValueType {
            /// Every type, in id order.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The id of this type in files.
            #[must_use]
            pub const fn id(self) -> u32 { match self { $(Self::$name => $id,)* } }

            /// The name of the type.
            #[must_use]
            pub const fn name(self) -> &'static str { match self { $(Self::$name => $text,)* } }

            /// The name of an array of this type, for error messages.
            pub(super) const fn array_name(self) -> &'static str {
                match self { $(Self::$name => concat!("an array of ", $text),)* }
            }

            /// Size of one value in bytes; `None` for types of variable size.
            const fn fixed_bytes(self) -> Option<u64> { match self { $(Self::$name => $size,)* } }
        }
    };
}

value_types! {
    /// Unsigned 8-bit integer.
    U8 = 0, "u8", Some(1);
    /// Signed 8-bit integer.
    I8 = 1, "i8", Some(1);
    /// Unsigned 16-bit integer.
    U16 = 2, "u16", Some(2);
    /// Signed 16-bit integer.
    I16 = 3, "i16", Some(2);
    /// Unsigned 32-bit integer.
    U32 = 4, "u32", Some(4);
    /// Signed 32-bit integer.
    I32 = 5, "i32", Some(4);
    /// IEEE 754 binary32.
    F32 = 6, "f32", Some(4);
    /// One byte, 0 or 1.
    Bool = 7, "bool", Some(1);
    /// UTF-8 text.
    String = 8, "string", None;
    /// A list of values of one type.
    Array = 9, "array", None;
    /// Unsigned 64-bit integer.
    U64 = 10, "u64", Some(8);
    /// Signed 64-bit integer.
    I64 = 11, "i64", Some(8);
    /// IEEE 754 binary64.
    F64 = 12, "f64", Some(8);
}

impl GgufValueType {
    /// The type with this id, if the format has it.
    #[must_use]
    pub fn from_id(id: u32) -> Option<Self> {
        Self::ALL.iter().copied().find(|ty| ty.id() == id)
    }
}

/// One metadata value, borrowed from the file.
///
/// ```
/// use tercet_files::gguf::{GgufValue, GgufValueType};
/// let value = GgufValue::U32(22);
/// assert_eq!((value.value_type(), value.as_integer()), (GgufValueType::U32, Some(22)));
/// assert_eq!(GgufValue::String("llama").as_str(), Some("llama"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs, reason = "each variant is the type of the same name")]
pub enum GgufValue<'a> {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(&'a str),
    Array(GgufArray<'a>),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl<'a> GgufValue<'a> {
    /// The type of this value.
    #[must_use]
    pub const fn value_type(self) -> GgufValueType {
        match self {
            Self::U8(_) => GgufValueType::U8,
            Self::I8(_) => GgufValueType::I8,
            Self::U16(_) => GgufValueType::U16,
            Self::I16(_) => GgufValueType::I16,
            Self::U32(_) => GgufValueType::U32,
            Self::I32(_) => GgufValueType::I32,
            Self::F32(_) => GgufValueType::F32,
            Self::Bool(_) => GgufValueType::Bool,
            Self::String(_) => GgufValueType::String,
            Self::Array(_) => GgufValueType::Array,
            Self::U64(_) => GgufValueType::U64,
            Self::I64(_) => GgufValueType::I64,
            Self::F64(_) => GgufValueType::F64,
        }
    }

    /// The value of any integer type, `None` for the other types.
    #[must_use]
    pub const fn as_integer(self) -> Option<i128> {
        match self {
            Self::U8(v) => Some(v as i128),
            Self::I8(v) => Some(v as i128),
            Self::U16(v) => Some(v as i128),
            Self::I16(v) => Some(v as i128),
            Self::U32(v) => Some(v as i128),
            Self::I32(v) => Some(v as i128),
            Self::U64(v) => Some(v as i128),
            Self::I64(v) => Some(v as i128),
            Self::F32(_) | Self::F64(_) | Self::Bool(_) | Self::String(_) | Self::Array(_) => None,
        }
    }

    /// The value of either float type, `None` for the other types.
    #[must_use]
    pub const fn as_float(self) -> Option<f64> {
        match self {
            Self::F32(v) => Some(v as f64),
            Self::F64(v) => Some(v),
            Self::U8(_)
            | Self::I8(_)
            | Self::U16(_)
            | Self::I16(_)
            | Self::U32(_)
            | Self::I32(_)
            | Self::U64(_)
            | Self::I64(_)
            | Self::Bool(_)
            | Self::String(_)
            | Self::Array(_) => None,
        }
    }

    /// The text of a string, `None` for the other types.
    #[must_use]
    pub const fn as_str(self) -> Option<&'a str> {
        match self {
            Self::String(text) => Some(text),
            Self::U8(_)
            | Self::I8(_)
            | Self::U16(_)
            | Self::I16(_)
            | Self::U32(_)
            | Self::I32(_)
            | Self::U64(_)
            | Self::I64(_)
            | Self::Bool(_)
            | Self::F32(_)
            | Self::F64(_)
            | Self::Array(_) => None,
        }
    }
}

impl std::fmt::Display for GgufValue<'_> {
    /// Formats one line; arrays as their first elements and their length.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::U8(v) => v.fmt(f),
            Self::I8(v) => v.fmt(f),
            Self::U16(v) => v.fmt(f),
            Self::I16(v) => v.fmt(f),
            Self::U32(v) => v.fmt(f),
            Self::I32(v) => v.fmt(f),
            Self::U64(v) => v.fmt(f),
            Self::I64(v) => v.fmt(f),
            Self::F32(v) => v.fmt(f),
            Self::F64(v) => v.fmt(f),
            Self::Bool(v) => v.fmt(f),
            Self::String(text) => write!(f, "{:?}", clip(text)),
            Self::Array(array) => {
                const SHOWN: usize = 6;
                f.write_str("[")?;
                for (index, value) in array.iter().take(SHOWN).enumerate() {
                    let comma = if index == 0 { "" } else { ", " };
                    write!(f, "{comma}{value}")?;
                }
                let more = if array.len() > SHOWN as u64 {
                    ", ..."
                } else {
                    ""
                };
                write!(
                    f,
                    "{more}] ({} x {})",
                    array.len(),
                    array.element_type.name()
                )
            }
        }
    }
}

/// An array of values of one type, borrowed from the file and decoded during iteration.
///
/// ```
/// # let mut bytes = b"GGUF".to_vec();
/// # bytes.extend(3u32.to_le_bytes());
/// # bytes.extend(0u64.to_le_bytes()); // tensors
/// # bytes.extend(1u64.to_le_bytes()); // metadata keys
/// # bytes.extend(5u64.to_le_bytes());
/// # bytes.extend(b"sizes");
/// # bytes.extend(9u32.to_le_bytes()); // the value type: array
/// # bytes.extend(4u32.to_le_bytes()); // the element type: u32
/// # bytes.extend(2u64.to_le_bytes());
/// # bytes.extend(7u32.to_le_bytes());
/// # bytes.extend(8u32.to_le_bytes());
/// use tercet_files::gguf::{Gguf, GgufArray, GgufValue, GgufValueType};
/// let gguf = Gguf::parse(tercet_files::MappedFile::from_vec(bytes))?;
/// let sizes: GgufArray<'_> = gguf.metadata().get_array("sizes", GgufValueType::U32)?;
/// assert_eq!(sizes.len(), 2);
/// assert!(sizes.iter().eq([GgufValue::U32(7), GgufValue::U32(8)]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GgufArray<'a> {
    element_type: GgufValueType,
    len: u64,
    bytes: &'a [u8],
}

impl<'a> GgufArray<'a> {
    /// The type of the elements.
    #[must_use]
    pub const fn element_type(&self) -> GgufValueType {
        self.element_type
    }

    /// Number of elements.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// The encoded elements of the file.
    pub(crate) const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Whether there are no elements.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// An iterator over the elements, in order.
    #[must_use]
    pub fn iter(&self) -> GgufArrayIter<'a> {
        GgufArrayIter {
            element_type: self.element_type,
            remaining: self.len,
            cursor: GgufCursor::new(self.bytes, 0),
        }
    }
}

impl<'a> IntoIterator for GgufArray<'a> {
    type Item = GgufValue<'a>;
    type IntoIter = GgufArrayIter<'a>;

    fn into_iter(self) -> GgufArrayIter<'a> {
        self.iter()
    }
}

/// The iterator over the elements of a [`GgufArray`].
///
/// ```
/// # let mut bytes = b"GGUF".to_vec();
/// # bytes.extend(3u32.to_le_bytes());
/// # bytes.extend(0u64.to_le_bytes()); // tensors
/// # bytes.extend(1u64.to_le_bytes()); // metadata keys
/// # bytes.extend(5u64.to_le_bytes());
/// # bytes.extend(b"sizes");
/// # bytes.extend(9u32.to_le_bytes()); // the value type: array
/// # bytes.extend(4u32.to_le_bytes()); // the element type: u32
/// # bytes.extend(2u64.to_le_bytes());
/// # bytes.extend(7u32.to_le_bytes());
/// # bytes.extend(8u32.to_le_bytes());
/// use tercet_files::gguf::{Gguf, GgufArrayIter, GgufValueType};
/// let gguf = Gguf::parse(tercet_files::MappedFile::from_vec(bytes))?;
/// let sizes: GgufArrayIter<'_> = gguf.metadata().get_array("sizes", GgufValueType::U32)?.iter();
/// let sizes: Vec<i128> = sizes.filter_map(|size| size.as_integer()).collect();
/// assert_eq!(sizes, [7, 8]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct GgufArrayIter<'a> {
    element_type: GgufValueType,
    remaining: u64,
    cursor: GgufCursor<'a>,
}

impl<'a> Iterator for GgufArrayIter<'a> {
    type Item = GgufValue<'a>;

    fn next(&mut self) -> Option<GgufValue<'a>> {
        if self.remaining == 0 {
            return None;
        }
        self.remaining -= 1;
        Some(
            decode(&mut self.cursor, self.element_type)
                .expect("invariant: arrays are validated when the file is opened"),
        )
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        // The lower bound is 0, because callers may reserve memory by it; the upper bound is exact.
        (0, usize::try_from(self.remaining).ok())
    }
}

/// Validates and skips one value of type `ty` without allocation.
pub(super) fn skip(
    cursor: &mut GgufCursor<'_>,
    ty: GgufValueType,
    key: &str,
    depth: usize,
) -> Result<(), GgufError> {
    let what = || format!("the value of `{}`", clip(key));
    match ty {
        GgufValueType::String => cursor.string(what).map(drop),
        GgufValueType::Bool => skip_bools(cursor, 1, key),
        GgufValueType::Array => {
            if depth >= MAX_ARRAY_DEPTH {
                return Err(GgufError::ArrayTooDeep {
                    key: clip(key),
                    offset: cursor.offset(),
                    max: MAX_ARRAY_DEPTH,
                });
            }
            let element_type = read_type(cursor, key)?;
            // A string takes at least its 8-byte length, a nested array more than that.
            let min_bytes = element_type.fixed_bytes().unwrap_or(8);
            let count = cursor.count(min_bytes, u64::MAX, || {
                format!("the array length of `{}`", clip(key))
            })?;
            match element_type.fixed_bytes() {
                Some(_) if element_type == GgufValueType::Bool => skip_bools(cursor, count, key),
                // `count` is bounded by the remaining bytes, so the product fits.
                Some(bytes) => cursor.take(count * bytes, what).map(drop),
                None => (0..count).try_for_each(|_| skip(cursor, element_type, key, depth + 1)),
            }
        }
        GgufValueType::U8
        | GgufValueType::I8
        | GgufValueType::U16
        | GgufValueType::I16
        | GgufValueType::U32
        | GgufValueType::I32
        | GgufValueType::F32
        | GgufValueType::U64
        | GgufValueType::I64
        | GgufValueType::F64 => cursor.take(ty.fixed_bytes().unwrap_or(0), what).map(drop),
    }
}

fn skip_bools(cursor: &mut GgufCursor<'_>, count: u64, key: &str) -> Result<(), GgufError> {
    let begin = cursor.offset();
    let bytes = cursor.take(count, || format!("the value of `{}`", clip(key)))?;
    match bytes.iter().position(|byte| *byte > 1) {
        Some(index) => Err(GgufError::InvalidBool {
            key: clip(key),
            offset: begin + index as u64,
            found: bytes[index],
        }),
        None => Ok(()),
    }
}

/// Reads a value type id.
pub(super) fn read_type(
    cursor: &mut GgufCursor<'_>,
    key: &str,
) -> Result<GgufValueType, GgufError> {
    let offset = cursor.offset();
    let found = cursor.u32(|| format!("the value type of `{}`", clip(key)))?;
    GgufValueType::from_id(found).ok_or_else(|| GgufError::UnknownValueType {
        key: clip(key),
        offset,
        found,
    })
}

/// Decodes one value that [`skip`] has validated.
pub(super) fn decode<'a>(
    cursor: &mut GgufCursor<'a>,
    ty: GgufValueType,
) -> Result<GgufValue<'a>, GgufError> {
    fn fixed<const N: usize>(cursor: &mut GgufCursor<'_>) -> Result<[u8; N], GgufError> {
        let bytes = cursor.take(N as u64, || "a metadata value".to_owned())?;
        let mut array = [0; N];
        array.copy_from_slice(bytes);
        Ok(array)
    }
    Ok(match ty {
        GgufValueType::U8 => GgufValue::U8(u8::from_le_bytes(fixed(cursor)?)),
        GgufValueType::I8 => GgufValue::I8(i8::from_le_bytes(fixed(cursor)?)),
        GgufValueType::U16 => GgufValue::U16(u16::from_le_bytes(fixed(cursor)?)),
        GgufValueType::I16 => GgufValue::I16(i16::from_le_bytes(fixed(cursor)?)),
        GgufValueType::U32 => GgufValue::U32(u32::from_le_bytes(fixed(cursor)?)),
        GgufValueType::I32 => GgufValue::I32(i32::from_le_bytes(fixed(cursor)?)),
        GgufValueType::F32 => GgufValue::F32(f32::from_le_bytes(fixed(cursor)?)),
        GgufValueType::U64 => GgufValue::U64(u64::from_le_bytes(fixed(cursor)?)),
        GgufValueType::I64 => GgufValue::I64(i64::from_le_bytes(fixed(cursor)?)),
        GgufValueType::F64 => GgufValue::F64(f64::from_le_bytes(fixed(cursor)?)),
        GgufValueType::Bool => GgufValue::Bool(fixed::<1>(cursor)?[0] != 0),
        GgufValueType::String => {
            GgufValue::String(cursor.string(|| "a metadata string".to_owned())?)
        }
        GgufValueType::Array => {
            let element_type = read_type(cursor, "a metadata array")?;
            let len = cursor.u64(|| "an array length".to_owned())?;
            let bytes = match element_type.fixed_bytes() {
                Some(bytes) => cursor.take(len * bytes, || "a metadata array".to_owned())?,
                // The end of the array is found only by walking its elements, whose number the file
                // size bounds.
                None => {
                    let rest = cursor.remaining();
                    (0..len).try_for_each(|_| skip(cursor, element_type, "", 0))?;
                    &rest[..rest.len() - cursor.remaining().len()]
                }
            };
            GgufValue::Array(GgufArray {
                element_type,
                len,
                bytes,
            })
        }
    })
}
