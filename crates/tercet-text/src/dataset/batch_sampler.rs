//! Shuffled assignment of items to batches, as a function of seed and step.

use tercet_ir::random::PhiloxStream;

/// Random stream id, which separates these random numbers from those of operators with the same
/// seed.
const STREAM: u32 = 0x6461_7461;

/// A random permutation of `0..len` (Fisher-Yates), deterministic for a seed and an epoch on every
/// machine.
#[must_use]
pub fn shuffled(len: usize, seed: u64, epoch: u64) -> Vec<usize> {
    let stream = PhiloxStream {
        seed,
        stream: STREAM,
        step: epoch,
    };
    let mut items: Vec<usize> = (0..len).collect();
    for (draw, last) in (1..len).rev().enumerate() {
        let [low, high, ..] = stream.block(draw as u64);
        let word = u64::from(high) << 32 | u64::from(low);
        // The high half of the product is uniform below `last + 1`, up to a bias of 2^-64 * len.
        let at = (u128::from(word) * (last as u128 + 1)) >> 64;
        items.swap(last, at as usize);
    }
    items
}

/// Treatment of the last batch of an epoch if the items do not fill it.
///
/// ```
/// use tercet_text::dataset::{BatchSampler, LastBatchPolicy};
/// let last_batch = |policy| BatchSampler::new(5, 2, 7, policy).batch(2);
/// assert_eq!(last_batch(LastBatchPolicy::Short).len(), 1);
/// assert_eq!(last_batch(LastBatchPolicy::Wraps).len(), 2);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LastBatchPolicy {
    /// The batch continues with items of the next epoch. All batches are full, and a batch may have
    /// an item twice, once from each epoch.
    Wraps,
    /// The batch has fewer items.
    Short,
}

/// An endless order of batches. Every item occurs exactly once per epoch, and each epoch has a new
/// permutation.
///
/// ```
/// use tercet_text::dataset::{BatchSampler, LastBatchPolicy};
/// let mut sampler = BatchSampler::new(5, 2, 7, LastBatchPolicy::Short);
/// let mut items: Vec<usize> = (0..3).flat_map(|step| sampler.batch(step)).collect();
/// items.sort();
/// assert_eq!(items, [0, 1, 2, 3, 4]);
/// assert_eq!(sampler.position(3), (1, 0));
/// ```
#[derive(Clone, Debug)]
pub struct BatchSampler {
    items: usize,
    batch: usize,
    seed: u64,
    last: LastBatchPolicy,
    /// Cache of the last used epochs and their permutations.
    cached_epochs: Vec<(u64, Vec<usize>)>,
}

impl BatchSampler {
    /// An order of `items` in batches of `batch`; values of 0 are raised to 1.
    #[must_use]
    pub fn new(items: usize, batch: usize, seed: u64, last: LastBatchPolicy) -> BatchSampler {
        BatchSampler {
            items: items.max(1),
            batch: batch.max(1),
            seed,
            last,
            cached_epochs: Vec::new(),
        }
    }

    /// The step of batch number `batch` of an epoch. Only batches that begin in the epoch are
    /// counted; steps and batches count from 0.
    #[must_use]
    pub fn step_of(&self, epoch: u64, batch: u64) -> u64 {
        let (items, size) = (self.items as u128, self.batch as u128);
        let begin = match self.last {
            LastBatchPolicy::Wraps => (u128::from(epoch) * items).div_ceil(size),
            LastBatchPolicy::Short => u128::from(epoch) * items.div_ceil(size),
        };
        u64::try_from(begin + u128::from(batch)).unwrap_or(u64::MAX)
    }

    /// The epoch of the first item of a step, and the number of the step's batch among those that
    /// begin in this epoch. Both count from 0.
    #[must_use]
    pub fn position(&self, step: u64) -> (u64, u64) {
        let (items, size) = (self.items as u128, self.batch as u128);
        let epoch = match self.last {
            LastBatchPolicy::Wraps => u128::from(step) * size / items,
            LastBatchPolicy::Short => u128::from(step) / items.div_ceil(size),
        };
        let epoch = u64::try_from(epoch).unwrap_or(u64::MAX);
        (epoch, step.saturating_sub(self.step_of(epoch, 0)))
    }

    /// The items of the batch of a step.
    pub fn batch(&mut self, step: u64) -> Vec<usize> {
        let (items, size) = (self.items as u128, self.batch as u128);
        let first = match self.last {
            LastBatchPolicy::Wraps => u128::from(step) * size,
            LastBatchPolicy::Short => {
                let (epoch, batch) = self.position(step);
                u128::from(epoch) * items + u128::from(batch) * size
            }
        };
        let end = match self.last {
            LastBatchPolicy::Wraps => first + size,
            LastBatchPolicy::Short => (first + size).min((first / items + 1) * items),
        };
        (first..end)
            .map(|at| {
                let epoch = u64::try_from(at / items).unwrap_or(u64::MAX);
                // The index is below the number of items.
                self.epoch(epoch)[(at % items) as usize]
            })
            .collect()
    }

    fn epoch(&mut self, epoch: u64) -> &[usize] {
        let at = match self
            .cached_epochs
            .iter()
            .position(|(known, _)| *known == epoch)
        {
            Some(at) => at,
            None => {
                // A batch rarely spans more than two epochs.
                if self.cached_epochs.len() >= 2 {
                    self.cached_epochs.remove(0);
                }
                let order = shuffled(self.items, self.seed, epoch);
                self.cached_epochs.push((epoch, order));
                self.cached_epochs.len() - 1
            }
        };
        &self.cached_epochs[at].1
    }
}
