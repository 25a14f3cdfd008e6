//! Parses tool calls in generated text.
//!
//! Two formats are supported. Hermes and Qwen: any number of `<tool_call>{"name": ..., "arguments":
//! {...}}</tool_call>` in a text. Llama 3: the whole text consists of JSON objects with `name`
//! and `parameters` (or `arguments`). Incomplete calls, calls of unknown tools, calls in thoughts,
//! and tags without a call remain text.

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
    /// Tag that ends the thought in which the generation starts, if the prompt opened one.
    pub(crate) thought: Option<&'static str>,
}

/// Tags around the thoughts of models. Tags in thoughts start no call.
const THOUGHTS: [(&str, &str); 7] = [
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
];

/// The tag that ends a thought, if a prompt ends with the start of one.
pub(crate) fn open_thought(prompt: &str) -> Option<&'static str> {
    let prompt = prompt.trim_end();
    let open = THOUGHTS.iter().find(|(open, _)| prompt.ends_with(open));
    open.map(|(_, close)| *close)
}

/// The tag that ends the thought at the start of a text.
fn leading_thought(text: &str) -> Option<&'static str> {
    let begun = text.trim_start();
    let open = THOUGHTS.iter().find(|(open, _)| begun.starts_with(open));
    open.map(|(_, close)| *close)
}

/// The end of the first thought in a text that has no start of it.
fn end_of_thought(text: &str) -> Option<usize> {
    let ends = THOUGHTS
        .iter()
        .filter_map(|(_, close)| Some(text.find(close)? + close.len()));
    ends.min()
}

/// What follows a tag that starts a call.
enum TagContent {
    /// A call, and the bytes up to its end, tags included.
    Call(ToolCall, usize),
    /// A call that may be complete with more text.
    Incomplete,
    /// Other text.
    Text,
}

impl ToolCallParser {
    /// Splits a complete text into plain text and tool calls.
    pub(crate) fn read(&self, text: &str) -> (String, Vec<ToolCall>) {
        let begin = match self.thought.or_else(|| leading_thought(text)) {
            None => 0,
            Some(close) => match text.find(close) {
                Some(at) => at + close.len(),
                // The thought did not end.
                None => return (text.to_string(), Vec::new()),
            },
        };
        let (thought, answer) = text.split_at(begin);
        let (said, calls) = self.read_answer(answer);
        let whole = format!("{thought}{said}");
        match calls.is_empty() || !said.is_empty() {
            true => (whole, calls),
            false => (whole.trim_end().to_string(), calls),
        }
    }

