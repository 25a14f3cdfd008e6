//! The header of a `.npy` file: magic bytes, version, and a Python dictionary in text form.

use std::io::{self, Read};

use super::{MAX_RANK, NpyDtype, NpyFormatError};

/// Maximum header length in bytes. NumPy reads at most 10,000 bytes by default.
pub(super) const MAX_LEN_BYTES: u32 = 1 << 16;

const MAGIC: [u8; 6] = *b"\x93NUMPY";

/// NumPy's alignment of the data.
pub const ALIGN_BYTES: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NpyByteOrder {
    Little,
    Big,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NpyOrder {
    C,
    Fortran,
}

/// Contents of a header.
#[derive(Debug, PartialEq)]
pub struct NpyHeader {
    pub dtype: NpyDtype,
    pub order: NpyByteOrder,
    pub layout: NpyOrder,
    pub shape: Vec<usize>,
}

/// Reads from the magic bytes to the first byte of data.
pub fn read(reader: &mut impl Read) -> Result<NpyHeader, NpyFormatError> {
    let [m0, m1, m2, m3, m4, m5, major, minor] = array(reader)?;
    if [m0, m1, m2, m3, m4, m5] != MAGIC {
        return Err(NpyFormatError::Magic);
    }
    let len_bytes = match (major, minor) {
        (1, 0) => u32::from(u16::from_le_bytes(array(reader)?)),
        (2 | 3, 0) => u32::from_le_bytes(array(reader)?),
        (major, minor) => return Err(NpyFormatError::Version { major, minor }),
    };
    if len_bytes > MAX_LEN_BYTES {
        return Err(NpyFormatError::HeaderLength { len_bytes });
    }
    let mut text = Vec::new();
    reader
        .by_ref()
        .take(u64::from(len_bytes))
        .read_to_end(&mut text)?;
    if (text.len() as u64) < u64::from(len_bytes) {
        let (expected, found) = (u64::from(len_bytes), text.len() as u64);
        return Err(NpyFormatError::Length { expected, found });
    }
    parse(&text)
}

fn array<const N: usize>(reader: &mut impl Read) -> Result<[u8; N], NpyFormatError> {
    let mut bytes = [0; N];
    match reader.read_exact(&mut bytes) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(NpyFormatError::Magic),
        result => Ok(result.map(|()| bytes)?),
    }
}

/// Formats the header of a version 1.0 file. The shape has at most [`MAX_RANK`] dimensions, so the
/// length fits into that version's 16 bits.
pub fn print(dtype: NpyDtype, shape: &[usize]) -> Vec<u8> {
    let order = if dtype.size_bytes() == 1 { '|' } else { '<' };
    let dims: Vec<_> = shape.iter().map(usize::to_string).collect();
    let comma = if shape.len() == 1 { "," } else { "" };
    let mut text = format!(
        "{{'descr': '{order}{}', 'fortran_order': False, 'shape': ({}{comma}), }}",
        dtype.code(),
        dims.join(", ")
    );
    let prefix_len = MAGIC.len() + 4;
    let len = (prefix_len + text.len() + 1).next_multiple_of(ALIGN_BYTES) - prefix_len;
    text.push_str(&" ".repeat(len - 1 - text.len()));
    text.push('\n');
    let len = u16::try_from(len).expect("invariant: 64 dimensions take less than 64 KiB of text");
    let mut bytes = MAGIC.to_vec();
    bytes.extend([1, 0]);
    bytes.extend(len.to_le_bytes());
    bytes.extend(text.as_bytes());
    bytes
}

/// Parses the dictionary: exactly the keys `descr`, `fortran_order`, `shape`, in any order.
pub fn parse(text: &[u8]) -> Result<NpyHeader, NpyFormatError> {
    let mut cursor = HeaderCursor { text, at: 0 };
    let (mut descr, mut layout, mut shape) = (None, None, None);
    cursor.expect(b'{', "`{`")?;
    while !cursor.consume(b'}') {
        let key_at = cursor.at;
        let key = cursor.string()?;
        cursor.expect(b':', "`:`")?;
        let seen = match key {
            "descr" => descr.replace(cursor.descr()?).is_some(),
            "fortran_order" => layout.replace(cursor.layout()?).is_some(),
            "shape" => shape.replace(cursor.shape()?).is_some(),
            _ => {
                return Err(header_error(
                    key_at,
                    "one of the keys descr, fortran_order, shape",
                ));
            }
        };
        if seen {
            return Err(header_error(key_at, "each key once"));
        }
        if !cursor.consume(b',') {
            cursor.expect(b'}', "`,` or `}`")?;
            break;
        }
    }
    cursor.skip_space();
    if cursor.at != text.len() {
        return Err(header_error(cursor.at, "only spaces after the dictionary"));
    }
    match (descr, layout, shape) {
        (Some((dtype, order)), Some(layout), Some(shape)) => Ok(NpyHeader {
            dtype,
            order,
            layout,
            shape,
        }),
        _ => Err(header_error(
            text.len(),
            "the keys descr, fortran_order and shape",
        )),
    }
}

