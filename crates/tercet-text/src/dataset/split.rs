//! The held-out set of a corpus.

use std::collections::HashMap;
use std::hash::Hash;

use super::batch_sampler::shuffled;
use super::corpus::{Corpus, TokenizedDocument};
use super::error::DataError;

/// The default held-out share.
pub const DEFAULT_SHARE: f64 = 0.05;

/// The mask of held-out items: `share` of the items, at least one and at most half, selected by the
/// seed. Equal items stay together, so no held-out item is also trained on. `None` if all items are
/// equal.
pub(super) fn held_out<T: Hash + Eq>(
    items: impl Iterator<Item = T>,
    share: f64,
    seed: u64,
) -> Option<Vec<bool>> {
    let mut group_of = HashMap::new();
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for (at, item) in items.enumerate() {
        let group = *group_of.entry(item).or_insert_with(|| {
            groups.push(Vec::new());
            groups.len() - 1
        });
        groups[group].push(at);
    }
    if groups.len() < 2 {
        return None;
    }
    let total: usize = groups.iter().map(Vec::len).sum();
    let half = total / 2;
    let wanted = share_of(total, share);
    let mut held = vec![false; total];
    let mut count = 0;
    for group in shuffled(groups.len(), seed, 0) {
        let group = &groups[group];
        if count < wanted && count + group.len() <= half {
            count += group.len();
            group.iter().for_each(|at| held[*at] = true);
        }
    }
    Some(held)
}

/// `share` of `total`, at least 1 and at most half.
fn share_of(total: usize, share: f64) -> usize {
    let wanted = (total as f64 * share).round() as usize;
    wanted.clamp(1, (total / 2).max(1))
}

/// # Errors
/// [`DataError::BadShare`].
pub(super) fn check_share(share: f64) -> Result<(), DataError> {
    match (0.0..1.0).contains(&share) {
        true => Ok(()),
        false => Err(DataError::BadShare { share }),
    }
}

impl Corpus {
    /// Splits the corpus into `(training set, held-out set)`.
    ///
    /// The held-out set has `share` of the documents, at least one and at most half, selected by
    /// the seed. Equal documents stay together. A single document, or a corpus of equal documents,
    /// is cut at a token instead. The part after the cut then has `share` of the training targets,
    /// at most half. With a share of 0 nothing is held out.
    ///
    /// # Errors
    /// [`DataError::BadShare`]; [`DataError::TooFewToSplit`] for one document of a few tokens.
    pub fn split(self, share: f64, seed: u64) -> Result<(Corpus, Option<Corpus>), DataError> {
        check_share(share)?;
        if share == 0.0 {
            return Ok((self, None));
        }
        let tokens = self.documents().iter().map(TokenizedDocument::tokens);
        let Some(held) = held_out(tokens, share, seed) else {
            return self.cut(share);
        };
        let mut parts = (Vec::new(), Vec::new());
        for (document, held) in self.documents.into_iter().zip(held) {
            match held {
                false => parts.0.push(document),
                true => parts.1.push(document),
            }
        }
        let train = Corpus {
            documents: parts.0,
            notes: self.notes,
        };
        let held = Corpus {
            documents: parts.1,
            notes: Vec::new(),
        };
        Ok((train, Some(held)))
    }

    /// Cuts the only document, of which the corpus may have several copies.
    fn cut(mut self, share: f64) -> Result<(Corpus, Option<Corpus>), DataError> {
        let too_few = |found| DataError::TooFewToSplit {
            found,
            what: "target tokens",
        };
        let Some(document) = self.documents.first() else {
            return Err(too_few(0));
        };
        let places = 0..document.tokens().len();
        let learnt: Vec<usize> = places.filter(|at| document.is_in_loss(*at)).collect();
        let held = share_of(learnt.len(), share);
        // The first token after the cut is context; the one after it is the first training target.
        let first = learnt.len().checked_sub(held).and_then(|at| learnt.get(at));
        let cut = match first {
            Some(first) if learnt[0] + 1 < *first => first - 1,
            _ => return Err(too_few(learnt.len())),
        };
        let tail = document.part(cut..document.tokens().len());
        for document in &mut self.documents {
            *document = document.part(0..cut);
        }
        let held = Corpus {
            documents: vec![tail],
            notes: Vec::new(),
        };
        Ok((self, Some(held)))
    }
}
