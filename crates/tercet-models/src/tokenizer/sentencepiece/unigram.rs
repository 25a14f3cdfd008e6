//! The likeliest cut under a unigram model (Kudo 2018), by the Viterbi algorithm.
//!
//! Sums are those of F32, as `sentencepiece` has them: which of two cuts of nearly the same
//! likelihood wins hangs on it.

use super::{Kind, Model, Span};

/// How much less likely a character without a piece is than the least likely piece.
const UNKNOWN_PENALTY: f32 = 10.0;
/// What a piece that the user defined gains for each byte after its first: likelihoods are below 0, so that it wins
/// against any other cut, and a long one against short ones. As in `sentencepiece` 0.2.3; in 0.2.0 all had -0.1.
const USER_DEFINED_BONUS: f64 = 0.1;

/// The best cut that ends at a byte.
#[derive(Clone)]
struct Best {
    score: f32,
    start: usize,
    id: Option<u32>,
}

const UNREACHED: usize = usize::MAX;

impl Best {
    fn offer(&mut self, score: f32, start: usize, id: Option<u32>) {
        if self.start == UNREACHED || score > self.score {
            *self = Best { score, start, id };
        }
    }
}

impl Model {
    /// The likeliest pieces of `text`.
    pub(super) fn likeliest(&self, text: &str) -> Vec<Span> {
        let unreached = Best {
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
                    Kind::UserDefined => (USER_DEFINED_BONUS * (len - 1) as f64) as f32,
                    // Every other one in `usable` is a normal piece.
                    Kind::Normal | Kind::Unused | Kind::Unknown | Kind::Control | Kind::Byte(_) => {
                        piece.score
                    }
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
            let Best { start, id, .. } = best[end];
            spans.push((start..end, id));
            end = start;
        }
        spans.reverse();
        spans
    }
}
