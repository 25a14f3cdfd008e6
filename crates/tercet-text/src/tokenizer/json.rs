//! Checks of a `tokenizer.json` before the `tokenizers` crate reads it. The crate panics on some
//! forms of damage, for example a syntax error inside `"decoder"`, a `"precompiled_charsmap"` that
//! does not decode, or a template with an undefined special token. With other damaged files, the
//! crate would take hours or exhaust memory.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::TokenizerError;
use super::charsmap::CharsMap;
use tercet_files::clip;

/// # Errors
/// [`TokenizerError::NotJson`] with the position of a syntax error; [`TokenizerError::BadJson`];
/// [`TokenizerError::BadCharsMap`].
pub(super) fn check(json: &[u8]) -> Result<(), TokenizerError> {
    let syntax: Result<SkippedJson, _> = serde_json::from_slice(json);
    syntax.map_err(|source| TokenizerError::NotJson {
        line: source.line(),
        column: source.column(),
        source,
    })?;
    let outline: Result<TokenizerOutline, _> = serde_json::from_slice(json);
    let outline = outline.map_err(|e| TokenizerError::BadJson { source: e.into() })?;
    check_normalizer(&outline.normalizer)?;
    let TokenizerOutline {
        normalizer,
        pre_tokenizer,
        post_processor,
        decoder,
        added_tokens,
        model,
    } = &outline;
    check_growth("normalizer", normalizer)?;
    check_growth("decoder", decoder)?;
    check_parts("normalizer", normalizer)?;
    check_parts("pre_tokenizer", pre_tokenizer)?;
    check_parts("decoder", decoder)?;
    check_parts("post_processor", post_processor)?;
    let added = added_tokens.iter().flatten();
    check_added(added.map(|token| token.content.as_str()))?;
    let prefix = model.as_ref().map(|model| &model.continuing_subword_prefix);
    match prefix.and_then(Value::as_str) {
        None | Some("") => Ok(()),
        Some(prefix) => check_merges(json, prefix),
    }
}

/// The parts of a `tokenizer.json` that are checked.
#[derive(Deserialize)]
struct TokenizerOutline {
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
    #[serde(default)]
    decoder: Value,
    #[serde(default)]
    added_tokens: Option<Vec<AddedTokenOutline>>,
    #[serde(default)]
    model: Option<ModelOutline>,
}

#[derive(Deserialize)]
struct AddedTokenOutline {
    #[serde(default)]
    content: String,
}

/// The model without its vocabulary and merges, which are large.
#[derive(Deserialize)]
struct ModelOutline {
    #[serde(default)]
    continuing_subword_prefix: Value,
}

/// The merges, read only if they have to be checked.
#[derive(Deserialize)]
struct MergesOutline {
    model: ModelMerges,
}

#[derive(Deserialize)]
struct ModelMerges {
    #[serde(default)]
    merges: Value,
}

/// Maximum work of the search for added tokens: the sum of the squares of their lengths in bytes. A
/// vocabulary of 150,000 added tokens needs less than a tenth of this limit.
const MAX_ADDED_WORK: u64 = 500_000_000;

/// Checks that the search for added tokens can be prepared in about a second. The time of the
/// preparation grows with the square of a token's length.
pub(super) fn check_added<'a>(
    tokens: impl Iterator<Item = &'a str> + Clone,
) -> Result<(), TokenizerError> {
    let lengths = tokens.map(str::len);
    let squares = lengths.clone().map(|bytes| (bytes as u64).pow(2));
    if squares.fold(0u64, u64::saturating_add) <= MAX_ADDED_WORK {
        return Ok(());
    }
    let (count, longest) = (lengths.clone().count(), lengths.max());
    Err(unusable(
        "added_tokens",
        format!(
            "the {count} tokens are too long; the longest has {} bytes",
            longest.unwrap_or_default()
        ),
    ))
}

