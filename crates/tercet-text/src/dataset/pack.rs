//! Packing of documents into rows of equal length, and rows as tensors.
//!
//! A row has one or more segments. Attention is masked between segments: `segments` numbers the
//! segments of a row, and `positions` restart at 0 in each. A document that fits into a row stays
//! whole. A longer one is split into full rows and a remainder, each a separate segment. Segments
//! are placed by best fit, longest first, so rows have little padding. The packing is the same in
//! every epoch; only the order of rows changes. Every token of every document is in exactly one
//! row. The first token of each continued part of a split document is not a training target.

use std::collections::BTreeSet;
use std::sync::Arc;

use tercet_ir::Tensor;

use super::batch_sampler::{BatchSampler, LastBatchPolicy};
use super::corpus::Corpus;
use super::error::DataError;

/// The label of positions that the loss ignores.
pub const IGNORED: i32 = -100;

/// Maximum number of tokens per row and per batch.
const MAX_TOKENS: usize = 1 << 30;

/// A part of a document in a row.
///
/// ```
/// # use tercet_text::dataset::{Corpus, PackedCorpus, TokenizedDocument};
/// # let documents = [vec![1, 5, 2], vec![1, 7, 8, 2]].map(TokenizedDocument::new);
/// # let packed = PackedCorpus::new(Corpus::new(documents.to_vec()), 8, None)?;
/// use tercet_text::dataset::PackedSegment;
/// let segment = PackedSegment { document: 0, start: 0, len: 3 };
/// assert!(packed.rows()[0].contains(&segment));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PackedSegment {
    /// Index of the document in the corpus.
    pub document: usize,
    /// Index of the segment's first token in the document.
    pub start: usize,
    /// Number of tokens.
    pub len: usize,
}

/// A training batch for a decoder; each tensor is I32 `[batch, seq]`.
///
/// ```
/// # use tercet_text::dataset::{Corpus, PackedCorpus, TokenizedDocument};
/// # let documents = [vec![1, 5, 2], vec![1, 7, 8, 2]].map(TokenizedDocument::new);
/// # let packed = PackedCorpus::new(Corpus::new(documents.to_vec()), 8, None)?;
/// use tercet_text::dataset::TokenBatch;
/// let batch: TokenBatch = packed.batch(&[0], 1)?;
/// assert_eq!(batch.tokens.shape(), [1, 8]);
/// assert_eq!((batch.filled, batch.loss_tokens), (7, 5));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct TokenBatch {
    /// Token ids; padding has the padding token.
    pub tokens: Tensor,
    /// Position of each token in its segment, from 0; 0 for padding.
    pub positions: Tensor,
    /// Number of each token's segment in the row, from 1; 0 for padding.
    pub segments: Tensor,
    /// The next token of the same segment if it is a training target, else [`IGNORED`].
    pub labels: Tensor,
    /// Number of positions that have a token.
    pub filled: usize,
    /// Number of labels other than [`IGNORED`].
    pub loss_tokens: usize,
}

/// A corpus packed into rows; clones share the data.
///
/// ```
/// use tercet_text::dataset::{Corpus, PackedCorpus, TokenizedDocument};
/// let documents = [vec![1, 5, 2], vec![1, 7, 8, 2]].map(TokenizedDocument::new);
/// let packed = PackedCorpus::new(Corpus::new(documents.to_vec()), 8, None)?;
/// assert_eq!((packed.seq(), packed.rows().len()), (8, 1));
/// # Ok::<(), tercet_text::dataset::DataError>(())
/// ```
#[derive(Clone, Debug)]
pub struct PackedCorpus(Arc<PackedCorpusInner>);

#[derive(Debug)]
struct PackedCorpusInner {
    corpus: Corpus,
    seq: usize,
    rows: Vec<Vec<PackedSegment>>,
    pad: i32,
}

impl PackedCorpus {
    /// Packs a corpus into rows of `seq` tokens; `pad` is the padding token.
    ///
    /// # Errors
    /// [`DataError::BadRows`] unless `seq` is 2 to 2^30.
    pub fn new(corpus: Corpus, seq: usize, pad: Option<u32>) -> Result<PackedCorpus, DataError> {
        if !(2..=MAX_TOKENS).contains(&seq) {
            let max = MAX_TOKENS;
            return Err(DataError::BadRows { seq, max });
        }
        let lens = corpus.documents().iter().map(|d| d.tokens().len());
        let rows = pack(lens, seq);
        Ok(PackedCorpus(Arc::new(PackedCorpusInner {
            corpus,
            seq,
            rows,
            pad: pad.unwrap_or(0) as i32,
        })))
    }

