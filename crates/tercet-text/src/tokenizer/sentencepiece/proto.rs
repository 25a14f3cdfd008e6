//! Reader of a `tokenizer.model`: the message `ModelProto` of `sentencepiece_model.proto`.
//!
//! This is a minimal protocol buffer reader, because only three messages are needed. Every length
//! is checked against the remaining bytes, and memory is bounded by the file size.

use super::super::TokenizerError;
use super::super::charsmap::CharsMap;
use super::{
    SentencePieceAlgorithm, SentencePieceEntry, SentencePieceKind, SentencePieceNormalizer,
    SentencePieceSpec, UNKNOWN_SURFACE, byte_of,
};
use tercet_files::clip;

/// Reads a `tokenizer.model`.
///
/// # Errors
/// [`TokenizerError::BadModel`] with the byte offset, [`TokenizerError::BadCharsMap`],
/// [`TokenizerError::UnsupportedPieces`].
pub(in crate::tokenizer) fn read(bytes: &[u8]) -> Result<SentencePieceSpec, TokenizerError> {
    let mut proto = SentencePieceProto::default();
    let mut message = ProtoMessage { bytes, offset: 0 };
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
        1 => SentencePieceAlgorithm::Unigram,
        2 => SentencePieceAlgorithm::Bpe,
        4 => SentencePieceAlgorithm::Characters,
        3 => {
            return Err(TokenizerError::UnsupportedPieces {
                what: "a vocabulary of whole words",
            });
        }
        _ => return Err(message.bad("its model type is not 1 to 4")),
    };
    let NormalizerSpecProto {
        charsmap,
        add_dummy_prefix,
        remove_extra_whitespaces,
        escape_whitespaces,
    } = proto.normalizer;
    Ok(SentencePieceSpec {
        pieces: proto.pieces,
        algorithm,
        normalizer: SentencePieceNormalizer {
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

/// The fields of a `ModelProto` that are used, with their defaults.
struct SentencePieceProto {
    pieces: Vec<SentencePieceEntry>,
    model_type: u64,
    whitespace_as_suffix: bool,
    unknown_surface: String,
    normalizer: NormalizerSpecProto,
    denormalizer: NormalizerSpecProto,
}

impl Default for SentencePieceProto {
    fn default() -> Self {
        Self {
            pieces: Vec::new(),
            model_type: 1,
            whitespace_as_suffix: false,
            unknown_surface: UNKNOWN_SURFACE.to_owned(),
            normalizer: NormalizerSpecProto::default(),
            denormalizer: NormalizerSpecProto::default(),
        }
    }
}

/// A `NormalizerSpec`.
struct NormalizerSpecProto {
    charsmap: Option<CharsMap>,
    add_dummy_prefix: bool,
    remove_extra_whitespaces: bool,
    escape_whitespaces: bool,
}

impl Default for NormalizerSpecProto {
    fn default() -> Self {
        Self {
            charsmap: None,
            add_dummy_prefix: true,
            remove_extra_whitespaces: true,
            escape_whitespaces: true,
        }
    }
}

fn read_piece(field: ProtoField<'_>, id: usize) -> Result<SentencePieceEntry, TokenizerError> {
    let mut piece = SentencePieceEntry {
        text: String::new(),
        score: 0.0,
        kind: SentencePieceKind::Normal,
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
        1 => SentencePieceKind::Normal,
        2 => SentencePieceKind::Unknown,
        3 => SentencePieceKind::Control,
        4 => SentencePieceKind::UserDefined,
        5 => SentencePieceKind::Unused,
        6 => SentencePieceKind::Byte(byte_of(&piece.text).ok_or_else(|| {
            let text = clip(&piece.text);
            message.bad(format!("the byte piece {id} is spelled `{text}`"))
        })?),
        _ => return Err(message.bad(format!("piece {id} has type {kind}; expected 1 to 6"))),
    };
    Ok(piece)
}

fn read_trainer(
    field: ProtoField<'_>,
    proto: &mut SentencePieceProto,
) -> Result<(), TokenizerError> {
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

fn read_normalizer(
    field: ProtoField<'_>,
    spec: &mut NormalizerSpecProto,
) -> Result<(), TokenizerError> {
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

/// The remaining bytes of a message, and their offset in the file.
struct ProtoMessage<'a> {
    bytes: &'a [u8],
    offset: usize,
}

struct ProtoField<'a> {
    number: u64,
    value: ProtoValue<'a>,
    offset: usize,
}

enum ProtoValue<'a> {
    Integer(u64),
    /// An eight-byte field, of which none is used.
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

impl<'a> ProtoMessage<'a> {
    fn bad(&self, reason: impl Into<String>) -> TokenizerError {
        bad(self.offset, reason)
    }

    fn take(&mut self, len: u64) -> Result<&'a [u8], TokenizerError> {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let Some((taken, rest)) = self.bytes.split_at_checked(len) else {
            let left = self.bytes.len();
            return Err(self.bad(format!("a field of {len} bytes, but {left} remain")));
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

    fn next(&mut self) -> Result<Option<ProtoField<'a>>, TokenizerError> {
        if self.bytes.is_empty() {
            return Ok(None);
        }
        let key = self.varint()?;
        let value = match key & 7 {
            0 => ProtoValue::Integer(self.varint()?),
            1 => {
                self.take(8)?;
                ProtoValue::Long
            }
            2 => {
                let len = self.varint()?;
                ProtoValue::Bytes(self.take(len)?)
            }
            5 => {
                let bytes = self.take(4)?;
                ProtoValue::Float(f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
            }
            other => return Err(self.bad(format!("a field of the unknown wire type {other}"))),
        };
        Ok(Some(ProtoField {
            number: key >> 3,
            value,
            offset: self.offset,
        }))
    }
}

impl<'a> ProtoField<'a> {
    fn wrong(&self, expected: &str) -> TokenizerError {
        bad(
            self.offset,
            format!("field {} is not {expected}", self.number),
        )
    }

    fn bytes(&self) -> Result<&'a [u8], TokenizerError> {
        match self.value {
            ProtoValue::Bytes(bytes) => Ok(bytes),
            ProtoValue::Integer(_) | ProtoValue::Long | ProtoValue::Float(_) => {
                Err(self.wrong("bytes"))
            }
        }
    }

    fn message(&self) -> Result<ProtoMessage<'a>, TokenizerError> {
        let bytes = self.bytes()?;
        Ok(ProtoMessage {
            bytes,
            offset: self.offset - bytes.len(),
        })
    }

    fn text(&self) -> Result<&'a str, TokenizerError> {
        std::str::from_utf8(self.bytes()?).map_err(|_| self.wrong("UTF-8"))
    }

    fn integer(&self) -> Result<u64, TokenizerError> {
        match self.value {
            ProtoValue::Integer(value) => Ok(value),
            ProtoValue::Bytes(_) | ProtoValue::Long | ProtoValue::Float(_) => {
                Err(self.wrong("an integer"))
            }
        }
    }

    fn float(&self) -> Result<f32, TokenizerError> {
        match self.value {
            ProtoValue::Float(value) => Ok(value),
            ProtoValue::Integer(_) | ProtoValue::Bytes(_) | ProtoValue::Long => {
                Err(self.wrong("a float"))
            }
        }
    }
}
