//! Generation parameters of a request.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use tercet_models::SamplingOptions;
#[cfg(feature = "grammar")]
use tercet_models::constraint::Grammar;

use crate::error::ApiError;
use crate::language::{GenerationRequest, TokenDetails};

/// Maximum number of stop strings.
pub(crate) const MAX_STOPS: usize = 16;

/// Generation and response parameters of a request.
pub(crate) struct CompletionParams {
    pub(crate) max_tokens: Option<usize>,
    pub(crate) stop: Vec<String>,
    /// Special tokens that are part of the text.
    pub(crate) spelled: Arc<[u32]>,
    pub(crate) stop_tokens: Vec<u32>,
    pub(crate) ignore_eos: bool,
    pub(crate) dry_breakers: Option<Vec<String>>,
    pub(crate) sampling: SamplingOptions,
    /// Grammar of the answer, and the request field that set it.
    #[cfg(feature = "grammar")]
    pub(crate) grammar: Option<(&'static str, Grammar)>,
    /// Maximum tokens of the thoughts before an answer.
    pub(crate) thought_tokens: Option<usize>,
    /// Whether the grammar begins after a thought that the prompt opens.
    pub(crate) is_constrained_after_thought: bool,
    pub(crate) seed: u64,
    /// Completions per prompt.
    pub(crate) n: usize,
    /// Number of top logprobs to return per token; `None` disables logprobs.
    pub(crate) top_logprobs: Option<usize>,
    pub(crate) details: TokenDetails,
    pub(crate) stream: bool,
    /// Whether a stream ends with the token usage.
    pub(crate) usage: bool,
}

impl CompletionParams {
    /// One completion with a random seed and temperature 1.
    pub(crate) fn new() -> CompletionParams {
        CompletionParams {
            max_tokens: None,
            stop: Vec::new(),
            spelled: Arc::default(),
            stop_tokens: Vec::new(),
            ignore_eos: false,
            dry_breakers: None,
            sampling: SamplingOptions {
                temperature: 1.0,
                ..SamplingOptions::default()
            },
            #[cfg(feature = "grammar")]
            grammar: None,
            thought_tokens: None,
            is_constrained_after_thought: false,
            seed: random_seed(),
            n: 1,
            top_logprobs: None,
            details: TokenDetails::default(),
            stream: false,
            usage: false,
        }
    }

    /// Whether a grammar constrains the completions.
    pub(crate) fn is_constrained(&self) -> bool {
        #[cfg(feature = "grammar")]
        return self.grammar.is_some();
        #[cfg(not(feature = "grammar"))]
        false
    }

    /// The completions of one prompt. Each generates at most `max_tokens` tokens if the request has
    /// no limit. Seeds count up from the seed of the request.
    pub(crate) fn requests(&self, prompt: &[u32], max_tokens: usize) -> Vec<GenerationRequest> {
        let one = |i: usize| GenerationRequest {
            prompt: prompt.to_vec(),
            images: Arc::default(),
            forced: Vec::new(),
            max_tokens: self.max_tokens.unwrap_or(max_tokens),
            stop: self.stop.clone(),
            spelled: Arc::clone(&self.spelled),
            stop_tokens: self.stop_tokens.clone(),
            ignore_eos: self.ignore_eos,
            dry_breakers: self.dry_breakers.clone(),
            sampling: self.sampling.clone(),
            #[cfg(feature = "grammar")]
            grammar: self.grammar.clone(),
            thoughts: None,
            seed: self.seed.wrapping_add(i as u64),
            top_logprobs: self.top_logprobs,
            details: self.details,
        };
        (0..self.n).map(one).collect()
    }
}

/// Checks the number of stop strings of a field.
///
/// # Errors
/// 400 if there are too many.
pub(crate) fn checked_stops(field: &str, stop: Vec<String>) -> Result<Vec<String>, ApiError> {
    match stop.len() > MAX_STOPS {
        true => Err(ApiError::bad_request(format!(
            "field `{field}` has {} strings; at most {MAX_STOPS} are supported",
            stop.len()
        ))
        .with_param(field)),
        false => Ok(stop),
    }
}

/// A seed for requests that have none. The standard library seeds hash maps from the system's random
/// source.
fn random_seed() -> u64 {
    RandomState::new().hash_one(0u8) >> 32
}

/// A count of tokens that may exceed the address space.
pub(crate) fn clamped(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}
