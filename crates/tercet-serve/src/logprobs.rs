//! Logprobs of tokens: the log-softmax of the model's logits, before temperature, penalties, biases
//! and grammars.

use std::cmp::Ordering;

use serde_json::{Value, json};
use tercet_models::{StreamDecoder, Tokenizer};

use crate::error::ApiError;

/// Replaces minus infinity, because JSON cannot represent it.
pub const MIN_LOGPROB: f64 = -9999.0;

/// The text of a single token.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TokenText {
    pub(crate) text: String,
    /// `None` if the model's tokens do not represent bytes.
    pub(crate) bytes: Option<Vec<u8>>,
}

/// A token with its logprob and the top logprobs at its position.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TokenLogprob {
    pub(crate) token: TokenText,
    pub(crate) logprob: f64,
    /// Tokens with the highest logprobs, in descending order.
    pub(crate) top_logprobs: Vec<(TokenText, f64)>,
    /// Start of the token in the text, in characters.
    pub(crate) offset: usize,
}

impl TokenLogprob {
    /// The token with the most likely ones, as most routes write it.
    pub(crate) fn to_json(&self) -> Value {
        let shown = |token: &TokenText, log: f64| json!({"token": token.text, "logprob": log, "bytes": token.bytes});
        let mut own = shown(&self.token, self.logprob);
        let likeliest = self.top_logprobs.iter();
        own["top_logprobs"] = likeliest.map(|(token, log)| shown(token, *log)).collect();
        own
    }
}

/// Logprobs of one completion, collected until they are sent.
pub(crate) struct LogprobStream<'t> {
    tokenizer: &'t Tokenizer,
    top_logprobs: usize,
    stream: StreamDecoder<'t>,
    offset: usize,
    pending: Vec<TokenLogprob>,
}

impl<'t> LogprobStream<'t> {
    /// Logprobs of the tokens of a text, whose first token is `first` if that has none.
    pub(crate) fn new(
        tokenizer: &'t Tokenizer,
        (likeliest, first): (usize, Option<u32>),
    ) -> LogprobStream<'t> {
        let mut stream = tokenizer.stream();
        // A token that has no text alone is part of the next one's.
        let text = first.map(|token| stream.push(token).unwrap_or_default());
        LogprobStream {
            tokenizer,
            top_logprobs: likeliest,
            stream,
            offset: text.map_or(0, |text| text.chars().count()),
            pending: Vec::new(),
        }
    }

    /// Adds a token that was sampled from a row of logits.
    pub(crate) fn push(&mut self, token: u32, logits: &[f32]) -> Result<(), ApiError> {
        let all = LogProbRow::new(logits);
        let likeliest = all.top_tokens(self.top_logprobs).into_iter();
        let likeliest = likeliest.map(|id| (self.token_text(id), all.log(id)));
        self.pending.push(TokenLogprob {
            token: self.token_text(token),
            logprob: all.log(token),
            top_logprobs: likeliest.collect(),
            offset: self.offset,
        });
        let text = self.stream.push(token);
        let text = text.map_err(|e| ApiError::failed(&e))?;
        self.offset += text.chars().count();
        Ok(())
    }

    pub(crate) fn take_pending(&mut self) -> Vec<TokenLogprob> {
        std::mem::take(&mut self.pending)
    }

    fn token_text(&self, id: u32) -> TokenText {
        TokenText::new(self.tokenizer, id)
    }
}

impl TokenText {
    pub(crate) fn new(tokenizer: &Tokenizer, id: u32) -> TokenText {
        let named = || tokenizer.id_to_token(id).unwrap_or_default();
        match tokenizer.bytes(id) {
            Some((bytes, false)) => TokenText {
                text: String::from_utf8_lossy(&bytes).into_owned(),
                bytes: Some(bytes),
            },
            Some((_, true)) => TokenText {
                text: named(),
                bytes: Some(named().into_bytes()),
            },
            None => TokenText {
                text: named(),
                bytes: None,
            },
        }
    }
}

/// A row of logits, with the normalization terms of its log-softmax.
#[doc(hidden)]
pub struct LogProbRow<'l> {
    logits: &'l [f32],
    max: f64,
    log_sum: f64,
}

impl LogProbRow<'_> {
    /// The log-softmax of a row.
    pub fn new(logits: &[f32]) -> LogProbRow<'_> {
        let known = || logits.iter().map(|x| f64::from(*x)).filter(|x| !x.is_nan());
        let most = known().fold(f64::NEG_INFINITY, f64::max);
        let log_sum = known().map(|x| (x - most).exp()).sum::<f64>().ln();
        LogProbRow {
            logits,
            max: most,
            log_sum,
        }
    }

    fn logit(&self, id: u32) -> f32 {
        let logit = self.logits.get(id as usize).copied();
        logit.filter(|x| !x.is_nan()).unwrap_or(f32::NEG_INFINITY)
    }

    /// Logprob of a token.
    pub fn log(&self, id: u32) -> f64 {
        let log = f64::from(self.logit(id)) - self.max - self.log_sum;
        // Infinite logits give NaN here, which fails the comparison.
        if log > MIN_LOGPROB {
            log.min(0.0)
        } else {
            MIN_LOGPROB
        }
    }

    /// Tokens with the highest logits, in descending order; ties by token id.
    pub fn top_tokens(&self, count: usize) -> Vec<u32> {
        let by_logit = |a: &u32, b: &u32| {
            let greater = self.logit(*b).partial_cmp(&self.logit(*a));
            greater.unwrap_or(Ordering::Equal).then(a.cmp(b))
        };
        let mut ids: Vec<u32> = (0..self.logits.len() as u32).collect();
        if (1..ids.len()).contains(&count) {
            ids.select_nth_unstable_by(count - 1, by_logit);
        }
        ids.truncate(count);
        ids.sort_unstable_by(by_logit);
        ids
    }
}
