//! Text normalization before segmentation: replacements and the rules for spaces.

use super::super::charsmap::CharsMap;
use super::super::trie::Trie;
use super::SPACE;

/// The settings of a `NormalizerSpec`, and one of the trainer's.
#[derive(Debug)]
pub(in crate::tokenizer) struct SentencePieceNormalizer {
    pub(in crate::tokenizer) charsmap: Option<CharsMap>,
    pub(in crate::tokenizer) add_dummy_prefix: bool,
    pub(in crate::tokenizer) remove_extra_whitespaces: bool,
    pub(in crate::tokenizer) escape_whitespaces: bool,
    pub(in crate::tokenizer) whitespace_as_suffix: bool,
}

/// A normalized text.
#[derive(Debug, Default)]
pub(super) struct NormalizedText {
    pub(super) text: String,
    /// The position in the original text of each byte of `text`, followed by the end position.
    pub(super) origins: Vec<usize>,
}

impl NormalizedText {
    fn push(&mut self, text: &str, origin: usize) {
        self.text.push_str(text);
        self.origins.resize(self.text.len(), origin);
    }
}

impl SentencePieceNormalizer {
    /// Normalizes `text`; strings in `kept` stay unchanged.
    pub(super) fn normalize(&self, text: &str, kept: &Trie) -> NormalizedText {
        let mut out = NormalizedText::default();
        let space = if self.escape_whitespaces { SPACE } else { " " };
        let mut at = 0;
        if self.remove_extra_whitespaces {
            while let Some((" ", len)) = self.step(text, at, kept) {
                at += len;
            }
        }
        if at == text.len() {
            out.origins.push(at);
            return out;
        }
        if self.add_dummy_prefix && !self.whitespace_as_suffix {
            out.push(space, at);
        }
        let mut after_space = self.remove_extra_whitespaces;
        while let Some((mut piece, len)) = self.step(text, at, kept) {
            if after_space {
                piece = piece.trim_start_matches(' ');
            }
            for part in piece.split_inclusive(' ') {
                let bare = part.strip_suffix(' ');
                out.push(bare.unwrap_or(part), at);
                if bare.is_some() {
                    out.push(space, at);
                }
            }
            if !piece.is_empty() {
                after_space = self.remove_extra_whitespaces && piece.ends_with(' ');
            }
            at += len;
        }
        if self.remove_extra_whitespaces {
            while let Some(rest) = out.text.strip_suffix(space) {
                let len = rest.len();
                at = out.origins[len];
                out.text.truncate(len);
                out.origins.truncate(len);
            }
        }
        if self.add_dummy_prefix && self.whitespace_as_suffix {
            out.push(space, at);
        }
        out.origins.push(at);
        out
    }

    /// The replacement of the beginning of `text[at..]`, and the number of bytes it replaces.
    fn step<'a>(&'a self, text: &'a str, at: usize, kept: &Trie) -> Option<(&'a str, usize)> {
        let rest = &text.as_bytes()[at..];
        if rest.is_empty() {
            return None;
        }
        if let Some((len, _)) = kept.longest(rest) {
            return Some((&text[at..at + len], len));
        }
        let map = self.charsmap.as_ref();
        if let Some((len, replacement)) = map.and_then(|map| map.longest(rest)) {
            return Some((replacement, len));
        }
        // A replacement may have ended in the middle of a character.
        let first = text.get(at..).and_then(|rest| rest.chars().next());
        Some(match first {
            Some(first) => (&text[at..at + first.len_utf8()], first.len_utf8()),
            None => ("\u{FFFD}", 1),
        })
    }
}
