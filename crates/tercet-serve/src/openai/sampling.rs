//! What both completion routes say about how a text is written.

use std::hash::{BuildHasher, RandomState};

use serde_json::Value;
use tercet_models::SamplingOptions;
#[cfg(feature = "grammar")]
use tercet_models::constraint::Grammar;

use super::answer::Form;
use crate::error::Refusal;
use crate::fields::{Fields, neutral_fields, wrong};
use crate::language::Request;

/// Stop strings at most.
const MOST_STOPS: usize = 16;
/// Texts of a prompt at most.
pub(crate) const MOST_TEXTS: usize = 16;
/// The likeliest tokens that are told of each at most.
const MOST_LIKELIEST: usize = 20;
/// Tokens with a bias at most.
const MOST_BIASES: usize = 1024;

/// How a text is written and answered.
pub(crate) struct Wanted {
    pub(crate) max_tokens: Option<usize>,
    pub(crate) stop: Vec<String>,
    pub(crate) sampling: SamplingOptions,
    #[cfg(feature = "grammar")]
    pub(crate) grammar: Option<(&'static str, Grammar)>,
    pub(crate) seed: u64,
    /// Texts for each prompt.
    pub(crate) n: usize,
    /// How many of the likeliest tokens are told beside each token and its probability; nothing of either for none.
    pub(crate) likeliest: Option<usize>,
    pub(crate) stream: bool,
    /// Whether a stream ends with the numbers of tokens.
    pub(crate) usage: bool,
}

impl Wanted {
    /// Takes all fields that are left.
    pub(crate) fn take(mut fields: Fields, form: Form) -> Result<Wanted, Refusal> {
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
        let n = fields.count("n")?.unwrap_or(1);
        let n = usize::try_from(n)
            .ok()
            .filter(|n| (1..=MOST_TEXTS).contains(n));
        let n =
            n.ok_or_else(|| Refusal::bad(format!("field `n` is not from 1 to {MOST_TEXTS}")))?;
        let likeliest = likeliest(&mut fields, form)?;
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
            n,
            likeliest,
            stream,
            usage,
        })
    }

    /// The texts to write after a prompt; of at most `max_tokens` where the client does not say. Each has a seed of its own,
    /// from that of the request on.
    pub(crate) fn requests(&self, prompt: &[u32], max_tokens: usize) -> Vec<Request> {
        let one = |i: usize| Request {
            prompt: prompt.to_vec(),
            max_tokens: self.max_tokens.unwrap_or(max_tokens),
            stop: self.stop.clone(),
            sampling: self.sampling.clone(),
            #[cfg(feature = "grammar")]
            grammar: self.grammar.clone(),
            seed: self.seed.wrapping_add(i as u64),
            likeliest: self.likeliest,
        };
        (0..self.n).map(one).collect()
    }
}

/// `logprobs`: of completions a number of likeliest tokens, of conversations whether, with `top_logprobs` of them.
fn likeliest(fields: &mut Fields, form: Form) -> Result<Option<usize>, Refusal> {
    let number = |name: &str, value: &Value| {
        let number = value.as_u64().and_then(|n| usize::try_from(n).ok());
        let expected = format!("a whole number from 0 to {MOST_LIKELIEST}");
        number
            .filter(|n| *n <= MOST_LIKELIEST)
            .ok_or_else(|| wrong(name, value, &expected))
    };
    match form {
        Form::Completion => match fields.take("logprobs") {
            None | Some(Value::Bool(false)) => Ok(None),
            Some(value) => number("logprobs", &value).map(Some),
        },
        Form::Chat => {
            let wanted = fields.truth("logprobs")?.unwrap_or(false);
            let top = fields.take("top_logprobs").unwrap_or_else(|| 0.into());
            match (wanted, number("top_logprobs", &top)?) {
                (true, top) => Ok(Some(top)),
                (false, 0) => Ok(None),
                (false, _) => {
                    let message = "field `top_logprobs` needs `logprobs` to be true";
                    Err(Refusal::bad(message))
                }
            }
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
fn grammar(fields: &mut Fields) -> Result<Option<(&'static str, Grammar)>, Refusal> {
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
    Ok(grammar.map(|grammar| ("response_format", grammar)))
}

fn clamped(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}
