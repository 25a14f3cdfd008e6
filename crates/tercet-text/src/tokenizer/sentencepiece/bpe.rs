//! BPE merging of neighbours by score (Sennrich et al. 2016, in SentencePiece's order).
//!
//! The pair whose piece has the highest score is merged first; ties go to the leftmost pair. A heap
//! stores the pairs; pairs that an earlier merge invalidated are detected by their length.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};
use std::ops::Range;

use super::{SentencePieceKind, SentencePieceModel, SentencePieceSpan};

const NONE: usize = usize::MAX;

struct BpeSymbol {
    prev: usize,
    next: usize,
    start: usize,
    /// Length of the symbol; 0 after it was merged into the previous one.
    len: usize,
    /// Whether the symbol is user-defined, which excludes it from merges.
    frozen: bool,
}

#[derive(PartialEq)]
struct BpePair {
    score: f32,
    left: usize,
    right: usize,
    len: usize,
}

impl Eq for BpePair {}

impl Ord for BpePair {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_score = self.score.total_cmp(&other.score);
        by_score.then_with(|| other.left.cmp(&self.left))
    }
}

impl PartialOrd for BpePair {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

struct BpeMerger<'a> {
    model: &'a SentencePieceModel,
    text: &'a str,
    symbols: Vec<BpeSymbol>,
    pairs: BinaryHeap<BpePair>,
    /// For each unused piece, the length of the left part of its last merge.
    unused: HashMap<u32, usize>,
}

impl SentencePieceModel {
    /// The initial symbols of `text`: its characters and user-defined pieces.
    pub(super) fn characters(&self, text: &str) -> Vec<SentencePieceSpan> {
        let mut spans = Vec::new();
        let mut at = 0;
        while let Some(first) = text[at..].chars().next() {
            let defined = self.user_defined.longest(&text.as_bytes()[at..]);
            let len = defined.map_or(first.len_utf8(), |(len, _)| len);
            spans.push((at..at + len, self.id_or_unknown(&text[at..at + len])));
            at += len;
        }
        spans
    }

    /// The pieces of `text`, merged by score.
    pub(super) fn merge(&self, text: &str) -> Vec<SentencePieceSpan> {
        let mut merger = BpeMerger {
            model: self,
            text,
            symbols: self.symbols(text),
            pairs: BinaryHeap::new(),
            unused: HashMap::new(),
        };
        for right in 1..merger.symbols.len() {
            merger.push_pair(right - 1, right);
        }
        merger.run();
        merger.finish()
    }

    fn symbols(&self, text: &str) -> Vec<BpeSymbol> {
        let mut symbols = Vec::new();
        let mut start = 0;
        while let Some(first) = text[start..].chars().next() {
            let defined = self.user_defined.longest(&text.as_bytes()[start..]);
            let len = defined.map_or(first.len_utf8(), |(len, _)| len);
            let index = symbols.len();
            symbols.push(BpeSymbol {
                prev: index.checked_sub(1).unwrap_or(NONE),
                next: index + 1,
                start,
                len,
                frozen: defined.is_some(),
            });
            start += len;
        }
        if let Some(last) = symbols.last_mut() {
            last.next = NONE;
        }
        symbols
    }
}

impl BpeMerger<'_> {
    fn push_pair(&mut self, left: usize, right: usize) {
        if left == NONE || right == NONE {
            return;
        }
        let (a, b) = (&self.symbols[left], &self.symbols[right]);
        let len = a.len + b.len;
        if a.frozen || b.frozen || len > self.model.max_piece_len {
            return;
        }
        let Some(id) = self.model.id(&self.text[a.start..a.start + len]) else {
            return;
        };
        let piece = &self.model.pieces[id as usize];
        if piece.kind == SentencePieceKind::Unused {
            self.unused.insert(id, a.len);
        }
        self.pairs.push(BpePair {
            score: piece.score,
            left,
            right,
            len,
        });
    }

    fn run(&mut self) {
        while let Some(BpePair {
            left, right, len, ..
        }) = self.pairs.pop()
        {
            let (a, b) = (&self.symbols[left], &self.symbols[right]);
            if a.len == 0 || b.len == 0 || a.len + b.len != len {
                continue;
            }
            let next = b.next;
            self.symbols[left].len = len;
            self.symbols[left].next = next;
            self.symbols[right].len = 0;
            if next != NONE {
                self.symbols[next].prev = left;
            }
            self.push_pair(self.symbols[left].prev, left);
            self.push_pair(left, next);
        }
    }

    fn finish(self) -> Vec<SentencePieceSpan> {
        let mut spans = Vec::new();
        let merged = self.symbols.iter().filter(|symbol| symbol.len > 0);
        for symbol in merged {
            self.take_apart(symbol.start..symbol.start + symbol.len, &mut spans);
        }
        spans
    }

    /// Splits unused pieces into the parts that they were merged from.
    fn take_apart(&self, whole: Range<usize>, spans: &mut Vec<SentencePieceSpan>) {
        let mut waiting = vec![whole];
        while let Some(range) = waiting.pop() {
            let id = self.model.id_or_unknown(&self.text[range.clone()]);
            let unused =
                id.filter(|id| self.model.pieces[*id as usize].kind == SentencePieceKind::Unused);
            match unused.and_then(|id| self.unused.get(&id)) {
                Some(left) => {
                    let middle = range.start + left;
                    waiting.push(middle..range.end);
                    waiting.push(range.start..middle);
                }
                None => spans.push((range, id)),
            }
        }
    }
}
