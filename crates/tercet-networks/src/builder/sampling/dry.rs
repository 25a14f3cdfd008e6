//! DRY, "don't repeat yourself": penalizes tokens that would extend a repetition of an earlier part
//! of the context.
//!
//! A token that follows an earlier occurrence of the last `n` tokens would repeat `n + 1` tokens.
//! From `n = allowed_length` on, the logit of this token loses `multiplier * base^(n -
//! allowed_length)`. Repetitions do not extend over a sequence breaker, such as a line end.

use std::collections::HashMap;
use std::sync::Arc;

use tercet_text::tokenizer::{Tokenizer, TokenizerError};

/// The usual default sequence breakers.
pub const DRY_BREAKERS: [&str; 4] = ["\n", ":", "\"", "*"];

/// Maximum length of a sequence breaker, in bytes, and in tokens after the first.
const MAX_BREAKER_BYTES: usize = 40;
const MAX_BREAKER_TOKENS: usize = 20;

/// The penalty of repetitions; [`Default`] disables it.
///
/// ```
/// use tercet_networks::DryOptions;
/// let options = DryOptions { multiplier: 0.8, ..DryOptions::default() };
/// assert_eq!((options.base, options.allowed_length), (1.75, 2));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct DryOptions {
    /// Penalty of the shortest repetition; 0 disables DRY.
    pub multiplier: f64,
    /// Factor of the penalty for each further token, at least 1.
    pub base: f64,
    /// Minimum length of a repetition for which the token that extends it is penalized.
    pub allowed_length: usize,
    /// Number of last context tokens that are searched.
    pub window: usize,
    /// Tokens at which repetitions end.
    pub breakers: Arc<DryBreakers>,
}

impl Default for DryOptions {
    fn default() -> DryOptions {
        DryOptions {
            multiplier: 0.0,
            base: 1.75,
            allowed_length: 2,
            window: usize::MAX,
            breakers: Arc::default(),
        }
    }
}

/// Sequence breakers as tokens: the first token of each, and the tokens that must follow it.
///
/// ```
/// use tercet_networks::DryBreakers;
/// let breakers = DryBreakers::from_tokens(&[vec![13], vec![5, 9]]);
/// assert_eq!(breakers, DryBreakers::from_tokens(&[vec![5, 9], vec![13]]));
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DryBreakers(HashMap<u32, Vec<Vec<u32>>>);

impl DryBreakers {
    /// Creates the breakers from lists of token ids; empty lists are ignored.
    #[must_use]
    pub fn from_tokens(breakers: &[Vec<u32>]) -> DryBreakers {
        let mut all = DryBreakers::default();
        for breaker in breakers {
            if let Some((first, rest)) = breaker.split_first() {
                all.add(*first, rest.to_vec());
            }
        }
        all
    }

    /// Creates the breakers from texts. A token that contains a breaker text ends a repetition. So
    /// does a token that ends with the beginning of a breaker text, if tokens with the rest follow.
    /// Only the first 40 bytes of a breaker text count.
    ///
    /// # Errors
    /// [`TokenizerError::Failed`].
    pub fn from_texts<T: AsRef<str>>(
        texts: &[T],
        tokenizer: &Tokenizer,
    ) -> Result<DryBreakers, TokenizerError> {
        let mut all = DryBreakers::default();
        let texts: Vec<&str> = texts.iter().map(|text| clipped(text.as_ref())).collect();
        for id in 0..u32::try_from(tokenizer.vocab_len()).unwrap_or(u32::MAX) {
            let Some((bytes, false)) = tokenizer.bytes(id) else {
                continue;
            };
            let word = String::from_utf8_lossy(&bytes);
            for text in texts.iter().filter(|text| !text.is_empty()) {
                if word.contains(text) {
                    all.add(id, Vec::new());
                    continue;
                }
                let cuts = (1..text.len()).filter(|at| text.is_char_boundary(*at));
                for at in cuts.filter(|at| word.ends_with(&text[..*at])) {
                    let mut rest = tokenizer.encode_literally(&text[at..], false)?;
                    rest.truncate(MAX_BREAKER_TOKENS);
                    all.add(id, rest);
                }
            }
        }
        Ok(all)
    }

    fn add(&mut self, first: u32, rest: Vec<u32>) {
        let tails = self.0.entry(first).or_default();
        if !tails.contains(&rest) {
            tails.push(rest);
            tails.sort_unstable();
        }
    }

    /// Whether a token breaks a sequence by itself.
    fn breaks_alone(&self, token: u32) -> bool {
        let tails = self.0.get(&token);
        tails.is_some_and(|tails| tails.iter().any(Vec::is_empty))
    }

    /// Number of tokens after the last breaker of the text `backwards`, whose tokens are in reverse
    /// order.
    fn tokens_since(&self, backwards: &[u32]) -> usize {
        for (at, token) in backwards.iter().enumerate() {
            let Some(tails) = self.0.get(token) else {
                continue;
            };
            let follows = |tail: &&Vec<u32>| {
                let after = backwards[..at].iter().rev();
                tail.len() <= at && tail.iter().zip(after).all(|(a, b)| a == b)
            };
            let longest = tails.iter().filter(follows).map(Vec::len).max();
            if let Some(longest) = longest {
                return at - longest;
            }
        }
        backwards.len()
    }
}

fn clipped(text: &str) -> &str {
    let mut end = text.len().min(MAX_BREAKER_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

impl DryOptions {
    /// Whether tokens are penalized.
    pub(super) fn is_on(&self) -> bool {
        self.multiplier != 0.0 && self.window > 0
    }

    /// The penalty of each token that would extend a repetition: the value subtracted from its
    /// logit after `context`.
    #[doc(hidden)]
    pub fn penalties(&self, context: &[u32]) -> HashMap<u32, f64> {
        let mut penalties = HashMap::new();
        let from = context.len().saturating_sub(self.window);
        if !self.is_on() || context.len() - from <= self.allowed_length {
            return penalties;
        }
        let backwards: Vec<u32> = context[from..].iter().rev().copied().collect();
        let most = self.breakers.tokens_since(&backwards);
        if most < self.allowed_length {
            return penalties;
        }
        let same = repetitions(&backwards);
        let mut lengths: HashMap<u32, usize> = HashMap::new();
        for at in 1..backwards.len() {
            let (next, len) = (backwards[at - 1], same[at].min(most));
            if len >= self.allowed_length && !self.breakers.breaks_alone(next) {
                let longest = lengths.entry(next).or_default();
                *longest = len.max(*longest);
            }
        }
        for (token, len) in lengths {
            let power = i32::try_from(len - self.allowed_length).unwrap_or(i32::MAX);
            // The limit makes a penalized logit lower than any other, but not infinite.
            let penalty = (self.multiplier * self.base.powi(power)).min(1e30);
            penalties.insert(token, penalty);
        }
        penalties
    }
}

/// For each index, the length of the longest common prefix of `tokens` and its suffix at that index
/// (the Z function), in linear time.
fn repetitions(tokens: &[u32]) -> Vec<usize> {
    let mut same = vec![0; tokens.len()];
    // Start and end of the match that ends last among those found so far.
    let (mut left, mut right) = (0, 0);
    for at in 1..tokens.len() {
        let mut len = match at < right {
            true => same[at - left].min(right - at),
            false => 0,
        };
        while at + len < tokens.len() && tokens[len] == tokens[at + len] {
            len += 1;
        }
        if at + len > right {
            (left, right) = (at, at + len);
        }
        same[at] = len;
    }
    same
}