/// Checks that every merge's second part is longer than the prefix, which the crate removes from
/// it.
fn check_merges(json: &[u8], prefix: &str) -> Result<(), TokenizerError> {
    let outline: Result<MergesOutline, _> = serde_json::from_slice(json);
    let outline = outline.map_err(|e| TokenizerError::BadJson { source: e.into() })?;
    for merge in outline.model.merges.as_array().into_iter().flatten() {
        let second = match merge {
            Value::String(line) => line.split_once(' ').map(|(_, second)| second),
            Value::Array(parts) => parts.get(1).and_then(Value::as_str),
            _ => None,
        };
        if second.is_some_and(|second| !second.is_char_boundary(prefix.len())) {
            return Err(unusable(
                "model.merges",
                format!(
                    "the second part of {} is shorter than `continuing_subword_prefix`, {}",
                    clip(&merge.to_string()),
                    clip(prefix)
                ),
            ));
        }
    }
    Ok(())
}

/// Maximum factor by which all replacements of a normalizer or decoder together may lengthen a
/// text.
const MAX_GROWTH: u64 = 1 << 14;

/// Checks that the replacements in a row do not lengthen a text too much: thirty that each double a
/// letter turn it into a gigabyte.
fn check_growth(part: &'static str, value: &Value) -> Result<(), TokenizerError> {
    match growth(value) {
        0..=MAX_GROWTH => Ok(()),
        factor => Err(unusable(
            part,
            format!(
                "its replacements lengthen a text up to {factor} times; at most {MAX_GROWTH} are supported"
            ),
        )),
    }
}

/// An upper bound of the factor by which a normalizer or decoder, including nested ones, lengthens
/// a text.
fn growth(value: &Value) -> u64 {
    let inner: u64 = match value {
        Value::Array(items) => items.iter().map(growth).fold(1, u64::saturating_mul),
        Value::Object(fields) => fields.values().map(growth).fold(1, u64::saturating_mul),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => return 1,
    };
    if value.get("type").and_then(Value::as_str) != Some("Replace") {
        return inner;
    }
    let content = value.get("content").and_then(Value::as_str);
    let content = content.map_or(0, str::len);
    // A regular expression may match a single byte.
    let pattern = value
        .get("pattern")
        .and_then(|pattern| pattern.get("String"));
    let pattern = pattern.and_then(Value::as_str).map_or(1, str::len);
    inner.saturating_mul(content.div_ceil(pattern.max(1)).max(1) as u64)
}

/// Checks the settings of a part, and of parts inside it.
fn check_parts(part: &'static str, value: &Value) -> Result<(), TokenizerError> {
    match value {
        Value::Array(items) => items.iter().try_for_each(|item| check_parts(part, item)),
        Value::Object(fields) => {
            let kind = fields.get("type").and_then(Value::as_str);
            match kind {
                Some("FixedLength") if fields.get("length").and_then(Value::as_u64) == Some(0) => {
                    return Err(unusable(part, "the length of FixedLength is 0".to_string()));
                }
                Some("Replace") => {
                    let pattern = fields.get("pattern").and_then(|p| p.get("String"));
                    if pattern.and_then(Value::as_str) == Some("") {
                        return Err(unusable(part, "Replace replaces an empty text".to_string()));
                    }
                }
                Some("TemplateProcessing") => check_template(part, fields)?,
                _ => {}
            }
            fields
                .values()
                .try_for_each(|value| check_parts(part, value))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
    }
}

/// Checks that a template has each text at most once, and only special tokens that it defines.
fn check_template(part: &'static str, fields: &Map<String, Value>) -> Result<(), TokenizerError> {
    let defined = fields.get("special_tokens").and_then(Value::as_object);
    for template in ["single", "pair"] {
        let pieces = fields.get(template).and_then(Value::as_array);
        let (mut seen_a, mut seen_b) = (false, false);
        for piece in pieces.into_iter().flatten() {
            let id = |kind: &str| piece.get(kind)?.get("id")?.as_str();
            let again = match id("Sequence") {
                Some("A") => std::mem::replace(&mut seen_a, true),
                Some("B") => std::mem::replace(&mut seen_b, true),
                Some(_) | None => false,
            };
            if again {
                let reason = format!("the template `{template}` repeats a text");
                return Err(unusable(part, reason));
            }
            if let Some(id) = id("SpecialToken")
                && !defined.is_some_and(|defined| defined.contains_key(id))
            {
                let reason = format!(
                    "the template `{template}` has the special token `{}`, which `special_tokens` does not define",
                    clip(id)
                );
                return Err(unusable(part, reason));
            }
        }
    }
    Ok(())
}

fn unusable(part: &'static str, reason: String) -> TokenizerError {
    TokenizerError::BadPart { part, reason }
}

/// Skips any JSON value with full validation of texts, numbers and depth, but without storing it,
/// because vocabularies are large. `serde::de::IgnoredAny` would accept invalid text and any depth.
struct SkippedJson;

impl<'de> Deserialize<'de> for SkippedJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<SkippedJson, D::Error> {
        deserializer.deserialize_any(SkippedJson)
    }
}

