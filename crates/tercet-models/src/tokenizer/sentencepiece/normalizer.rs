//! What happens to a text before it is cut into pieces: replacements, and the rules of spaces.

use super::super::charsmap::CharsMap;
use super::super::trie::Trie;
use super::SPACE;

/// The settings of a `NormalizerSpec`, and one of the trainer's.
#[derive(Debug)]
pub(in crate::tokenizer) struct Normalizer {
    pub(in crate::tokenizer) charsmap: Option<CharsMap>,
    pub(in crate::tokenizer) add_dummy_prefix: bool,
    pub(in crate::tokenizer) remove_extra_whitespaces: bool,
    pub(in crate::tokenizer) escape_whitespaces: bool,
    pub(in crate::tokenizer) whitespace_as_suffix: bool,
}

/// A normalised text.
#[derive(Debug, Default)]
pub(super) struct Normalized {
    pub(super) text: String,
    /// Where each byte of `text` comes from, and where the last one ends.
    pub(super) origins: Vec<usize>,
}

impl Normalized {
    fn push(&mut self, text: &str, origin: usize) {
        self.text.push_str(text);
        self.origins.resize(self.text.len(), origin);
    }
}

impl Normalizer {
    /// Normalises `text`; what `kept` lists stays as it is.
    pub(super) fn normalize(&self, text: &str, kept: &Trie) -> Normalized {
        let mut out = Normalized::default();
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

    /// What stands for the beginning of `text[at..]`, and how many bytes of it that is.
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
        // A table may have replaced a part of a character.
        let first = text.get(at..).and_then(|rest| rest.chars().next());
        Some(match first {
            Some(first) => (&text[at..at + first.len_utf8()], first.len_utf8()),
            None => ("\u{FFFD}", 1),
        })
    }
}
