//! Generation parameters of both completion routes.

use serde_json::Value;
#[cfg(feature = "grammar")]
use serde_json::json;
#[cfg(feature = "grammar")]
use tercet_models::constraint::Grammar;
use tercet_models::{DryOptions, MirostatOptions, SamplerStep, SamplingOptions};

use super::ignored_fields::{IGNORED, NEUTRAL};
use super::response::CompletionKind;
use crate::conversation::{CompletionParams, MAX_STOPS, checked_stops, clamped};
use crate::error::ApiError;
use crate::fields::{JsonFields, wrong};
use crate::language::TokenDetails;
use crate::request_log::RequestRecord;

/// Maximum number of prompts per request, and of completions per prompt.
pub(crate) const MAX_PROMPTS: usize = 16;
/// Maximum number of top logprobs per token.
pub(crate) const MAX_TOP_LOGPROBS: usize = 20;
/// Maximum number of tokens with a bias.
const MAX_BIASES: usize = 1024;
/// Maximum number of sampling steps.
const MAX_SAMPLERS: usize = 16;

/// Takes all remaining fields of a request.
pub(crate) fn take_params(
    mut fields: JsonFields,
    form: CompletionKind,
    record: &RequestRecord,
) -> Result<CompletionParams, ApiError> {
    // `max_tokens` of -1 permits the whole context, not only the default of completions.
    let mut is_unlimited = false;
    let mut max_tokens = None;
    for name in ["max_completion_tokens", "n_predict", "max_tokens"] {
        let given = fields.take(name);
        is_unlimited |= given.as_ref().and_then(Value::as_i64) == Some(-1);
        fields.put(name, given);
        max_tokens = fields.count_or_minus_one(name)?.or(max_tokens);
    }
    let max_tokens = max_tokens.or(is_unlimited.then_some(u64::MAX));
    let stop = checked_stops("stop", fields.texts("stop")?)?;
    let sampling = sampling(&mut fields)?;
    #[cfg(feature = "grammar")]
    let grammar = grammar(&mut fields)?;
    let seed = fields.count_or_minus_one("seed")?;
    let stop_tokens = fields.token_ids("stop_token_ids")?;
    if stop_tokens.len() > MAX_STOPS {
        return Err(ApiError::bad_request(format!(
            "field `stop_token_ids` has {} tokens; at most {MAX_STOPS} are supported",
            stop_tokens.len()
        )));
    }
    let ignore_eos = fields.truth("ignore_eos")?.unwrap_or(false);
    let dry_breakers = dry_breakers(&mut fields)?;
    let n = fields.count("n")?.unwrap_or(1);
    let n = usize::try_from(n)
        .ok()
        .filter(|n| (1..=MAX_PROMPTS).contains(n));
    let n = n.ok_or_else(|| {
        ApiError::bad_request(format!(
            "field `n` is out of range; expected 1 to {MAX_PROMPTS}"
        ))
    })?;
    let likeliest = parse_top_logprobs(&mut fields, form)?;
    let stream = fields.truth("stream")?.unwrap_or(false);
    let details = TokenDetails {
        ids: fields.truth("return_token_ids")?.unwrap_or(false),
        logits: fields.truth("logits")?.unwrap_or(false),
    };
    if stream && details.logits {
        let message = "field `logits` cannot be combined with `stream`";
        return Err(ApiError::bad_request(message));
    }
    let usage = match fields.take("stream_options") {
        None => false,
        Some(value) => {
            let mut inner = JsonFields::from_value(value, "field `stream_options`")?;
            let usage = inner.truth("include_usage")?.unwrap_or(false);
            inner.ignore(
                &["include_obfuscation", "continuous_usage_stats"],
                (record, "stream_options."),
            );
            inner.finish()?;
            usage
        }
    };
    check_others(&mut fields, (form, n), record)?;
    fields.finish()?;
    let mut params = CompletionParams {
        max_tokens: max_tokens.map(clamped),
        stop,
        stop_tokens,
        ignore_eos,
        dry_breakers,
        sampling,
        #[cfg(feature = "grammar")]
        grammar,
        n,
        top_logprobs: likeliest,
        details,
        stream,
        usage,
        ..CompletionParams::new()
    };
    params.seed = seed.unwrap_or(params.seed);
    Ok(params)
}

