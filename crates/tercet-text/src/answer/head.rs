//! The head of a call: its name, and the start of its arguments.

use serde_json::value::RawValue;

use super::format::{ArgumentsForm, CallBody, CallFormat, JsonCall};
use super::marker::{MarkerMatch, blanks};

/// Maximum nesting of the object of a call.
const MAX_WRAPPERS: usize = 2;

/// The start of a text, read as the head of a call.
#[derive(Debug)]
pub(super) enum HeadMatch {
    /// More text decides.
    Partial,
    No,
    Call(CallHead),
}

/// The head of a call.
#[derive(Debug)]
pub(super) struct CallHead {
    pub(super) name: String,
    pub(super) id: Option<String>,
    /// The bytes of the head.
    pub(super) bytes: usize,
    pub(super) arguments: ArgumentsStart,
}

/// What follows a head.
#[derive(Debug)]
pub(super) enum ArgumentsStart {
    /// An object, in this many objects.
    Object {
        depth: usize,
    },
    /// A string with an object in it; the head includes its quote.
    Text {
        depth: usize,
    },
    /// The arguments were before the name; the rest of this many objects follows.
    Done {
        json: String,
        depth: usize,
    },
    Literals,
    Pairs,
}

/// Reads the head of a call after its opening marker. `is_bare` if there was none.
pub(super) fn read_head(
    format: &CallFormat,
    text: &str,
    is_bare: bool,
    is_tool: &dyn Fn(&str) -> bool,
) -> HeadMatch {
    match &format.body {
        CallBody::Json(keys) => json_head(keys, text, is_bare, is_tool),
        CallBody::Named {
            after,
            id_prefix,
            arguments,
        } => {
            let begin = blanks(text);
            let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
            let inner = &text[begin..];
            let Some(len) = inner.find(|c| !is_name(c)) else {
                return HeadMatch::Partial;
            };
            let name = &inner[..len];
            if !is_tool(name) {
                return HeadMatch::No;
            }
            let at = begin + len;
            let blank = blanks(&text[at..]);
            let (found, id) = after.matches_with_id(&text[at + blank..]);
            let at = match found {
                MarkerMatch::Yes(bytes) => at + blank + bytes,
                MarkerMatch::Partial => return HeadMatch::Partial,
                MarkerMatch::No => return HeadMatch::No,
            };
            let rest = &text[at..];
            let blank = blanks(rest);
            let begun = &rest[blank..];
            let (bytes, arguments) = match arguments {
                ArgumentsForm::Json if begun.is_empty() => return HeadMatch::Partial,
                ArgumentsForm::Json if begun.starts_with('{') => {
                    (at + blank, ArgumentsStart::Object { depth: 0 })
                }
                ArgumentsForm::Json => return HeadMatch::No,
                ArgumentsForm::Literals { .. } => (at, ArgumentsStart::Literals),
                ArgumentsForm::Pairs(markers) => {
                    let mut next = vec![markers.open.matches(begun)];
                    next.extend(format.closings().iter().map(|marker| marker.matches(begun)));
                    let is_yes = |found: &MarkerMatch| matches!(found, MarkerMatch::Yes(_));
                    match next.iter().any(is_yes) {
                        true => (at, ArgumentsStart::Pairs),
                        false if next.contains(&MarkerMatch::Partial) => return HeadMatch::Partial,
                        false => return HeadMatch::No,
                    }
                }
            };
            let written = || text[begin..at].split(['<', '[', '{']).next();
            let id = match id_prefix {
                Some(prefix) => written().map(|id| format!("{prefix}{}", id.trim_end())),
                None => id.map(str::to_string),
            };
            HeadMatch::Call(CallHead {
                name: name.to_string(),
                id,
                bytes,
                arguments,
            })
        }
    }
}

/// The start of a JSON value.
enum JsonStart<T> {
    Partial,
    No,
    /// A value, and its end.
    Value(T, usize),
}

/// Reads a whole JSON value.
fn json_value(text: &str, at: usize) -> JsonStart<&str> {
    let mut values = serde_json::Deserializer::from_str(&text[at..]).into_iter::<&RawValue>();
    match values.next() {
        Some(Ok(raw)) => {
            let end = at + values.byte_offset();
            match end < text.len() {
                true => JsonStart::Value(raw.get(), end),
                // A number may have more digits.
                false => JsonStart::Partial,
            }
        }
        Some(Err(e)) if e.is_eof() => JsonStart::Partial,
        None => JsonStart::Partial,
        Some(Err(_)) => JsonStart::No,
    }
}