    /// Splits the text after a thought.
    fn read_answer(&self, text: &str) -> (String, Vec<ToolCall>) {
        let found = self
            .tagged(text)
            .or_else(|| Some((String::new(), self.objects(text)?)));
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

    /// Parses the calls between tags; a tag without a call is text.
    fn tagged(&self, text: &str) -> Option<(String, Vec<ToolCall>)> {
        let (mut said, mut calls) = (String::new(), Vec::new());
        // Starts of the text that is not in `said`, and of the search.
        let (mut begin, mut from) = (0, 0);
        loop {
            let open = text[from..].find(OPEN).map(|at| from + at);
            let found = open.map(|open| (open, self.tag_content(&text[open..])));
            let end = match found {
                Some((open, TagContent::Call(..))) => open,
                Some((open, _)) => {
                    from = open + OPEN.len();
                    continue;
                }
                None => text.len(),
            };
            let mut between = &text[begin..end];
            if let Some(at) = end_of_thought(between) {
                // All before was a thought whose start is not part of the text.
                calls.clear();
                said = text[..begin + at].to_string();
                between = &between[at..];
            }
            let is_call = matches!(found, Some((_, TagContent::Call(..))));
            match is_call && calls.is_empty() {
                true => said = format!("{said}{between}").trim_end().to_string(),
                false if between.trim().is_empty() => {}
                false => said += between,
            }
            let Some((open, TagContent::Call(call, bytes))) = found else {
                break;
            };
            calls.push(call);
            begin = open + bytes;
            from = begin;
        }
        (!calls.is_empty()).then_some((said, calls))
    }

    /// Parses a text that starts with a tag.
    fn tag_content(&self, text: &str) -> TagContent {
        let inside = &text[OPEN.len()..];
        let object = inside.trim_start();
        if !object.starts_with('{') {
            return TagContent::Text;
        }
        let mut objects = serde_json::Deserializer::from_str(object).into_iter::<&RawValue>();
        let call = match objects.next() {
            Some(Ok(raw)) => self.call(raw.get()),
            Some(Err(e)) if e.is_eof() => return TagContent::Incomplete,
            _ => None,
        };
        let Some(call) = call else {
            return TagContent::Text;
        };
        let rest = &object[objects.byte_offset()..];
        let after = rest.trim_start();
        // The closing tag may be a token that ended the generation, so it can be missing.
        let rest = match after.strip_prefix(CLOSE) {
            Some(rest) => rest,
            None if after.is_empty() || after.starts_with(OPEN) => after,
            None if CLOSE.starts_with(after) => return TagContent::Incomplete,
            None => return TagContent::Text,
        };
        TagContent::Call(call, text.len() - rest.len())
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

/// Removes the white space outside of strings from a JSON text, which must be valid.
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
    /// Text that was not sent.
    text: String,
    place: StreamPlace,
    /// Some text of the answer was already sent, so only tags can start a call.
    shown: bool,
    /// `text` starts with a call.
    has_call: bool,
    /// Bytes of `text` that were searched for a closing tag.
    searched: usize,
}

#[derive(Clone, Copy, Debug)]
enum StreamPlace {
    Start,
    /// In a thought that ends with this tag.
    Thought(&'static str),
    Answer,
}

impl ToolCallStream {
    pub(crate) fn new(calls: ToolCallParser) -> ToolCallStream {
        let place = calls
            .thought
            .map_or(StreamPlace::Start, StreamPlace::Thought);
        ToolCallStream {
            calls,
            text: String::new(),
            place,
            shown: false,
            has_call: false,
            searched: 0,
        }
    }

    /// Adds a piece and returns the text that cannot belong to a call.
    pub(crate) fn push(&mut self, piece: &str) -> String {
        self.text += piece;
        let mut shown = String::new();
        if matches!(self.place, StreamPlace::Start) {
            let begun = self.text.trim_start();
            let may_be_thought = THOUGHTS.iter().any(|(open, _)| open.starts_with(begun));
            self.place = match leading_thought(begun) {
                Some(close) => StreamPlace::Thought(close),
                None if may_be_thought => return shown,
                None => StreamPlace::Answer,
            };
        }
        if let StreamPlace::Thought(close) = self.place {
            let end = self.text.find(close).map(|at| at + close.len());
            if end.is_some() {
                self.place = StreamPlace::Answer;
            }
            let end = end.unwrap_or_else(|| without_start_of(&self.text, close));
            shown += &self.take(end);
        }
        if matches!(self.place, StreamPlace::Answer) {
            shown += &self.answer();
        }
        shown
    }

    /// Removes the first bytes of the text.
    fn take(&mut self, bytes: usize) -> String {
        let rest = self.text.split_off(bytes);
        self.searched = self.searched.saturating_sub(bytes);
        std::mem::replace(&mut self.text, rest)
    }

    fn answer(&mut self) -> String {
        let mut shown = String::new();
        while !self.has_call {
            let begun = self.text.trim_start();
            let may_be_object = begun.is_empty()
                || begun.starts_with('{')
                || begun.starts_with(PYTHON)
                || PYTHON.starts_with(begun);
            if !self.shown && may_be_object {
                break;
            }
            let end = self.text.find(OPEN);
            let end = end.unwrap_or_else(|| without_start_of(&self.text, OPEN));
            shown += &self.take(end);
            self.shown |= !shown.is_empty();
            if !self.text.starts_with(OPEN) || self.may_become_call() {
                break;
            }
            // This tag is text.
            shown += &self.take(OPEN.len());
            self.shown = true;
        }
        shown
    }

    /// Whether the text, which starts with a tag, is or may become a call.
    fn may_become_call(&mut self) -> bool {
        let inside = self.text[OPEN.len()..].trim_start();
        if inside.is_empty() || !inside.starts_with('{') {
            return inside.is_empty();
        }
        // A call is complete with its closing tag, so it is parsed then.
        let from = self.searched.saturating_sub(CLOSE.len());
        self.searched = self.text.len();
        let new = (from..=self.text.len()).find_map(|at| self.text.get(at..));
        if !new.is_some_and(|new| new.contains(CLOSE)) {
            return true;
        }
        match self.calls.tag_content(&self.text) {
            TagContent::Call(..) => self.has_call = true,
            TagContent::Incomplete => {}
            TagContent::Text => return false,
        }
        true
    }

    /// Returns the remaining text and the tool calls.
    pub(crate) fn finish(self) -> (String, Vec<ToolCall>) {
        match self.place {
            StreamPlace::Thought(_) => (self.text, Vec::new()),
            StreamPlace::Answer if self.shown && !self.text.starts_with(OPEN) => {
                (self.text, Vec::new())
            }
            StreamPlace::Answer => self.calls.read_answer(&self.text),
            StreamPlace::Start => self.calls.read(&self.text),
        }
    }
}

/// The length of a text without an end that may be the start of `tag`.
fn without_start_of(text: &str, tag: &str) -> usize {
    let starts = text.char_indices().map(|(at, _)| at);
    // Only the last bytes can be an incomplete tag.
    let mut starts = starts.skip_while(|at| text.len() - at >= tag.len());
    starts
        .find(|at| tag.starts_with(&text[*at..]))
        .unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls() -> ToolCallParser {
        ToolCallParser {
            names: vec!["add".into(), "now".into()],
            single: false,
            thought: None,
        }
    }

    /// Expected text, and expected calls as names with arguments.
    type Read = (&'static str, &'static [(&'static str, &'static str)]);

    const CASES: [(&str, Read); 28] = [
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
        // Thoughts and texts that name the tag.
        (
            "<think>I must put it in <tool_call> tags.</think>\n\n<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>",
            (
                "<think>I must put it in <tool_call> tags.</think>",
                &[("now", "{}")],
            ),
        ),
        (
            "<think>Like <tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>?</think><tool_call>{\"name\": \"add\", \"arguments\": {}}</tool_call>",
            (
                "<think>Like <tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>?</think>",
                &[("add", "{}")],
            ),
        ),
        (
            "<think>Like <tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call></think> No.",
            (
                "<think>Like <tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call></think> No.",
                &[],
            ),
        ),
        (
            "<think>Like <tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>",
            (
                "<think>Like <tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>",
                &[],
            ),
        ),
        (
            "\n<thinking>a {b} <tool_call></thinking>\n{\"name\": \"now\", \"parameters\": {}}",
            ("\n<thinking>a {b} <tool_call></thinking>", &[("now", "{}")]),
        ),
        // A thought whose start was part of the prompt, with a call in it.
        (
            "So <tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>.</think><tool_call>{\"name\": \"add\", \"arguments\": {}}</tool_call>",
            (
                "So <tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>.</think>",
                &[("add", "{}")],
            ),
        ),
        (
            "The <tool_call> tag: <tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>",
            ("The <tool_call> tag:", &[("now", "{}")]),
        ),
        (
            "<tool_call>{x}</tool_call> or <tool_call>\n{\"name\": \"now\", \"arguments\": {}}",
            ("<tool_call>{x}</tool_call> or", &[("now", "{}")]),
        ),
        (
            "<tool_call>{\"name\": \"delete\", \"arguments\": {}}</tool_call><tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>",
            (
                "<tool_call>{\"name\": \"delete\", \"arguments\": {}}</tool_call>",
                &[("now", "{}")],
            ),
        ),
        (
            "<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call> and <tool_call>{\"name\": \"add\", \"arguments\": {}}</tool_call> <tool_call>",
            (" and  <tool_call>", &[("now", "{}"), ("add", "{}")]),
        ),
        // Tags in strings.
        (
            "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": \"</tool_call> </think> <tool_call>\"}}</tool_call>",
            (
                "",
                &[("add", "{\"a\": \"</tool_call> </think> <tool_call>\"}")],
            ),
        ),
        ("<tool_call>", ("<tool_call>", &[])),
        ("<thin", ("<thin", &[])),
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
    fn a_thought_that_the_prompt_opened() {
        assert_eq!(open_thought("assistant\n<think>\n"), Some("</think>"));
        assert_eq!(open_thought("<think> a"), None);
        let mut parser = calls();
        parser.thought = open_thought("<think>");
        let call = "<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>";
        for (text, said, count) in [
            (format!("a {call}"), format!("a {call}"), 0),
            (
                format!("{call}</think>{call}"),
                format!("{call}</think>"),
                1,
            ),
        ] {
            let (found, calls) = parser.read(&text);
            assert_eq!((found.as_str(), calls.len()), (said.as_str(), count));
            let mut stream = ToolCallStream::new(parser.clone());
            let mut shown: String = text.split_inclusive(' ').map(|p| stream.push(p)).collect();
            let (rest, calls) = stream.finish();
            shown += &rest;
            assert_eq!((shown, calls.len()), (said, count));
        }
        // A thought and a tag without a call are sent at once.
        let mut stream = ToolCallStream::new(calls());
        assert_eq!(
            stream.push("<think>a <tool_call> b"),
            "<think>a <tool_call> b"
        );
        assert_eq!(stream.push("</think>c <tool_call>"), "</think>c ");
        assert_eq!(stream.push(" d"), "<tool_call> d");
        assert_eq!(
            stream.push("<tool_call>{\"name\": \"no\"}</tool_call> e"),
            "<tool_call>{\"name\": \"no\"}</tool_call> e"
        );
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