/// Takes all remaining fields of a request whose prompt is no conversation.
pub(crate) fn take_text_params(
    fields: JsonFields,
    record: &RequestRecord,
) -> Result<CompletionParams, ApiError> {
    take_params(fields, CompletionKind::Completion, record)
}

/// Names of the maximum number of tokens of thoughts, in this and other servers.
const THOUGHT_LIMITS: [&str; 4] = [
    "thinking_budget",
    "thinking_budget_tokens",
    "thinking_token_budget",
    "reasoning_budget",
];

/// Takes the maximum number of tokens of the thoughts before an answer; -1 stands for none.
pub(crate) fn take_thought_limit(fields: &mut JsonFields) -> Result<Option<usize>, ApiError> {
    let mut limit = None;
    for name in THOUGHT_LIMITS {
        limit = fields.count_or_minus_one(name)?.map(clamped).or(limit);
    }
    Ok(limit)
}

/// Takes the sampling options, `seed` and `grammar`, which other routes have as extensions.
pub(crate) fn take_extensions(
    fields: &mut JsonFields,
    params: &mut CompletionParams,
) -> Result<(), ApiError> {
    params.sampling = sampling(fields)?;
    params.thought_tokens = take_thought_limit(fields)?.or(params.thought_tokens);
    params.seed = fields.count_or_minus_one("seed")?.unwrap_or(params.seed);
    #[cfg(feature = "grammar")]
    if let Some(grammar) = grammar_text(fields)? {
        if let Some((field, _)) = params.grammar {
            return Err(ApiError::bad_request(format!(
                "field `grammar` cannot be combined with `{field}`"
            )));
        }
        params.grammar = Some(grammar);
    }
    Ok(())
}

/// Takes the fields that the server does not implement.
///
/// # Errors
/// 400 with the name of a field whose value would change the response.
fn check_others(
    fields: &mut JsonFields,
    (form, n): (CompletionKind, usize),
    record: &RequestRecord,
) -> Result<(), ApiError> {
    // Of `best_of` completions the best `n` are returned: all of them.
    let best_of = fields.take("best_of");
    if best_of.as_ref().and_then(Value::as_u64) != Some(n as u64) {
        fields.put("best_of", best_of);
    }
    fields.neutral_json(&NEUTRAL)?;
    // Chat templates have the special tokens; prompts get them.
    let adds = Value::Bool(form == CompletionKind::Completion);
    fields.neutral(&[("add_special_tokens", &[adds])])?;
    fields.ignore(&IGNORED, (record, ""));
    Ok(())
}

/// Parses `logprobs`. For completions, `logprobs` is the number of top logprobs. For chat,
/// `logprobs` is a flag, and `top_logprobs` is the number.
fn parse_top_logprobs(
    fields: &mut JsonFields,
    form: CompletionKind,
) -> Result<Option<usize>, ApiError> {
    let number = |name: &str, value: &Value| {
        let number = value.as_u64().and_then(|n| usize::try_from(n).ok());
        let expected = format!("a whole number from 0 to {MAX_TOP_LOGPROBS}");
        number
            .filter(|n| *n <= MAX_TOP_LOGPROBS)
            .ok_or_else(|| wrong(name, value, &expected))
    };
    match form {
        CompletionKind::Completion => match fields.take("logprobs") {
            None | Some(Value::Bool(false)) => Ok(None),
            Some(value) => number("logprobs", &value).map(Some),
        },
        CompletionKind::Chat => {
            let wanted = fields.truth("logprobs")?.unwrap_or(false);
            let top = fields.take("top_logprobs").unwrap_or_else(|| 0.into());
            match (wanted, number("top_logprobs", &top)?) {
                (true, top) => Ok(Some(top)),
                (false, 0) => Ok(None),
                (false, _) => {
                    let message = "field `top_logprobs` requires `logprobs` to be true";
                    Err(ApiError::bad_request(message))
                }
            }
        }
    }
}

