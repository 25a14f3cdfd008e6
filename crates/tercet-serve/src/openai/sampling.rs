//! What both completion routes say about how a text is written.

use std::hash::{BuildHasher, RandomState};

use crate::error::Refusal;
use crate::fields::{Fields, neutral_fields};
use crate::language::{Choice, Request};

/// Stop strings at most.
const MOST_STOPS: usize = 16;

/// How a text is written and answered.
pub(crate) struct Wanted {
    pub(crate) max_tokens: Option<usize>,
    pub(crate) stop: Vec<String>,
    pub(crate) choice: Choice,
    pub(crate) seed: u64,
    pub(crate) stream: bool,
    /// Whether a stream ends with the numbers of tokens.
    pub(crate) usage: bool,
}

impl Wanted {
    /// Takes all fields that are left.
    pub(crate) fn take(mut fields: Fields) -> Result<Wanted, Refusal> {
        let new_name = fields.count("max_completion_tokens")?;
        let max_tokens = fields.count("max_tokens")?.or(new_name);
        let stop = fields.texts("stop")?;
        if stop.len() > MOST_STOPS {
            return Err(Refusal::bad(format!(
                "field `stop` has {} strings; at most {MOST_STOPS} are possible",
                stop.len()
            )));
        }
        let choice = Choice {
            temperature: fields.number("temperature", 0.0, 2.0)?.unwrap_or(1.0),
            top_p: fields.number("top_p", 0.0, 1.0)?.unwrap_or(1.0),
            top_k: fields.count("top_k")?.map_or(0, clamped),
        };
        let seed = fields.count("seed")?;
        let stream = fields.truth("stream")?.unwrap_or(false);
        let usage = match fields.take("stream_options") {
            None => false,
            Some(value) => {
                let mut inner = Fields::of(value, "field `stream_options`")?;
                let usage = inner.truth("include_usage")?.unwrap_or(false);
                inner.neutral(&[("include_obfuscation", &[])])?;
                inner.finish()?;
                usage
            }
        };
        let table = neutral_fields();
        let table: Vec<_> = table
            .iter()
            .map(|(name, values)| (*name, values.as_slice()))
            .collect();
        fields.neutral(&table)?;
        fields.finish()?;
        // The keys of a hash map come from the system's randomness.
        let drawn = || RandomState::new().hash_one(0u8) >> 32;
        Ok(Wanted {
            max_tokens: max_tokens.map(clamped),
            stop,
            choice,
            seed: seed.unwrap_or_else(drawn),
            stream,
            usage,
        })
    }

    /// The text to write after a prompt; at most `max_tokens` where the client does not say.
    pub(crate) fn request(&self, prompt: Vec<u32>, max_tokens: usize) -> Request {
        Request {
            prompt,
            max_tokens: self.max_tokens.unwrap_or(max_tokens),
            stop: self.stop.clone(),
            choice: self.choice,
            seed: self.seed,
        }
    }
}

fn clamped(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}
