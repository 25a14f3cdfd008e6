//! Reading a `tokenizer.model`: the message `ModelProto` of `sentencepiece_model.proto`.
//!
//! A reader of protocol buffers of our own: three messages are needed, every length is checked
//! against what is there, and memory is bounded by the file's size.

use super::super::TokenizerError;
use super::super::charsmap::CharsMap;
use super::{Algorithm, Description, Kind, Normalizer, Piece, UNKNOWN_SURFACE, byte_of};
use crate::gguf::clip;

/// Reads a `tokenizer.model`.
///
/// # Errors
/// [`TokenizerError::BadModel`] with the place, [`TokenizerError::BadCharsMap`],
/// [`TokenizerError::UnsupportedPieces`].
pub(in crate::tokenizer) fn read(bytes: &[u8]) -> Result<Description, TokenizerError> {
    let mut proto = Proto::default();
    let mut message = Message { bytes, offset: 0 };
    while let Some(field) = message.next()? {
        match field.number {
            1 => proto.pieces.push(read_piece(field, proto.pieces.len())?),
            2 => read_trainer(field, &mut proto)?,
            3 => read_normalizer(field, &mut proto.normalizer)?,
            5 => read_normalizer(field, &mut proto.denormalizer)?,
            _ => {}
        }
    }
    if proto.pieces.is_empty() {
        return Err(message.bad("there are no pieces in it"));
    }
    if proto.denormalizer.charsmap.is_some() {
        return Err(TokenizerError::UnsupportedPieces {
            what: "a denormalizer",
        });
    }
    let algorithm = match proto.model_type {
        1 => Algorithm::Unigram,
        2 => Algorithm::Bpe,
        4 => Algorithm::Characters,
        3 => {
            return Err(TokenizerError::UnsupportedPieces {
                what: "a vocabulary of whole words",
            });
        }
        _ => return Err(message.bad("its model type is none of 1 to 4")),
    };
    let Spec {
        charsmap,
        add_dummy_prefix,
        remove_extra_whitespaces,
        escape_whitespaces,
    } = proto.normalizer;
    Ok(Description {
        pieces: proto.pieces,
        algorithm,
        normalizer: Normalizer {
            charsmap,
            add_dummy_prefix,
            remove_extra_whitespaces,
            escape_whitespaces,
            whitespace_as_suffix: proto.whitespace_as_suffix,
        },
        unknown: None,
        unknown_surface: proto.unknown_surface,
    })
}

/// What of a `ModelProto` is used, with its defaults.
struct Proto {
    pieces: Vec<Piece>,
    model_type: u64,
    whitespace_as_suffix: bool,
    unknown_surface: String,
    normalizer: Spec,
    denormalizer: Spec,
}

impl Default for Proto {
    fn default() -> Self {
        Self {
            pieces: Vec::new(),
            model_type: 1,
            whitespace_as_suffix: false,
            unknown_surface: UNKNOWN_SURFACE.to_owned(),
            normalizer: Spec::default(),
            denormalizer: Spec::default(),
        }
    }
}

/// A `NormalizerSpec`.
struct Spec {
    charsmap: Option<CharsMap>,
    add_dummy_prefix: bool,
    remove_extra_whitespaces: bool,
    escape_whitespaces: bool,
}

impl Default for Spec {
    fn default() -> Self {
        Self {
            charsmap: None,
            add_dummy_prefix: true,
            remove_extra_whitespaces: true,
            escape_whitespaces: true,
        }
    }
}

fn read_piece(field: Field<'_>, id: usize) -> Result<Piece, TokenizerError> {
    let mut piece = Piece {
        text: String::new(),
        score: 0.0,
        kind: Kind::Normal,
    };
    let mut kind = 1;
    let mut message = field.message()?;
    while let Some(field) = message.next()? {
        match field.number {
            1 => piece.text = field.text()?.to_owned(),
            2 => piece.score = field.float()?,
            3 => kind = field.integer()?,
            _ => {}
        }
    }
    piece.kind = match kind {
        1 => Kind::Normal,
        2 => Kind::Unknown,
        3 => Kind::Control,
        4 => Kind::UserDefined,
        5 => Kind::Unused,
        6 => Kind::Byte(byte_of(&piece.text).ok_or_else(|| {
            let text = clip(&piece.text);
            message.bad(format!("the byte piece {id} is spelled `{text}`"))
        })?),
        _ => return Err(message.bad(format!("piece {id} has type {kind}, 1 to 6 exist"))),
    };
    Ok(piece)
}