/// Parses sampling options: OpenAI's fields, and common extensions of other servers.
fn sampling(fields: &mut JsonFields) -> Result<SamplingOptions, ApiError> {
    let defaults = SamplingOptions::default();
    let penalty = fields.number("repeat_penalty", 0.01, 100.0)?;
    let typical = fields.number("typ_p", 0.0, 1.0)?;
    let window = last_tokens(fields, "repeat_last_n")?;
    let dry_window = last_tokens(fields, "dry_penalty_last_n")?;
    let mut number = |name, from, to, or| Ok(fields.number(name, from, to)?.unwrap_or(or));
    let repetition_penalty = number("repetition_penalty", 0.01, 100.0, penalty.unwrap_or(1.0))?;
    let dry = DryOptions {
        multiplier: number("dry_multiplier", 0.0, 100.0, 0.0)?,
        base: number("dry_base", 1.0, 100.0, defaults.dry.base)?,
        window: dry_window.unwrap_or(usize::MAX),
        ..defaults.dry.clone()
    };
    let (tau, eta) = (
        number("mirostat_tau", 0.0, 100.0, MirostatOptions::V1.tau)?,
        number("mirostat_eta", 0.0, 1.0, MirostatOptions::V1.eta)?,
    );
    let sampling = SamplingOptions {
        temperature: number("temperature", 0.0, 2.0, 1.0)?,
        top_p: number("top_p", 0.0, 1.0, 1.0)?,
        min_p: number("min_p", 0.0, 1.0, 0.0)?,
        presence_penalty: number("presence_penalty", -2.0, 2.0, 0.0)?,
        frequency_penalty: number("frequency_penalty", -2.0, 2.0, 0.0)?,
        repetition_penalty,
        repetition_window: window.unwrap_or(usize::MAX),
        typical_p: number("typical_p", 0.0, 1.0, typical.unwrap_or(1.0))?,
        // Accept -1 for `top_n_sigma`, with which other servers disable it.
        top_n_sigma: number("top_n_sigma", -1.0, 100.0, 0.0)?.max(0.0),
        xtc_probability: number("xtc_probability", 0.0, 1.0, 0.0)?,
        xtc_threshold: number("xtc_threshold", 0.0, 1.0, defaults.xtc_threshold)?,
        dynatemp_range: number("dynatemp_range", 0.0, 10.0, 0.0)?,
        dynatemp_exponent: number("dynatemp_exponent", 0.0, 10.0, 1.0)?,
        ..defaults
    };
    let mirostat = match fields.count("mirostat")? {
        None | Some(0) => None,
        Some(1) => Some(MirostatOptions::V1),
        Some(2) => Some(MirostatOptions::V2),
        Some(other) => return Err(wrong("mirostat", &other.into(), "0, 1 or 2")),
    };
    let allowed_length = fields.count("dry_allowed_length")?.map(clamped);
    let allowed_length = allowed_length.unwrap_or(dry.allowed_length);
    Ok(SamplingOptions {
        dry: DryOptions {
            allowed_length,
            ..dry
        },
        mirostat: mirostat.map(|version| MirostatOptions {
            tau,
            eta,
            ..version
        }),
        top_k: fields.count_or_minus_one("top_k")?.map_or(0, clamped),
        min_tokens: fields.count("min_tokens")?.map_or(0, clamped),
        samplers: samplers(fields)?.unwrap_or(sampling.samplers),
        logit_bias: biases(fields)?,
        ..sampling
    })
}

/// Parses a number of last tokens; -1 stands for all.
fn last_tokens(fields: &mut JsonFields, name: &str) -> Result<Option<usize>, ApiError> {
    Ok(fields.count_or_minus_one(name)?.map(clamped))
}

/// Parses the order of the samplers: a list of names, or names with semicolons between them.
fn samplers(fields: &mut JsonFields) -> Result<Option<Vec<SamplerStep>>, ApiError> {
    let mut names = fields.texts("samplers")?;
    // Editors name this step of llama.cpp's, which only merges tokens with a common beginning.
    names.retain(|name| name != "infill");
    if names.is_empty() {
        return Ok(None);
    }
    let steps = SamplerStep::parse_all(&names.join(";"));
    let steps = steps.map_err(|e| ApiError::bad_request(format!("field `samplers`: {e}")))?;
    match steps.len() > MAX_SAMPLERS {
        true => Err(ApiError::bad_request(format!(
            "field `samplers` has {} steps; at most {MAX_SAMPLERS} are supported",
            steps.len()
        ))),
        false => Ok(Some(steps)),
    }
}

