//! Parses tool calls in generated text.
//!
//! Two formats are supported. Hermes and Qwen: any number of `<tool_call>{"name": ..., "arguments":
//! {...}}</tool_call>` after a text. Llama 3: the whole text consists of JSON objects with `name`
//! and `parameters` (or `arguments`). Incomplete calls and calls of unknown tools remain text.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
/// Token that Llama 3 may generate before an object, if the tokenizer outputs its text.
const PYTHON: &str = "<|python_tag|>";

/// Tool call format of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ToolCallFormat {
    /// JSON between tags.
    Tagged,
    /// Plain JSON objects.
    Object,
}

impl ToolCallFormat {
    /// Detects the format in a chat template. `None` for unsupported formats.
    pub(crate) fn from_template(template: &str) -> Option<ToolCallFormat> {
        const OTHERS: [&str; 6] = [
            "<function=",
            "<arg_key>",
            "[TOOL_CALLS]",
            "<|channel|>",
            "functools",
            "tool\u{2581}call",
        ];
        if OTHERS.iter().any(|other| template.contains(other)) {
            return None;
        }
        if template.contains(OPEN) {
            return Some(ToolCallFormat::Tagged);
        }
        template
            .contains("\"parameters\": ")
            .then_some(ToolCallFormat::Object)
    }

    /// JSON key of a call's arguments.
    pub(crate) fn arguments(self) -> &'static str {
        match self {
            ToolCallFormat::Tagged => "arguments",
            ToolCallFormat::Object => "parameters",
        }
    }

    /// Text before and after a call.
    #[cfg(feature = "grammar")]
    pub(crate) fn delimiters(self) -> (&'static str, &'static str) {
        match self {
            ToolCallFormat::Tagged => ("<tool_call>\n", "\n</tool_call>"),
            ToolCallFormat::Object => ("", ""),
        }
    }
}

/// A tool call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ToolCall {
    id: String,
    name: String,
    /// A JSON object.
    arguments: String,
}

impl ToolCall {
    pub(crate) fn to_json(&self) -> Value {
        let function = json!({"name": self.name, "arguments": self.arguments});
        json!({"id": self.id, "type": "function", "function": function})
    }
}

/// Parser of tool calls for the tools of a request.
#[derive(Clone, Debug)]
pub(crate) struct ToolCallParser {
    /// Names of the tools.
    pub(crate) names: Vec<String>,
    /// Return only the first call.
    pub(crate) single: bool,
}

impl ToolCallParser {
    /// Splits a complete text into plain text and tool calls.
    pub(crate) fn read(&self, text: &str) -> (String, Vec<ToolCall>) {
        let found = match text.find(OPEN) {
            Some(at) => self.tagged(text, at),
            None => self.objects(text).map(|calls| (String::new(), calls)),
        };
        match found {
            Some((said, mut calls)) => {
                if self.single {
                    calls.truncate(1);
                }
                (said, calls)
            }
            None => (text.to_string(), Vec::new()),
        }
    }

    fn tagged(&self, text: &str, at: usize) -> Option<(String, Vec<ToolCall>)> {
        let mut calls = Vec::new();
        let mut rest = &text[at..];
        while let Some(inside) = rest.trim_start().strip_prefix(OPEN) {
            // The closing tag may be a token that ended the generation, so it can be missing.
            let (inside, next) = inside.split_once(CLOSE).unwrap_or((inside, ""));
            calls.push(self.call(inside.trim())?);
            rest = next;
        }
        let mut said = text[..at].trim_end().to_string();
        if !rest.trim().is_empty() {
            said += rest;
        }
        Some((said, calls))
    }

    /// Parses a text that consists only of objects, optionally separated by semicolons.
    fn objects(&self, text: &str) -> Option<Vec<ToolCall>> {
        let mut rest = text.trim();
        rest = rest.strip_prefix(PYTHON).unwrap_or(rest).trim();
        let mut calls = Vec::new();
        while !rest.is_empty() {
            let mut objects = serde_json::Deserializer::from_str(rest).into_iter::<&RawValue>();
            let object = objects.next()?.ok()?;
            let end = objects.byte_offset();
            calls.push(self.call(object.get())?);
            rest = rest[end..].trim_start();
            rest = rest.strip_prefix(';').unwrap_or(rest).trim_start();
        }
        (!calls.is_empty()).then_some(calls)
    }

