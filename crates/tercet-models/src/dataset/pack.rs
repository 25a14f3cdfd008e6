//! Documents packed into rows of one length, and rows as tensors.
//!
//! A row holds one or more segments, which do not see each other: `segments` tells them apart, and
//! `positions` begin at 0 in each. A document that fits a row stays whole; a longer one is cut
//! into parts of a whole row and a rest, each a segment of its own. Segments are placed by best
//! fit, the longest first, so rows are filled but for a little; which segments share a row is the
//! same in every epoch, the order of rows is not. Every token of every document is in exactly
//! one row. (Of a document that is cut, the first token of each further part is not predicted.)

use std::collections::BTreeSet;
use std::sync::Arc;

use tercet::Tensor;

use super::corpus::Corpus;
use super::error::DataError;
use super::order::{Last, Order};

/// The label of a position that the loss leaves out.
pub const IGNORED: i32 = -100;

/// Rows have at most this many tokens, and batches in all.
const MAX_TOKENS: usize = 1 << 30;

/// A part of a document in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Segment {
    /// The document, by its place in the corpus.
    pub document: usize,
    /// Its first token.
    pub start: usize,
    /// The number of tokens.
    pub len: usize,
}

/// A batch for a decoder; each tensor is I32 `[batch, seq]`.
#[derive(Clone, Debug)]
pub struct TokenBatch {
    /// Token ids; where there is nothing, the padding token.
    pub tokens: Tensor,
    /// The place of each token in its segment, from 0; 0 where there is nothing.
    pub positions: Tensor,
    /// Which segment of its row a token belongs to, from 1; 0 where there is nothing.
    pub segments: Tensor,
    /// The next token of the same segment where it is learnt, else [`IGNORED`].
    pub labels: Tensor,
    /// How many positions hold a token.
    pub filled: usize,
    /// How many labels are not [`IGNORED`].
    pub learnt: usize,
}

/// A corpus in rows; clones share it.
#[derive(Clone, Debug)]
pub struct Packed(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    corpus: Corpus,
    seq: usize,
    rows: Vec<Vec<Segment>>,
    pad: i32,
}

impl Packed {
    /// Packs a corpus into rows of `seq` tokens; `pad` stands where there is nothing.
    ///
    /// # Errors
    /// [`DataError::BadRows`] unless `seq` is 2 to 2^30.
    pub fn new(corpus: Corpus, seq: usize, pad: Option<u32>) -> Result<Packed, DataError> {
        if !(2..=MAX_TOKENS).contains(&seq) {
            let max = MAX_TOKENS;
            return Err(DataError::BadRows { seq, max });
        }
        let lens = corpus.documents().iter().map(|d| d.tokens().len());
        let rows = pack(lens, seq);
        Ok(Packed(Arc::new(Inner {
            corpus,
            seq,
            rows,
            pad: pad.unwrap_or(0) as i32,
        })))
    }

    /// The corpus.
    #[must_use]
    pub fn corpus(&self) -> &Corpus {
        &self.0.corpus
    }

    /// Tokens of a row.
    #[must_use]
    pub fn seq(&self) -> usize {
        self.0.seq
    }

    /// The segments of each row.
    #[must_use]
    pub fn rows(&self) -> &[Vec<Segment>] {
        &self.0.rows
    }

    /// Endless shuffled batches of `batch` full rows. A batch at the end of an epoch that the epoch
    /// does not fill goes on with the next one, so every row is used exactly once an epoch.
    ///
    /// # Errors
    /// [`DataError::BadBatch`].
    pub fn batches(&self, batch: usize, seed: u64) -> Result<Batches, DataError> {
        self.check_batch(batch)?;
        Ok(Batches {
            packed: self.clone(),
            order: Order::new(self.rows().len(), batch, seed, Last::Wraps),
            batch,
            step: 0,
        })
    }

    /// Every row once, in order, in batches of `batch` rows; the last one is filled with rows of
    /// nothing. For evaluation.
    ///
    /// # Errors
    /// [`DataError::BadBatch`]; the items are as of [`Self::batch`].
    pub fn once(
        &self,
        batch: usize,
    ) -> Result<impl Iterator<Item = Result<TokenBatch, DataError>> + use<>, DataError> {
        self.check_batch(batch)?;
        let packed = self.clone();
        let count = self.rows().len();
        Ok((0..count).step_by(batch).map(move |first| {
            let rows: Vec<usize> = (first..count.min(first + batch)).collect();
            packed.batch(&rows, batch)
        }))
    }

    fn check_batch(&self, batch: usize) -> Result<(), DataError> {
        let seq = self.seq();
        match batch.checked_mul(seq) {
            Some(1..=MAX_TOKENS) => Ok(()),
            _ => Err(DataError::BadBatch { batch, seq }),
        }
    }