impl<'de> Visitor<'de> for SkippedJson {
    type Value = SkippedJson;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }
    fn visit_bool<E>(self, _: bool) -> Result<SkippedJson, E> {
        Ok(SkippedJson)
    }
    fn visit_i64<E>(self, _: i64) -> Result<SkippedJson, E> {
        Ok(SkippedJson)
    }
    fn visit_u64<E>(self, _: u64) -> Result<SkippedJson, E> {
        Ok(SkippedJson)
    }
    fn visit_f64<E>(self, _: f64) -> Result<SkippedJson, E> {
        Ok(SkippedJson)
    }
    fn visit_str<E>(self, _: &str) -> Result<SkippedJson, E> {
        Ok(SkippedJson)
    }
    fn visit_unit<E>(self) -> Result<SkippedJson, E> {
        Ok(SkippedJson)
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<SkippedJson, A::Error> {
        while seq.next_element::<SkippedJson>()?.is_some() {}
        Ok(SkippedJson)
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<SkippedJson, A::Error> {
        while map.next_entry::<SkippedJson, SkippedJson>()?.is_some() {}
        Ok(SkippedJson)
    }
}

/// Checks every precompiled normalizer, including those in nested sequences.
fn check_normalizer(normalizer: &Value) -> Result<(), TokenizerError> {
    match normalizer {
        Value::Object(fields) => {
            let table = fields.get("precompiled_charsmap");
            let is_table = fields.get("type").and_then(Value::as_str) == Some("Precompiled");
            if table.is_none() && !is_table {
                return fields.values().try_for_each(check_normalizer);
            }
            let checked = match table.and_then(Value::as_str) {
                Some(text) => base64(text.as_bytes())
                    .ok_or("it is not base64")
                    .and_then(|bytes| CharsMap::parse(&bytes).map(drop)),
                None => Err("it is missing, or not a string"),
            };
            checked.map_err(|reason| TokenizerError::BadCharsMap { reason })
        }
        Value::Array(items) => items.iter().try_for_each(check_normalizer),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
    }
}

/// Decodes standard base64 with padding.
fn base64(text: &[u8]) -> Option<Vec<u8>> {
    let end = text.len() - text.iter().rev().take_while(|c| **c == b'=').count();
    if !text.len().is_multiple_of(4) || text.len() - end > 2 {
        return None;
    }
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut held) = (0u32, 0);
    for c in &text[..end] {
        let six = match c {
            b'A'..=b'Z' => c - b'A',
            b'a'..=b'z' => c - b'a' + 26,
            b'0'..=b'9' => c - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(six);
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held) as u8);
            bits &= (1 << held) - 1;
        }
    }
    // Unused bits must be zero, as in the crate's decoder.
    (bits == 0).then_some(bytes)
}