    /// Parses a call. The arguments keep the text of the model, because numbers may have more digits
    /// than a parsed value.
    fn call(&self, text: &str) -> Option<ToolCall> {
        let mut object: HashMap<String, Box<RawValue>> = serde_json::from_str(text).ok()?;
        let name: String = serde_json::from_str(object.get("name")?.get()).ok()?;
        if !self.names.contains(&name) {
            return None;
        }
        let arguments = object.remove("arguments");
        let arguments = arguments.or_else(|| object.remove("parameters"))?;
        let arguments = match serde_json::from_str(arguments.get()).ok()? {
            Value::Object(_) => without_blanks(arguments.get()),
            // The arguments are JSON inside a string.
            Value::String(text) => {
                serde_json::from_str::<Map<String, Value>>(&text).ok()?;
                without_blanks(&text)
            }
            Value::Null => "{}".to_string(),
            Value::Bool(_) | Value::Number(_) | Value::Array(_) => return None,
        };
        Some(ToolCall {
            id: format!("call_{:016x}", RandomState::new().hash_one(&name)),
            name,
            arguments,
        })
    }
}

/// A valid JSON text without white space outside of strings.
fn without_blanks(json: &str) -> String {
    let (mut in_string, mut escaped) = (false, false);
    let is_kept = |c: &char| {
        let is_kept = in_string || !c.is_ascii_whitespace();
        let ends = *c == '"' && !escaped;
        escaped = in_string && *c == '\\' && !escaped;
        in_string ^= ends;
        is_kept
    };
    json.chars().filter(is_kept).collect()
}

/// Parses streamed text. The parser retains text that may belong to a call until the end.
#[derive(Debug)]
pub(crate) struct ToolCallStream {
    calls: ToolCallParser,
    text: String,
    /// Some text was already sent, so only tags can start a call.
    shown: bool,
}

impl ToolCallStream {
    pub(crate) fn new(calls: ToolCallParser) -> ToolCallStream {
        ToolCallStream {
            calls,
            text: String::new(),
            shown: false,
        }
    }

    /// Adds a piece and returns the text that cannot belong to a call.
    pub(crate) fn push(&mut self, piece: &str) -> String {
        self.text += piece;
        let begun = self.text.trim_start();
        let may_be_object = begun.is_empty()
            || begun.starts_with('{')
            || begun.starts_with(PYTHON)
            || PYTHON.starts_with(begun);
        if !self.shown && may_be_object {
            return String::new();
        }
        let may_begin = |at: &usize| OPEN.starts_with(&self.text[*at..]);
        let tail = || self.text.char_indices().map(|(at, _)| at).find(may_begin);
        let end = self.text.find(OPEN).or_else(tail);
        let end = end.unwrap_or(self.text.len());
        let rest = self.text.split_off(end);
        let shown = std::mem::replace(&mut self.text, rest);
        self.shown |= !shown.is_empty();
        shown
    }