fn dry_breakers(fields: &mut JsonFields) -> Result<Option<Vec<String>>, ApiError> {
    let value = fields.take("dry_sequence_breakers");
    let is_given = value.is_some();
    fields.put("dry_sequence_breakers", value);
    let breakers = fields.texts("dry_sequence_breakers")?;
    match breakers.len() > MAX_STOPS {
        true => Err(ApiError::bad_request(format!(
            "field `dry_sequence_breakers` has {} strings; at most {MAX_STOPS} are supported",
            breakers.len()
        ))),
        false => Ok(is_given.then_some(breakers)),
    }
}

/// Parses biases by token id. As in OpenAI's API, -100 bans a token and 100 forces it.
fn biases(fields: &mut JsonFields) -> Result<Vec<(u32, f32)>, ApiError> {
    let expected = "an object that maps token ids to numbers from -100 to 100";
    let map = match fields.take("logit_bias") {
        None => return Ok(Vec::new()),
        Some(Value::Object(map)) => map,
        Some(other) => return Err(wrong("logit_bias", &other, expected)),
    };
    if map.len() > MAX_BIASES {
        return Err(ApiError::bad_request(format!(
            "field `logit_bias` has {} tokens; at most {MAX_BIASES} are supported",
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

/// Parses `response_format` or `grammar`, which constrain the answer.
#[cfg(feature = "grammar")]
fn grammar(fields: &mut JsonFields) -> Result<Option<(&'static str, Grammar)>, ApiError> {
    let format = response_format(fields)?;
    match (format, grammar_text(fields)?) {
        (format, None) => Ok(format),
        (None, grammar) => Ok(grammar),
        (Some(_), Some(_)) => {
            let message = "field `grammar` cannot be combined with `response_format`";
            Err(ApiError::bad_request(message))
        }
    }
}

#[cfg(feature = "grammar")]
fn grammar_text(fields: &mut JsonFields) -> Result<Option<(&'static str, Grammar)>, ApiError> {
    // Clients of llama.cpp send an empty text for no grammar.
    let Some(text) = fields.text("grammar")?.filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let grammar = Grammar::from_text(&text);
    let grammar = grammar.map_err(|e| ApiError::bad_request(format!("field `grammar`: {e}")))?;
    Ok(Some(("grammar", grammar)))
}

/// Parses the type of `response_format`: `text`, `json_object` or `json_schema`.
#[cfg(feature = "grammar")]
fn response_format(fields: &mut JsonFields) -> Result<Option<(&'static str, Grammar)>, ApiError> {
    let Some(value) = fields.take("response_format") else {
        return Ok(None);
    };
    let mut format = JsonFields::from_value(value, "field `response_format`")?;
    let kind = format.text("type")?.unwrap_or_default();
    let grammar = match kind.as_str() {
        "text" => None,
        // llama.cpp and others take a schema here, too.
        "json_object" => Some(match format.take("schema") {
            None => Grammar::json_object(),
            Some(schema) => Grammar::LenientJsonSchema(schema),
        }),
        "json_schema" => {
            // Some clients send the schema without the object around it.
            let inner = match format.take("schema") {
                Some(schema) => json!({"schema": schema}),
                None => format.need("json_schema")?,
            };
            let mut inner = JsonFields::from_value(inner, "field `json_schema`")?;
            let schema = inner.need("schema")?;
            // Without `strict`, the answer need not match what cannot be constrained.
            let is_strict = inner.truth("strict")?.unwrap_or(false);
            for known in ["name", "description"] {
                inner.take(known);
            }
            inner.finish()?;
            Some(match is_strict {
                true => Grammar::JsonSchema(schema),
                false => Grammar::LenientJsonSchema(schema),
            })
        }
        _ => {
            let expected = "`text`, `json_object` or `json_schema`";
            return Err(wrong("type", &Value::String(kind), expected));
        }
    };
    format.finish()?;
    Ok(grammar.map(|grammar| ("response_format", grammar)))
}
