//! Counts tokens that a language model reads more than once.

use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

/// Maximum number of tokens that are remembered.
pub const MAX_TOKENS: usize = 1 << 18;

/// Digests of the prefixes that were read: one for each token, which depends on all tokens before it.
#[doc(hidden)]
#[derive(Debug, Default)]
pub struct ReadHistory {
    /// The digests without their order.
    pub digests: HashSet<u64>,
    /// The digests from old to new.
    pub order: VecDeque<u64>,
}

impl ReadHistory {
    /// Records tokens that were read in a scope; the first `cached` of them were in a cache. Returns the
    /// number of those that were read although they had been read before, after the same tokens.
    pub fn record(
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
