//! The head of a call: its name, and the start of its arguments.

use serde_json::value::RawValue;

use super::format::{ArgumentsForm, CallBody, CallFormat, JsonCall};
use super::marker::{MarkerMatch, begins_any, blanks};

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
    /// Whether the head begins a list of calls, which the format has no marker for.
    pub(super) begins_list: bool,
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
                // A call without arguments.
                ArgumentsForm::Json => {
                    match begins_any(&format.closings(), begun) {
                        MarkerMatch::Yes(_) => {}
                        MarkerMatch::Partial => return HeadMatch::Partial,
                        MarkerMatch::No => return HeadMatch::No,
                    }
                    (at, no_arguments(0))
                }
                ArgumentsForm::Literals { .. } => (at, ArgumentsStart::Literals),
                ArgumentsForm::Pairs(markers) => {
                    let mut next = format.closings();
                    next.push(markers.open.clone());
                    match begins_any(&next, begun) {
                        MarkerMatch::Yes(_) => (at, ArgumentsStart::Pairs),
                        MarkerMatch::Partial => return HeadMatch::Partial,
                        MarkerMatch::No => return HeadMatch::No,
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
                begins_list: false,
            })
        }
    }
}

/// The arguments of a call that has none, in this many objects.
fn no_arguments(depth: usize) -> ArgumentsStart {
    let json = "{}".to_string();
    ArgumentsStart::Done { json, depth }
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

/// Reads the start of the arguments after their key, in this many objects.
fn arguments_start(text: &str, at: usize, depth: usize) -> JsonStart<ArgumentsStart> {
    match text[at..].chars().next() {
        None => JsonStart::Partial,
        Some('{') => JsonStart::Value(ArgumentsStart::Object { depth }, at),
        Some('"') if text[at..].len() == 1 => JsonStart::Partial,
        Some('"') if text[at..].starts_with("\"\"") => {
            JsonStart::Value(no_arguments(depth), at + 2)
        }
        Some('"') => JsonStart::Value(ArgumentsStart::Text { depth }, at + 1),
        Some('n') => match json_value(text, at) {
            JsonStart::Value(_, end) => JsonStart::Value(no_arguments(depth), end),
            JsonStart::Partial => JsonStart::Partial,
            JsonStart::No => JsonStart::No,
        },
        Some(_) => JsonStart::No,
    }
}

/// The object of arguments that are an object, a text with an object, or missing.
fn whole_arguments(json: &str) -> Option<String> {
    use serde_json::Value;
    match serde_json::from_str(json).ok()? {
        Value::Object(_) => Some(json.to_string()),
        Value::Null => Some("{}".to_string()),
        Value::String(text) if text.is_empty() => Some("{}".to_string()),
        Value::String(text) => match serde_json::from_str(&text).ok()? {
            Value::Object(_) => Some(text),
            _ => None,
        },
        _ => None,
    }
}

/// Reads `{"name": ..., "arguments":`, with other keys between them.
fn json_head(
    keys: &JsonCall,
    text: &str,
    is_bare: bool,
    is_tool: &dyn Fn(&str) -> bool,
) -> HeadMatch {
    let mut at = blanks(text);
    // Some models write several calls as a list where their template has one call.
    let begins_list = !is_bare && !keys.is_list && text[at..].starts_with('[');
    if begins_list {
        at += 1;
        at += blanks(&text[at..]);
    }
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
            let (arguments, bytes) = value!(arguments_start(text, at, depth));
            let name = name.unwrap_or_default();
            return HeadMatch::Call(CallHead {
                name,
                id,
                bytes,
                arguments,
                begins_list,
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
            let Some(json) = whole_arguments(json) else {
                return HeadMatch::No;
            };
            return HeadMatch::Call(CallHead {
                name: name.clone(),
                id,
                bytes: at,
                arguments: ArgumentsStart::Done { json, depth },
                begins_list,
            });
        }
        at += blanks(&text[at..]);
        match (text[at..].chars().next(), &name) {
            (None, _) => return HeadMatch::Partial,
            (Some(','), _) => at += 1,
            // A call without arguments. Without a marker, such an object may be an answer.
            (Some('}'), Some(name)) if !is_bare => {
                return HeadMatch::Call(CallHead {
                    name: name.clone(),
                    id,
                    bytes: at,
                    arguments: no_arguments(depth),
                    begins_list,
                });
            }
            (Some(_), _) => return HeadMatch::No,
        }
    }
}
