//! What both completion routes say about how a text is written.

use std::hash::{BuildHasher, RandomState};

use serde_json::Value;
use tercet_models::SamplingOptions;
#[cfg(feature = "grammar")]
use tercet_models::constraint::Grammar;

use crate::error::Refusal;
use crate::fields::{Fields, neutral_fields, wrong};
use crate::language::Request;

/// Stop strings at most.
const MOST_STOPS: usize = 16;
/// Tokens with a bias at most.
const MOST_BIASES: usize = 1024;

/// How a text is written and answered.
pub(crate) struct Wanted {
    pub(crate) max_tokens: Option<usize>,
    pub(crate) stop: Vec<String>,
    pub(crate) sampling: SamplingOptions,
    #[cfg(feature = "grammar")]
    pub(crate) grammar: Option<Grammar>,
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
        let sampling = sampling(&mut fields)?;
        #[cfg(feature = "grammar")]
        let grammar = grammar(&mut fields)?;
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
            sampling,
            #[cfg(feature = "grammar")]
            grammar,
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
            sampling: self.sampling.clone(),
            #[cfg(feature = "grammar")]
            grammar: self.grammar.clone(),
            seed: self.seed,
        }
    }
}

/// How tokens are chosen: OpenAI's fields, and those that other servers have under these names.
fn sampling(fields: &mut Fields) -> Result<SamplingOptions, Refusal> {
    let defaults = SamplingOptions::default();
    let mut number = |name, from, to, or| Ok(fields.number(name, from, to)?.unwrap_or(or));
    Ok(SamplingOptions {
        temperature: number("temperature", 0.0, 2.0, 1.0)?,
        top_p: number("top_p", 0.0, 1.0, 1.0)?,
        min_p: number("min_p", 0.0, 1.0, 0.0)?,
        presence_penalty: number("presence_penalty", -2.0, 2.0, 0.0)?,
        frequency_penalty: number("frequency_penalty", -2.0, 2.0, 0.0)?,
        repetition_penalty: number("repetition_penalty", 0.01, 100.0, 1.0)?,
        top_k: fields.count("top_k")?.map_or(0, clamped),
        logit_bias: biases(fields)?,
        ..defaults
    })
}

/// Biases by token. OpenAI's clients mean by -100 that a token is never chosen, and by 100 that it always is.
fn biases(fields: &mut Fields) -> Result<Vec<(u32, f32)>, Refusal> {
    let expected = "an object of numbers from -100 to 100 by token";
    let map = match fields.take("logit_bias") {
        None => return Ok(Vec::new()),
        Some(Value::Object(map)) => map,
        Some(other) => return Err(wrong("logit_bias", &other, expected)),
    };
    if map.len() > MOST_BIASES {
        return Err(Refusal::bad(format!(
            "field `logit_bias` has {} tokens; at most {MOST_BIASES} are possible",
            map.len()
        )));
    }
    let bias = |(token, bias): (String, Value)| {
        let number = bias.as_f64().filter(|b| (-100.0..=100.0).contains(b));
        match (token.parse(), number) {
            (Ok(token), Some(-100.0)) => Ok((token, f32::NEG_INFINITY)),
            (Ok(token), Some(bias)) => Ok((token, bias as f32)),
            _ => {
                let mut pair = serde_json::Map::new();
                pair.insert(token, bias);
                Err(wrong("logit_bias", &Value::Object(pair), expected))
            }
        }
    };
    map.into_iter().map(bias).collect()
}

/// What the answer has to be: `response_format` of type `text`, `json_object` or `json_schema`.
#[cfg(feature = "grammar")]
fn grammar(fields: &mut Fields) -> Result<Option<Grammar>, Refusal> {
    let Some(value) = fields.take("response_format") else {
        return Ok(None);
    };
    let mut format = Fields::of(value, "field `response_format`")?;
    let kind = format.text("type")?.unwrap_or_default();
    let grammar = match kind.as_str() {
        "text" => None,
        "json_object" => Some(Grammar::json_object()),
        "json_schema" => {
            let mut inner = Fields::of(format.need("json_schema")?, "field `json_schema`")?;
            let schema = inner.need("schema")?;
            // The schema is kept to in any case.
            inner.neutral(&[("name", &[]), ("description", &[]), ("strict", &[])])?;
            inner.finish()?;
            Some(Grammar::JsonSchema(schema))
        }
        _ => {
            let expected = "`text`, `json_object` or `json_schema`";
            return Err(wrong("type", &Value::String(kind), expected));
        }
    };
    format.finish()?;
    Ok(grammar)
}

fn clamped(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}