/// Reads a whole JSON string.
fn json_text(text: &str, at: usize) -> JsonStart<String> {
    if !text[at..].starts_with('"') {
        return match text[at..].is_empty() {
            true => JsonStart::Partial,
            false => JsonStart::No,
        };
    }
    let mut values = serde_json::Deserializer::from_str(&text[at..]).into_iter::<String>();
    match values.next() {
        Some(Ok(value)) => JsonStart::Value(value, at + values.byte_offset()),
        Some(Err(e)) if e.is_eof() => JsonStart::Partial,
        None => JsonStart::Partial,
        Some(Err(_)) => JsonStart::No,
    }
}

macro_rules! value {
    ($start:expr) => {
        match $start {
            JsonStart::Partial => return HeadMatch::Partial,
            JsonStart::No => return HeadMatch::No,
            JsonStart::Value(value, end) => (value, end),
        }
    };
}

/// Reads `{"name": ..., "arguments":`, with other keys between them.
fn json_head(
    keys: &JsonCall,
    text: &str,
    is_bare: bool,
    is_tool: &dyn Fn(&str) -> bool,
) -> HeadMatch {
    let mut at = blanks(text);
    if at == text.len() {
        return HeadMatch::Partial;
    }
    if !text[at..].starts_with('{') {
        return HeadMatch::No;
    }
    at += 1;
    let mut depth = 1;
    let (mut name, mut id, mut before) = (None, None, None);
    loop {
        at += blanks(&text[at..]);
        let (key, end) = value!(json_text(text, at));
        at = end + blanks(&text[end..]);
        match text[at..].chars().next() {
            None => return HeadMatch::Partial,
            Some(':') => at += 1,
            Some(_) => return HeadMatch::No,
        }
        at += blanks(&text[at..]);
        let is_arguments = key == keys.arguments || key == "arguments" || key == "parameters";
        let is_id = Some(&key) == keys.id.as_ref() || key == "id" || key == "tool_call_id";
        let is_wrapper = Some(&key) == keys.wrapper.as_ref() || key == "function";
        if key == keys.name || key == "name" {
            let (found, end) = value!(json_text(text, at));
            if !is_tool(&found) {
                return HeadMatch::No;
            }
            name = Some(found);
            at = end;
        } else if is_arguments && name.is_some() {
            let arguments = match text[at..].chars().next() {
                None => return HeadMatch::Partial,
                Some('{') => ArgumentsStart::Object { depth },
                Some('"') => {
                    at += 1;
                    ArgumentsStart::Text { depth }
                }
                Some('n') => {
                    let (_, end) = value!(json_value(text, at));
                    at = end;
                    let json = "{}".to_string();
                    ArgumentsStart::Done { json, depth }
                }
                Some(_) => return HeadMatch::No,
            };
            let name = name.unwrap_or_default();
            return HeadMatch::Call(CallHead {
                name,
                id,
                bytes: at,
                arguments,
            });
        } else if is_wrapper && depth < MAX_WRAPPERS && text[at..].starts_with('{') {
            depth += 1;
            at += 1;
            continue;
        } else if is_id {
            let (value, end) = value!(json_value(text, at));
            id = serde_json::from_str::<String>(value).ok();
            at = end;
        } else if is_bare && !is_arguments && key != "type" {
            // Some other object.
            return HeadMatch::No;
        } else {
            let (value, end) = value!(json_value(text, at));
            if is_arguments {
                before = Some(value.to_string());
            }
            at = end;
        }
        if let (Some(name), Some(json)) = (&name, &before) {
            let json = match serde_json::from_str::<serde_json::Value>(json) {
                Ok(serde_json::Value::Object(_)) => json.clone(),
                Ok(serde_json::Value::Null) => "{}".to_string(),
                _ => return HeadMatch::No,
            };
            return HeadMatch::Call(CallHead {
                name: name.clone(),
                id,
                bytes: at,
                arguments: ArgumentsStart::Done { json, depth },
            });
        }
        at += blanks(&text[at..]);
        match text[at..].chars().next() {
            None => return HeadMatch::Partial,
            Some(',') => at += 1,
            Some(_) => return HeadMatch::No,
        }
    }
}