fn read_trainer(field: Field<'_>, proto: &mut Proto) -> Result<(), TokenizerError> {
    let mut message = field.message()?;
    while let Some(field) = message.next()? {
        match field.number {
            3 => proto.model_type = field.integer()?,
            24 => proto.whitespace_as_suffix = field.integer()? != 0,
            44 => proto.unknown_surface = field.text()?.to_owned(),
            _ => {}
        }
    }
    Ok(())
}

fn read_normalizer(field: Field<'_>, spec: &mut Spec) -> Result<(), TokenizerError> {
    let mut message = field.message()?;
    while let Some(field) = message.next()? {
        match field.number {
            2 => {
                let bytes = field.bytes()?;
                let map = (!bytes.is_empty()).then(|| CharsMap::parse(bytes));
                spec.charsmap = map
                    .transpose()
                    .map_err(|reason| TokenizerError::BadCharsMap { reason })?;
            }
            3 => spec.add_dummy_prefix = field.integer()? != 0,
            4 => spec.remove_extra_whitespaces = field.integer()? != 0,
            5 => spec.escape_whitespaces = field.integer()? != 0,
            _ => {}
        }
    }
    Ok(())
}

/// The bytes of a message that are still to be read, and where they begin in the file.
struct Message<'a> {
    bytes: &'a [u8],
    offset: usize,
}

struct Field<'a> {
    number: u64,
    value: Value<'a>,
    offset: usize,
}

enum Value<'a> {
    Integer(u64),
    /// Of eight bytes: nothing that is read here.
    Long,
    Bytes(&'a [u8]),
    Float(f32),
}

fn bad(offset: usize, reason: impl Into<String>) -> TokenizerError {
    TokenizerError::BadModel {
        offset: offset as u64,
        reason: reason.into(),
    }
}

impl<'a> Message<'a> {
    fn bad(&self, reason: impl Into<String>) -> TokenizerError {
        bad(self.offset, reason)
    }

    fn take(&mut self, len: u64) -> Result<&'a [u8], TokenizerError> {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let Some((taken, rest)) = self.bytes.split_at_checked(len) else {
            let left = self.bytes.len();
            return Err(self.bad(format!("a field of {len} bytes, {left} are left")));
        };
        self.bytes = rest;
        self.offset += len;
        Ok(taken)
    }

    fn varint(&mut self) -> Result<u64, TokenizerError> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            value |= u64::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(self.bad("a number of more than 64 bits"))
    }

    fn next(&mut self) -> Result<Option<Field<'a>>, TokenizerError> {
        if self.bytes.is_empty() {
            return Ok(None);
        }
        let key = self.varint()?;
        let value = match key & 7 {
            0 => Value::Integer(self.varint()?),
            1 => {
                self.take(8)?;
                Value::Long
            }
            2 => {
                let len = self.varint()?;
                Value::Bytes(self.take(len)?)
            }
            5 => {
                let bytes = self.take(4)?;
                Value::Float(f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
            }
            other => return Err(self.bad(format!("a field of the unknown wire type {other}"))),
        };
        Ok(Some(Field {
            number: key >> 3,
            value,
            offset: self.offset,
        }))
    }
}

impl<'a> Field<'a> {
    fn wrong(&self, expected: &str) -> TokenizerError {
        bad(
            self.offset,
            format!("field {} is not {expected}", self.number),
        )
    }

    fn bytes(&self) -> Result<&'a [u8], TokenizerError> {
        match self.value {
            Value::Bytes(bytes) => Ok(bytes),
            Value::Integer(_) | Value::Long | Value::Float(_) => Err(self.wrong("bytes")),
        }
    }

    fn message(&self) -> Result<Message<'a>, TokenizerError> {
        let bytes = self.bytes()?;
        Ok(Message {
            bytes,
            offset: self.offset - bytes.len(),
        })
    }

    fn text(&self) -> Result<&'a str, TokenizerError> {
        std::str::from_utf8(self.bytes()?).map_err(|_| self.wrong("UTF-8"))
    }

    fn integer(&self) -> Result<u64, TokenizerError> {
        match self.value {
            Value::Integer(value) => Ok(value),
            Value::Bytes(_) | Value::Long | Value::Float(_) => Err(self.wrong("an integer")),
        }
    }

    fn float(&self) -> Result<f32, TokenizerError> {
        match self.value {
            Value::Float(value) => Ok(value),
            Value::Integer(_) | Value::Bytes(_) | Value::Long => Err(self.wrong("a float")),
        }
    }
}