    /// Returns the remaining text and the tool calls.
    pub(crate) fn finish(self) -> (String, Vec<ToolCall>) {
        match self.shown && !self.text.starts_with(OPEN) {
            true => (self.text, Vec::new()),
            false => self.calls.read(&self.text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls() -> ToolCallParser {
        ToolCallParser {
            names: vec!["add".into(), "now".into()],
            single: false,
        }
    }

    /// Expected text, and expected calls as names with arguments.
    type Read = (&'static str, &'static [(&'static str, &'static str)]);

    const CASES: [(&str, Read); 15] = [
        ("Hello { there", ("Hello { there", &[])),
        (
            "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"b\": 1, \"a\": [2]}}\n</tool_call>",
            ("", &[("add", "{\"b\":1,\"a\":[2]}")]),
        ),
        (
            "I see.\n<tool_call>{\"name\":\"now\",\"arguments\":{}}</tool_call>\n<tool_call>{\"name\":\"add\",\"arguments\":\"{\\\"a\\\": 1}\"}",
            ("I see.", &[("now", "{}"), ("add", "{\"a\":1}")]),
        ),
        (
            "{\"name\": \"add\", \"parameters\": {\"a\": \"x\"}}",
            ("", &[("add", "{\"a\":\"x\"}")]),
        ),
        (
            " <|python_tag|>{\"name\": \"now\", \"parameters\": {}}; {\"name\": \"now\", \"parameters\": null}\n",
            ("", &[("now", "{}"), ("now", "{}")]),
        ),
        // Numbers with more digits than a float, and blanks and quotes in strings.
        (
            "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 123456789012345678901234567890, \"b\": 1.10}}</tool_call>",
            (
                "",
                &[("add", "{\"a\":123456789012345678901234567890,\"b\":1.10}")],
            ),
        ),
        (
            "{\"name\": \"add\", \"parameters\": { \"a b\" : \"x \\\" : y\\\\\" , \"c\": [1, 2] }}",
            ("", &[("add", "{\"a b\":\"x \\\" : y\\\\\",\"c\":[1,2]}")]),
        ),
        // An unknown tool, an incomplete call, text that is not a call.
        (
            "{\"name\": \"delete\", \"parameters\": {}}",
            ("{\"name\": \"delete\", \"parameters\": {}}", &[]),
        ),
        (
            "<tool_call>{\"name\": \"add\", \"argu",
            ("<tool_call>{\"name\": \"add\", \"argu", &[]),
        ),
        ("{\"name\": \"add\"}", ("{\"name\": \"add\"}", &[])),
        (
            "{\"name\": \"add\", \"parameters\": 3}",
            ("{\"name\": \"add\", \"parameters\": 3}", &[]),
        ),
        (
            "{\"name\": \"now\", \"parameters\": {}} or so",
            ("{\"name\": \"now\", \"parameters\": {}} or so", &[]),
        ),
        ("a < b <tool", ("a < b <tool", &[])),
        ("", ("", &[])),
        ("{", ("{", &[])),
    ];

    #[test]
    fn calls_are_read_whole_and_in_pieces() {
        for (text, (said, called)) in CASES {
            let check = |(found, calls): (String, Vec<ToolCall>), how: &str| {
                assert_eq!(found, said, "{how}: {text}");
                let calls = calls
                    .iter()
                    .map(|c| (c.name.as_str(), c.arguments.as_str()));
                let same = |a: &str, b: &str| {
                    let parsed = |x: &str| serde_json::from_str::<Value>(x).unwrap();
                    parsed(a) == parsed(b)
                };
                let calls: Vec<_> = calls.collect();
                assert_eq!(calls.len(), called.len(), "{how}: {text}");
                for (found, want) in calls.iter().zip(called) {
                    assert!(
                        found.0 == want.0 && same(found.1, want.1),
                        "{how}: {found:?}"
                    );
                }
            };
            check(calls().read(text), "whole");
            for size in [1, 3, 1000] {
                let mut held = ToolCallStream::new(calls());
                let mut shown = String::new();
                let all: Vec<char> = text.chars().collect();
                for piece in all.chunks(size) {
                    shown += &held.push(&piece.iter().collect::<String>());
                }
                let (rest, calls) = held.finish();
                shown += &rest;
                // Streaming has already sent the white space before a call.
                let shown = match calls.is_empty() {
                    true => shown,
                    false => shown.trim_end().to_string(),
                };
                check((shown, calls), &format!("by {size}"));
            }
        }
    }

    #[test]
    fn arguments_keep_their_digits() {
        let digits = "{\"a\":123456789012345678901234567890,\"b\":1.10}";
        for arguments in [digits.to_string(), Value::String(digits.into()).to_string()] {
            let text = format!("{{\"name\": \"add\", \"parameters\": {arguments}}}");
            let (_, found) = calls().read(&text);
            assert_eq!(found[0].arguments, digits);
        }
        let escaped = r#"{ "a b" : "x \" : y\\" , "c": [1, 2] }"#;
        assert_eq!(without_blanks(escaped), r#"{"a b":"x \" : y\\","c":[1,2]}"#);
    }

    #[test]
    fn text_is_not_held_longer_than_it_has_to_be() {
        let mut held = ToolCallStream::new(calls());
        assert_eq!(held.push(" "), "");
        assert_eq!(held.push("x <"), " x ");
        assert_eq!(held.push("tool"), "");
        assert_eq!(held.push("s> {"), "<tools> {");
        let mut one = calls();
        one.single = true;
        let twice = "{\"name\": \"now\", \"parameters\": {}}".repeat(2);
        assert_eq!(calls().read(&twice).1.len(), 2);
        assert_eq!(one.read(&twice).1.len(), 1);
    }

    #[test]
    fn dialects_are_those_of_templates() {
        let of = ToolCallFormat::from_template;
        assert_eq!(
            of("... <tool_call>\\n{\"name\": ..."),
            Some(ToolCallFormat::Tagged)
        );
        assert_eq!(
            of("{\"name\": function name, \"parameters\": dictionary}"),
            Some(ToolCallFormat::Object)
        );
        assert_eq!(of("{{ tools }}"), None);
        assert_eq!(of("<tool_call>\n<function=x>"), None);
        assert_eq!(of("[TOOL_CALLS] \"parameters\": "), None);
    }
}