    /// The tensors of these rows, filled with rows of nothing up to `batch`. Rows that there are not
    /// hold nothing.
    ///
    /// # Errors
    /// [`DataError::BadBatch`], [`DataError::Tensor`].
    pub fn batch(&self, rows: &[usize], batch: usize) -> Result<TokenBatch, DataError> {
        let batch = batch.max(rows.len());
        self.check_batch(batch)?;
        let seq = self.seq();
        let len = batch * seq;
        let mut tokens = vec![self.0.pad; len];
        let mut positions = vec![0; len];
        let mut segments = vec![0; len];
        let mut labels = vec![IGNORED; len];
        let (mut filled, mut learnt) = (0, 0);
        for (row, place) in rows.iter().enumerate() {
            let mut at = row * seq;
            let of_row = self.rows().get(*place).map_or(&[][..], Vec::as_slice);
            for (number, segment) in of_row.iter().enumerate() {
                let document = &self.corpus().documents()[segment.document];
                let end = segment.start + segment.len;
                for from in segment.start..end {
                    // Ids, positions and numbers of segments are below 2^31: rows are.
                    tokens[at] = document.tokens()[from] as i32;
                    positions[at] = (from - segment.start) as i32;
                    segments[at] = (number + 1) as i32;
                    if from + 1 < end && document.is_learnt(from + 1) {
                        labels[at] = document.tokens()[from + 1] as i32;
                        learnt += 1;
                    }
                    at += 1;
                }
                filled += segment.len;
            }
        }
        let shape = [batch, seq];
        Ok(TokenBatch {
            tokens: Tensor::from_slice(&shape, &tokens)?,
            positions: Tensor::from_slice(&shape, &positions)?,
            segments: Tensor::from_slice(&shape, &segments)?,
            labels: Tensor::from_slice(&shape, &labels)?,
            filled,
            learnt,
        })
    }
}

/// Endless batches of a packed corpus ([`Packed::batches`]).
#[derive(Clone, Debug)]
pub struct Batches {
    packed: Packed,
    order: Order,
    batch: usize,
    step: u64,
}

impl Batches {
    /// The step of the next batch, from 0.
    #[must_use]
    pub fn step(&self) -> u64 {
        self.step
    }

    /// The epoch and the batch in it of the next batch, both from 0.
    #[must_use]
    pub fn position(&self) -> (u64, u64) {
        self.order.position(self.step)
    }

    /// Goes to a step, as if all before it had been taken.
    pub fn seek(&mut self, step: u64) {
        self.step = step;
    }

    /// Goes to a batch of an epoch, both from 0, of those batches that begin in it.
    pub fn seek_to(&mut self, epoch: u64, batch: u64) {
        self.step = self.order.step_of(epoch, batch);
    }

    /// Batches that an epoch takes, the last one counted if it goes on with the next epoch.
    #[must_use]
    pub fn per_epoch(&self) -> u64 {
        (self.packed.rows().len() as u64).div_ceil(self.batch as u64)
    }
}

impl Iterator for Batches {
    type Item = Result<TokenBatch, DataError>;

    /// # Errors
    /// [`DataError::Tensor`].
    fn next(&mut self) -> Option<Self::Item> {
        let rows = self.order.batch(self.step);
        self.step = self.step.saturating_add(1);
        Some(self.packed.batch(&rows, self.batch))
    }
}

/// Best fit of the longest first; segments of a row, and rows, in the order of documents.
fn pack(lens: impl Iterator<Item = usize>, seq: usize) -> Vec<Vec<Segment>> {
    let mut parts = Vec::new();
    for (document, len) in lens.enumerate() {
        for start in (0..len).step_by(seq) {
            let len = seq.min(len - start);
            parts.push(Segment {
                document,
                start,
                len,
            });
        }
    }
    parts.sort_by_key(|part| std::cmp::Reverse(part.len));
    let mut rows: Vec<Vec<Segment>> = Vec::new();
    // Room that is left, and the row that has it.
    let mut open: BTreeSet<(usize, usize)> = BTreeSet::new();
    for part in parts {
        let found = open.range((part.len, 0)..).next().copied();
        let (room, row) = match found {
            Some(found) => {
                open.remove(&found);
                found
            }
            None => {
                rows.push(Vec::new());
                (seq, rows.len() - 1)
            }
        };
        rows[row].push(part);
        if room > part.len {
            open.insert((room - part.len, row));
        }
    }
    for row in &mut rows {
        row.sort_unstable();
    }
    rows.sort_unstable();
    rows
}
