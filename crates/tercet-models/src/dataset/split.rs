//! The held-out part of a corpus.

use std::collections::HashMap;
use std::hash::Hash;

use super::corpus::{Corpus, Document};
use super::error::DataError;
use super::order::shuffled;

/// The share that is held out where nobody says otherwise.
pub const DEFAULT_SHARE: f64 = 0.05;

/// Which of `items` are held out: `share` of them, at least one and at most half, by the seed. Equal
/// items go together, so that nothing that is held out is trained on as well. `None` where all are
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
    /// Takes a held-out part from the corpus: `(to train on, held out)`.
    ///
    /// `share` of the documents, at least one and at most half of them, chosen by the seed; equal
    /// documents go together. Where there is one document, or all are equal, it is cut at a
    /// token, so that `share` of what is learnt lies behind the cut, at most half of it. With a
    /// share of 0 nothing is held out.
    ///
    /// # Errors
    /// [`DataError::BadShare`]; [`DataError::TooFewToSplit`] for one document of a few tokens.
    pub fn split(self, share: f64, seed: u64) -> Result<(Corpus, Option<Corpus>), DataError> {
        check_share(share)?;
        if share == 0.0 {
            return Ok((self, None));
        }
        let tokens = self.documents().iter().map(Document::tokens);
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

    /// Cuts the one document that there is, in however many copies.
    fn cut(mut self, share: f64) -> Result<(Corpus, Option<Corpus>), DataError> {
        let too_few = |found| DataError::TooFewToSplit {
            found,
            what: "learnt tokens",
        };
        let Some(document) = self.documents.first() else {
            return Err(too_few(0));
        };
        let places = 0..document.tokens().len();
        let learnt: Vec<usize> = places.filter(|at| document.is_learnt(*at)).collect();
        let held = share_of(learnt.len(), share);
        // The first token behind the cut is context: the one after it is the first that is learnt.
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
