//! Grammars of calls, for answers that must call a tool.

use serde_json::Value;

use super::AnswerFormat;
use super::format::{ArgumentsForm, CallBody};
use super::marker::{MarkerPart, TextMarker, pieces};
use crate::tokenizer::Tokenizer;

/// The texts around the name and the arguments of a call.
///
/// ```
/// use tercet_models::answer::{AnswerFormat, CallTexts};
/// let CallTexts { before, between, .. } = AnswerFormat::default().call_texts().unwrap();
/// assert_eq!(before, "<tool_call>\n{\"name\": \"");
/// assert_eq!(between, "\", \"arguments\": ");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallTexts {
    /// Before the name.
    pub before: String,
    /// Between the name and the arguments, which are a JSON object.
    pub between: String,
    /// After the arguments.
    pub after: String,
}

impl AnswerFormat {
    /// The texts of a call. `None` if the arguments are not written as a JSON object.
    #[must_use]
    pub fn call_texts(&self) -> Option<CallTexts> {
        if self.has_channels {
            return Some(CallTexts {
                before: "<|channel|>commentary to=functions.".to_string(),
                between: " <|constrain|>json<|message|>".to_string(),
                after: String::new(),
            });
        }
        let calls = &self.calls;
        let open = format!("{}{}", calls.section.0.spelling, calls.call.0.spelling);
        let close = format!("{}{}", calls.call.1.spelling, calls.section.1.spelling);
        match &calls.body {
            CallBody::Json(keys) => {
                let (wrap, wrap_end) = match &keys.wrapper {
                    Some(key) => (format!("{{\"type\": \"function\", {}: ", quoted(key)), "}"),
                    None => (String::new(), ""),
                };
                Some(CallTexts {
                    before: format!("{open}{wrap}{{{}: \"", quoted(&keys.name)),
                    between: format!("\", {}: ", quoted(&keys.arguments)),
                    after: format!("}}{wrap_end}{close}"),
                })
            }
            CallBody::Named {
                after,
                arguments: ArgumentsForm::Json,
                ..
            } => Some(CallTexts {
                before: open,
                between: literal(after)?,
                after: close,
            }),
            CallBody::Named { .. } => None,
        }
    }

    /// The text before a call, the key of its arguments, and the text after it, if calls are plain
    /// objects.
    #[must_use]
    pub fn object_texts(&self) -> Option<(String, String, String)> {
        let calls = &self.calls;
        match &calls.body {
            CallBody::Json(keys) if keys.wrapper.is_none() && !self.has_channels => Some((
                format!("{}{}", calls.section.0.spelling, calls.call.0.spelling),
                keys.arguments.clone(),
                format!("{}{}", calls.call.1.spelling, calls.section.1.spelling),
            )),
            CallBody::Json(_) | CallBody::Named { .. } => None,
        }
    }
}

/// The text of a marker with an index of 0 and without ids of calls.
fn literal(marker: &TextMarker) -> Option<String> {
    let has_id = marker.parts.contains(&MarkerPart::Id);
    (!has_id).then(|| marker.spelling.clone())
}

fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// A text as literals of a Lark grammar. Special tokens of the vocabulary are tokens by their ids.
#[must_use]
pub fn lark_text(text: &str, tokenizer: &Tokenizer) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut start = 0;
    for piece in pieces(text) {
        let id = tokenizer.token_to_id(piece.text);
        let Some(id) = id.filter(|id| tokenizer.is_special(*id)) else {
            continue;
        };
        if start < piece.start {
            parts.push(quoted(&text[start..piece.start]));
        }
        parts.push(format!("<[{id}]>"));
        start = piece.end;
    }
    if start < text.len() {
        parts.push(quoted(&text[start..]));
    }
    parts.join(" ")
}