fn header_error(offset_bytes: usize, expected: &'static str) -> NpyFormatError {
    NpyFormatError::Header {
        offset_bytes,
        expected,
    }
}

struct HeaderCursor<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> HeaderCursor<'a> {
    fn skip_space(&mut self) {
        self.take_while(|byte| byte.is_ascii_whitespace());
    }

    fn take_while(&mut self, wanted: impl Fn(u8) -> bool) -> &'a [u8] {
        let rest = &self.text[self.at..];
        let len = rest
            .iter()
            .position(|&byte| !wanted(byte))
            .unwrap_or(rest.len());
        self.at += len;
        &rest[..len]
    }

    /// Skips spaces, then consumes `byte` if it comes next.
    fn consume(&mut self, byte: u8) -> bool {
        self.skip_space();
        let found = self.text.get(self.at) == Some(&byte);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, byte: u8, shown: &'static str) -> Result<(), NpyFormatError> {
        if self.consume(byte) {
            Ok(())
        } else {
            Err(header_error(self.at, shown))
        }
    }

    /// A string in single or double quotes, without escapes.
    fn string(&mut self) -> Result<&'a str, NpyFormatError> {
        let quote = match (self.consume(b'\''), self.consume(b'"')) {
            (true, false) => b'\'',
            (false, true) => b'"',
            _ => return Err(header_error(self.at, "a string")),
        };
        let start = self.at;
        let bytes = self.take_while(|byte| byte != quote && byte != b'\\');
        self.expect_here(quote, "the end of the string")?;
        std::str::from_utf8(bytes).map_err(|_| header_error(start, "UTF-8"))
    }

    fn expect_here(&mut self, byte: u8, shown: &'static str) -> Result<(), NpyFormatError> {
        if self.text.get(self.at) != Some(&byte) {
            return Err(header_error(self.at, shown));
        }
        self.at += 1;
        Ok(())
    }

    fn descr(&mut self) -> Result<(NpyDtype, NpyByteOrder), NpyFormatError> {
        if self.consume(b'[') {
            return Err(NpyFormatError::Dtype {
                descr: "a structure".into(),
            });
        }
        let descr = self.string()?;
        let unsupported = || NpyFormatError::Dtype {
            descr: descr.into(),
        };
        let (order, code) = descr.split_at_checked(1).ok_or_else(unsupported)?;
        let dtype = NpyDtype::ALL.into_iter().find(|dtype| dtype.code() == code);
        let dtype = dtype.ok_or_else(unsupported)?;
        match order {
            "<" => Ok((dtype, NpyByteOrder::Little)),
            ">" => Ok((dtype, NpyByteOrder::Big)),
            "|" if dtype.size_bytes() == 1 => Ok((dtype, NpyByteOrder::Little)),
            _ => Err(unsupported()),
        }
    }

    fn layout(&mut self) -> Result<NpyOrder, NpyFormatError> {
        self.skip_space();
        let start = self.at;
        match self.take_while(|byte| byte.is_ascii_alphabetic()) {
            b"True" => Ok(NpyOrder::Fortran),
            b"False" => Ok(NpyOrder::C),
            _ => Err(header_error(start, "True or False")),
        }
    }

    /// A tuple of integers. Python 2 writes long integers with a final `L`.
    fn shape(&mut self) -> Result<Vec<usize>, NpyFormatError> {
        self.expect(b'(', "`(`")?;
        let mut shape = Vec::new();
        while !self.consume(b')') {
            let start = self.at;
            let digits = self.take_while(|byte| byte.is_ascii_digit());
            let dim = std::str::from_utf8(digits)
                .ok()
                .and_then(|digits| digits.parse().ok());
            shape.push(dim.ok_or_else(|| header_error(start, "a dimension of at most 64 bits"))?);
            self.consume(b'L');
            if shape.len() > MAX_RANK {
                return Err(NpyFormatError::Rank { rank: shape.len() });
            }
            if !self.consume(b',') {
                self.expect(b')', "`,` or `)`")?;
                break;
            }
        }
        Ok(shape)
    }
}
