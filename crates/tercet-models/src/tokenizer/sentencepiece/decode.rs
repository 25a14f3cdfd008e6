//! Pieces back to text, one by one or at once.
//!
//! A run of byte pieces becomes characters; a byte that is part of none becomes U+FFFD. The
//! space that the normaliser put before a text is taken away again.

use super::super::Specials;
use super::{Kind, Model, SPACE};

/// Takes pieces and gives complete characters.
#[derive(Debug)]
pub(in crate::tokenizer) struct PieceDecoder<'a> {
    model: &'a Model,
    specials: Specials,
    /// Bytes of a character that is not complete.
    pending: Vec<u8>,
    /// Whether any text was given out.
    started: bool,
    /// Whether the piece before lost its space.
    lost_space: bool,
}

impl<'a> PieceDecoder<'a> {
    pub(in crate::tokenizer) fn new(model: &'a Model, specials: Specials) -> Self {
        Self {
            model,
            specials,
            pending: Vec::new(),
            started: false,
            lost_space: false,
        }
    }

    /// The text that is complete with the piece `id`; `None` where there is no such piece.
    pub(in crate::tokenizer) fn push(&mut self, id: u32) -> Option<String> {
        let piece = self.model.piece(id)?;
        if let Kind::Byte(byte) = piece.kind {
            self.pending.push(byte);
            return Some(self.take_bytes(false));
        }
        let mut text = self.take_bytes(true);
        if self.lost_space {
            self.started = true;
        }
        self.lost_space = false;
        match (piece.kind, self.specials) {
            (Kind::Control, Specials::Skip) => {}
            (Kind::Unknown, Specials::Skip) => text.push_str(&self.model.unknown_surface),
            (Kind::Control | Kind::Unknown, Specials::Spell) => text.push_str(&piece.text),
            (Kind::Normal | Kind::UserDefined | Kind::Unused | Kind::Byte(_), _) => {
                text.push_str(&self.without_first_space(&piece.text).replace(SPACE, " "));
            }
        }
        self.started |= !text.is_empty();
        Some(text)
    }

    /// What is left when no piece follows.
    pub(in crate::tokenizer) fn finish(mut self) -> String {
        self.take_bytes(true)
    }

    fn without_first_space<'t>(&mut self, text: &'t str) -> &'t str {
        let normalizer = &self.model.normalizer;
        let adds = normalizer.add_dummy_prefix || normalizer.remove_extra_whitespaces;
        match text.strip_prefix(SPACE) {
            Some(rest) if adds && !self.started => {
                // Where spaces were removed, all at the front are.
                self.lost_space = !normalizer.remove_extra_whitespaces;
                rest
            }
            Some(_) | None => text,
        }
    }

    /// Takes the characters that are complete, or with `all` everything.
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
