//! Decoding of pieces to text, incrementally or at once.
//!
//! A run of byte pieces becomes characters; a byte that is not part of any becomes U+FFFD. The
//! space that the normalizer prepends to a text is removed.

use super::super::SpecialTokenDecoding;
use super::{SPACE, SentencePieceKind, SentencePieceModel};

/// Accepts pieces one by one and returns complete characters.
#[derive(Debug)]
pub(in crate::tokenizer) struct PieceDecoder<'a> {
    model: &'a SentencePieceModel,
    specials: SpecialTokenDecoding,
    /// The bytes of an incomplete character.
    pending: Vec<u8>,
    /// Whether any text was returned.
    started: bool,
    /// Whether the previous piece lost its leading space.
    lost_space: bool,
}

impl<'a> PieceDecoder<'a> {
    pub(in crate::tokenizer) fn new(
        model: &'a SentencePieceModel,
        specials: SpecialTokenDecoding,
    ) -> Self {
        Self {
            model,
            specials,
            pending: Vec::new(),
            started: false,
            lost_space: false,
        }
    }

    /// The text that the piece `id` completes; `None` for an unknown id.
    pub(in crate::tokenizer) fn push(&mut self, id: u32) -> Option<String> {
        let piece = self.model.piece(id)?;
        if let SentencePieceKind::Byte(byte) = piece.kind {
            self.pending.push(byte);
            return Some(self.take_bytes(false));
        }
        let mut text = self.take_bytes(true);
        if self.lost_space {
            self.started = true;
        }
        self.lost_space = false;
        match (piece.kind, self.specials) {
            (SentencePieceKind::Control, SpecialTokenDecoding::Skip) => {}
            (SentencePieceKind::Unknown, SpecialTokenDecoding::Skip) => {
                text.push_str(&self.model.unknown_surface)
            }
            (
                SentencePieceKind::Control | SentencePieceKind::Unknown,
                SpecialTokenDecoding::Spell,
            ) => text.push_str(&piece.text),
            (
                SentencePieceKind::Normal
                | SentencePieceKind::UserDefined
                | SentencePieceKind::Unused
                | SentencePieceKind::Byte(_),
                _,
            ) => {
                text.push_str(&self.without_first_space(&piece.text).replace(SPACE, " "));
            }
        }
        self.started |= !text.is_empty();
        Some(text)
    }

    /// The text that was held back, at the end of the stream.
    pub(in crate::tokenizer) fn finish(mut self) -> String {
        self.take_bytes(true)
    }

    fn without_first_space<'t>(&mut self, text: &'t str) -> &'t str {
        let normalizer = &self.model.normalizer;
        let adds = normalizer.add_dummy_prefix || normalizer.remove_extra_whitespaces;
        match text.strip_prefix(SPACE) {
            Some(rest) if adds && !self.started => {
                // If the normalizer removes extra spaces, all leading spaces are dropped.
                self.lost_space = !normalizer.remove_extra_whitespaces;
                rest
            }
            Some(_) | None => text,
        }
    }

    /// Removes the complete characters from the buffer; everything if `all` is set.
    fn take_bytes(&mut self, all: bool) -> String {
        let mut text = String::new();
        let mut at = 0;
        while at < self.pending.len() {
            let rest = &self.pending[at..];
            let valid = match std::str::from_utf8(rest) {
                Ok(valid) => valid,
                Err(error) if error.valid_up_to() > 0 => {
                    let valid = &rest[..error.valid_up_to()];
                    std::str::from_utf8(valid).unwrap_or_default()
                }
                Err(error) if error.error_len().is_none() && !all => break,
                Err(_) => {
                    text.push('\u{FFFD}');
                    at += 1;
                    continue;
                }
            };
            text.push_str(valid);
            at += valid.len();
        }
        self.pending.drain(..at);
        self.started |= !text.is_empty();
        text
    }
}