    /// The packed corpus.
    #[must_use]
    pub fn corpus(&self) -> &Corpus {
        &self.0.corpus
    }

    /// Number of tokens per row.
    #[must_use]
    pub fn seq(&self) -> usize {
        self.0.seq
    }

    /// The segments of each row.
    #[must_use]
    pub fn rows(&self) -> &[Vec<PackedSegment>] {
        &self.0.rows
    }

    /// Endless shuffled batches of `batch` rows. The last batch of an epoch is filled with rows of
    /// the next epoch, so every row is used exactly once per epoch.
    ///
    /// # Errors
    /// [`DataError::BadBatch`].
    pub fn batches(&self, batch: usize, seed: u64) -> Result<PackedBatches, DataError> {
        self.check_batch(batch)?;
        Ok(PackedBatches {
            packed: self.clone(),
            order: BatchSampler::new(self.rows().len(), batch, seed, LastBatchPolicy::Wraps),
            batch,
            step: 0,
        })
    }

    /// One pass over all rows in order, in batches of `batch` rows; the last batch is padded with
    /// empty rows. For evaluation.
    ///
    /// # Errors
    /// [`DataError::BadBatch`]; the items have the errors of [`Self::batch`].
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

    /// The tensors of the selected rows, padded with empty rows to `batch` rows. Row indices out of
    /// range give empty rows.
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
                    // Token ids, positions and segment numbers are below 2^31, because row lengths
                    // are.
                    tokens[at] = document.tokens()[from] as i32;
                    positions[at] = (from - segment.start) as i32;
                    segments[at] = (number + 1) as i32;
                    if from + 1 < end && document.is_in_loss(from + 1) {
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
            loss_tokens: learnt,
        })
    }
}

/// Endless batches of a packed corpus ([`PackedCorpus::batches`]).
///
/// ```
/// # use tercet_text::dataset::{Corpus, PackedCorpus, TokenizedDocument};
/// # let documents = [vec![1, 5, 2], vec![1, 7, 8, 2]].map(TokenizedDocument::new);
/// # let packed = PackedCorpus::new(Corpus::new(documents.to_vec()), 8, None)?;
/// let mut batches = packed.batches(1, 0)?;
/// batches.seek(3);
/// assert_eq!((batches.step(), batches.per_epoch(), batches.position()), (3, 1, (3, 0)));
/// let batch = batches.next().ok_or("batches are endless")??;
/// assert_eq!(batch.filled, 7);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct PackedBatches {
    packed: PackedCorpus,
    order: BatchSampler,
    batch: usize,
    step: u64,
}

impl PackedBatches {
    /// The step of the next batch, from 0.
    #[must_use]
    pub fn step(&self) -> u64 {
        self.step
    }

    /// The epoch of the next batch and the batch's number in it, both from 0.
    #[must_use]
    pub fn position(&self) -> (u64, u64) {
        self.order.position(self.step)
    }

    /// Jumps to a step; the batches before it are skipped.
    pub fn seek(&mut self, step: u64) {
        self.step = step;
    }

    /// Jumps to a batch of an epoch, both from 0. Only batches that begin in the epoch are counted.
    pub fn seek_to(&mut self, epoch: u64, batch: u64) {
        self.step = self.order.step_of(epoch, batch);
    }

    /// Number of batches per epoch, including a last one that continues into the next epoch.
    #[must_use]
    pub fn per_epoch(&self) -> u64 {
        (self.packed.rows().len() as u64).div_ceil(self.batch as u64)
    }
}

impl Iterator for PackedBatches {
    type Item = Result<TokenBatch, DataError>;

    /// # Errors
    /// [`DataError::Tensor`].
    fn next(&mut self) -> Option<Self::Item> {
        let rows = self.order.batch(self.step);
        self.step = self.step.saturating_add(1);
        Some(self.packed.batch(&rows, self.batch))
    }
}

/// Best-fit packing, longest segment first. Rows, and segments in a row, are in document order.
fn pack(lens: impl Iterator<Item = usize>, seq: usize) -> Vec<Vec<PackedSegment>> {
    let mut parts = Vec::new();
    for (document, len) in lens.enumerate() {
        for start in (0..len).step_by(seq) {
            let len = seq.min(len - start);
            parts.push(PackedSegment {
                document,
                start,
                len,
            });
        }
    }
    parts.sort_by_key(|part| std::cmp::Reverse(part.len));
    let mut rows: Vec<Vec<PackedSegment>> = Vec::new();
    // Pairs of free room and row index.
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
