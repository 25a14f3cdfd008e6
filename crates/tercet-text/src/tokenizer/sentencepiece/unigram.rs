//! Segmentation with maximum likelihood under a unigram model (Kudo 2018), by the Viterbi
//! algorithm.
//!
//! Sums are F32, as in `sentencepiece`: the rounding decides between segmentations of almost equal
//! likelihood.

use super::{SentencePieceKind, SentencePieceModel, SentencePieceSpan};

/// Difference between the score of a character without a piece and the lowest piece score.
const UNKNOWN_PENALTY: f32 = 10.0;
/// The score of a user-defined piece for each byte after the first. Other scores are below 0, so a
/// user-defined piece wins against any other segmentation, and a long one wins against short ones.
/// The scores equal those of `sentencepiece` 0.2.3; in 0.2.0 the score of every user-defined piece
/// was -0.1.
const USER_DEFINED_BONUS: f64 = 0.1;

/// The best segmentation that ends at a byte.
#[derive(Clone)]
struct ViterbiEntry {
    score: f32,
    start: usize,
    id: Option<u32>,
}

const UNREACHED: usize = usize::MAX;

impl ViterbiEntry {
    fn offer(&mut self, score: f32, start: usize, id: Option<u32>) {
        if self.start == UNREACHED || score > self.score {
            *self = ViterbiEntry { score, start, id };
        }
    }
}

impl SentencePieceModel {
    /// The pieces of `text` with maximum likelihood.
    pub(super) fn viterbi(&self, text: &str) -> Vec<SentencePieceSpan> {
        let unreached = ViterbiEntry {
            score: 0.0,
            start: UNREACHED,
            id: None,
        };
        let mut best = vec![unreached; text.len() + 1];
        let unknown = self.min_score - UNKNOWN_PENALTY;
        for (start, first) in text.char_indices() {
            let so_far = best[start].score;
            let mut whole_character = false;
            for (len, id) in self.usable.prefixes(&text.as_bytes()[start..]) {
                let piece = &self.pieces[id as usize];
                let score = match piece.kind {
                    SentencePieceKind::UserDefined => {
                        (USER_DEFINED_BONUS * (len - 1) as f64) as f32
                    }
                    // All other pieces in `usable` are normal ones.
                    SentencePieceKind::Normal
                    | SentencePieceKind::Unused
                    | SentencePieceKind::Unknown
                    | SentencePieceKind::Control
                    | SentencePieceKind::Byte(_) => piece.score,
                };
                best[start + len].offer(score + so_far, start, Some(id));
                whole_character |= len == first.len_utf8();
            }
            if !whole_character {
                best[start + first.len_utf8()].offer(unknown + so_far, start, self.unknown);
            }
        }
        let mut spans = Vec::new();
        let mut end = text.len();
        while end > 0 {
            let ViterbiEntry { start, id, .. } = best[end];
            spans.push((start..end, id));
            end = start;
        }
        spans.reverse();
        spans
    }
}
