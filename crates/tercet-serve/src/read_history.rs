//! Counts tokens that a language model reads more than once.

use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

/// Maximum number of tokens that are remembered.
const MAX_TOKENS: usize = 1 << 18;

/// Digests of the prefixes that were read: one for each token, which depends on all tokens before it.
#[derive(Debug, Default)]
pub(crate) struct ReadHistory {
    digests: HashSet<u64>,
    /// The digests from old to new.
    order: VecDeque<u64>,
}

impl ReadHistory {
    /// Records tokens that were read in a scope; the first `cached` of them were in a cache. Returns the
    /// number of those that were read although they had been read before, after the same tokens.
    pub(crate) fn record(
        &mut self,
        scope: impl std::hash::Hash,
        tokens: impl Iterator<Item = u32>,
        cached: usize,
    ) -> usize {
        let hasher = BuildHasherDefault::<DefaultHasher>::default();
        let mut digest = hasher.hash_one(scope);
        let mut again = 0;
        for (at, token) in tokens.enumerate() {
            digest = hasher.hash_one((digest, token));
            let is_new = self.digests.insert(digest);
            if is_new {
                self.order.push_back(digest);
            } else if at >= cached {
                again += 1;
            }
        }
        while self.order.len() > MAX_TOKENS {
            if let Some(oldest) = self.order.pop_front() {
                self.digests.remove(&oldest);
            }
        }
        again
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_after_the_same_tokens_count_again() {
        let mut history = ReadHistory::default();
        let mut record = |scope: &str, tokens: &[u32], cached| {
            history.record(scope, tokens.iter().copied(), cached)
        };
        assert_eq!(record("", &[1, 2, 3], 0), 0);
        assert_eq!(record("", &[1, 2, 3, 4], 0), 3);
        assert_eq!(record("", &[1, 2, 3, 4, 5], 3), 1);
        // The same tokens elsewhere are others.
        assert_eq!(record("", &[2, 3], 0), 0);
        assert_eq!(record("a", &[1, 2, 3], 0), 0);
        assert_eq!(record("a", &[1, 2, 3], 3), 0);
    }

    #[test]
    fn the_oldest_tokens_are_forgotten() {
        let mut history = ReadHistory::default();
        history.record("", 0..100, 0);
        history.record("", 1000..1000 + MAX_TOKENS as u32, 0);
        assert_eq!(history.digests.len(), MAX_TOKENS);
        assert_eq!(history.record("", 0..100, 0), 0);
        assert_eq!(history.digests.len(), history.order.len());
    }
}
