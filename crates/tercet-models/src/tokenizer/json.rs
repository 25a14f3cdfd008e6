//! Checks of a `tokenizer.json` before the `tokenizers` crate reads it. The crate panics on two
//! forms of damage: a syntax error inside `"decoder"`, and a `"precompiled_charsmap"` that does not
//! decode.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use super::TokenizerError;
use super::charsmap::CharsMap;

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
    check_normalizer(&outline.normalizer)
}

#[derive(Deserialize)]
struct TokenizerOutline {
    #[serde(default)]
    normalizer: Value,
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
