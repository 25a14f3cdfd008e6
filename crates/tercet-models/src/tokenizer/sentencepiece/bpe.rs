//! Merging neighbours by score (Sennrich et al. 2016, as SentencePiece orders it).
//!
//! The pair whose piece has the highest score is merged first, of equal ones the leftmost. A
//! heap holds the pairs; those that an earlier merge made stale are known by their length.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};
use std::ops::Range;

use super::{Kind, Model, Span};

const NONE: usize = usize::MAX;

struct Symbol {
    prev: usize,
    next: usize,
    start: usize,
    /// 0 once it was merged into the one before.
    len: usize,
    /// A symbol that the user defined is never merged.
    frozen: bool,
}

#[derive(PartialEq)]
struct Pair {
    score: f32,
    left: usize,
    right: usize,
    len: usize,
}

impl Eq for Pair {}

impl Ord for Pair {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_score = self.score.total_cmp(&other.score);
        by_score.then_with(|| other.left.cmp(&self.left))
    }
}

impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

struct Merger<'a> {
    model: &'a Model,
    text: &'a str,
    symbols: Vec<Symbol>,
    pairs: BinaryHeap<Pair>,
    /// What pieces that are not to be used were merged from: the length of the left part.
    unused: HashMap<u32, usize>,
}

impl Model {
    /// The characters of `text`, and what the user defined, as they are.
    pub(super) fn characters(&self, text: &str) -> Vec<Span> {
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
    pub(super) fn merge(&self, text: &str) -> Vec<Span> {
        let mut merger = Merger {
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

    fn symbols(&self, text: &str) -> Vec<Symbol> {
        let mut symbols = Vec::new();
        let mut start = 0;
        while let Some(first) = text[start..].chars().next() {
            let defined = self.user_defined.longest(&text.as_bytes()[start..]);
            let len = defined.map_or(first.len_utf8(), |(len, _)| len);
            let index = symbols.len();
            symbols.push(Symbol {
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

impl Merger<'_> {
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
        if piece.kind == Kind::Unused {
            self.unused.insert(id, a.len);
        }
        self.pairs.push(Pair {
            score: piece.score,
            left,
            right,
            len,
        });
    }

    fn run(&mut self) {
        while let Some(Pair {
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

    fn finish(self) -> Vec<Span> {
        let mut spans = Vec::new();
        let merged = self.symbols.iter().filter(|symbol| symbol.len > 0);
        for symbol in merged {
            self.take_apart(symbol.start..symbol.start + symbol.len, &mut spans);
        }
        spans
    }

    /// Pieces that are not to be used are taken apart as they were merged.
    fn take_apart(&self, whole: Range<usize>, spans: &mut Vec<Span>) {
        let mut waiting = vec![whole];
        while let Some(range) = waiting.pop() {
            let id = self.model.id_or_unknown(&self.text[range.clone()]);
            let unused = id.filter(|id| self.model.pieces[*id as usize].kind == Kind::Unused);
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
