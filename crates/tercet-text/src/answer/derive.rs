//! Derivation of a format from a chat template, by the differences between renderings.

use serde_json::Value;
use serde_json::value::RawValue;

use super::format::{
    ArgumentsForm, CallBody, CallFormat, JsonCall, PairMarkers, ThoughtTags, all_thoughts,
};
use super::marker::{MarkerPart, TextMarker, TextPiece, pieces};
use super::{AnswerFormat, known};
use crate::dataset::template::TemplateValue;
use crate::dataset::{ChatMessage, ChatTemplate, Role};

// Words that occur in no template.
const USER: &str = "uqz";
const CONTENT: &str = "cqz";
const THOUGHT: &str = "rqz";
const TOOL: &str = "tqz";
const NAMES: [&str; 2] = ["fqza", "fqzb"];
const KEYS: [&str; 4] = ["kqza", "kqzb", "kqzc", "kqzd"];
const VALUES: [&str; 3] = ["vqza", "vqzc", "vqzd"];
const NUMBER: &str = "41729";

/// The fields of a message in which templates read thoughts.
pub(super) const THOUGHT_KEYS: [&str; 4] =
    ["reasoning_content", "reasoning", "thinking", "thought"];

/// Ids of the two calls: plain, short as Mistral requires them, and with the name as Kimi has them.
const IDS: [[&str; 2]; 2] = [
    ["qzid00001", "qzid00002"],
    ["functions.fqza:0", "functions.fqzb:1"],
];

impl AnswerFormat {
    /// Derives the format from a template. A template that hides the format of calls has the known
    /// one whose marks it contains, else that of [`AnswerFormat::default`].
    #[must_use]
    pub fn from_template(template: &ChatTemplate) -> AnswerFormat {
        let source = template.source();
        let probe = TemplateProbe { template };
        let has_channels = source.contains("<|channel|>") && source.contains("<|message|>");
        let shown = probe.render(&[ChatMessage::new(Role::User, USER)], true);
        let has_tools = shown.is_some_and(|text| text.contains(TOOL));
        let takes_text = probe.takes_text();
        let calls = match has_channels {
            true => None,
            false => probe.calls(takes_text),
        };
        let calls = calls.or_else(|| known::from_source(source));
        let (thought_key, own) = probe.thought().unzip();
        AnswerFormat {
            thoughts: all_thoughts(own),
            thought_key: thought_key.unwrap_or(THOUGHT_KEYS[0]),
            calls: calls.unwrap_or_else(CallFormat::hermes),
            has_channels,
            has_tools,
            takes_text,
            has_short_ids: probe.has_short_ids(takes_text),
        }
    }
}

/// Renders conversations with a template.
struct TemplateProbe<'a> {
    template: &'a ChatTemplate,
}

/// A call of a probe: the index of its name, its id, and its arguments as JSON.
fn call(index: usize, id: &str, takes_text: bool) -> TemplateValue {
    let arguments = match index {
        0 => format!(
            "{{\"{}\": \"{}\", \"{}\": {NUMBER}, \"{}\": \"{}\"}}",
            KEYS[0], VALUES[0], KEYS[1], KEYS[2], VALUES[1]
        ),
        _ => format!("{{\"{}\": \"{}\"}}", KEYS[3], VALUES[2]),
    };
    let arguments = match takes_text {
        true => TemplateValue::text(&arguments),
        false => TemplateValue::from_json(&arguments).unwrap_or(TemplateValue::None),
    };
    let function = TemplateValue::map(vec![
        ("name", TemplateValue::text(NAMES[index])),
        ("arguments", arguments),
    ]);
    TemplateValue::map(vec![
        ("id", TemplateValue::text(id)),
        ("type", TemplateValue::text("function")),
        ("function", function),
    ])
}

impl TemplateProbe<'_> {
    /// A conversation with a tool.
    fn render(&self, messages: &[ChatMessage], prompt: bool) -> Option<String> {
        let tool = format!(
            "[{{\"type\": \"function\", \"function\": {{\"name\": \"{TOOL}\", \"description\": \"d\", \
             \"parameters\": {{\"type\": \"object\", \"properties\": {{\"x\": {{\"type\": \"string\", \
             \"description\": \"d\"}}}}, \"required\": [\"x\"]}}}}}}]"
        );
        let tools = TemplateValue::from_json(&tool).ok()?;
        let rendered = self.template.render(messages, &tools, prompt).ok()?;
        Some(rendered.text)
    }

    /// The text after the user's message, for an answer with these fields.
    fn answer(&self, fields: Vec<(&str, TemplateValue)>) -> Option<String> {
        let messages = [
            ChatMessage::new(Role::User, USER),
            ChatMessage::from_fields(Role::Assistant, fields),
        ];
        let text = self.render(&messages, false)?;
        let at = text.rfind(USER)? + USER.len();
        Some(text[at..].to_string())
    }

    /// An answer with these calls.
    fn calls_text(&self, ids: &[&str], takes_text: bool) -> Option<String> {
        let calls = ids.iter().enumerate();
        let calls: Vec<_> = calls.map(|(i, id)| call(i, id, takes_text)).collect();
        let calls = TemplateValue::list(calls);
        let empty = || TemplateValue::text("");
        let fields = vec![("content", empty()), ("tool_calls", calls.clone())];
        let none = vec![("content", TemplateValue::None), ("tool_calls", calls)];
        let found = |text: &String| text.contains(KEYS[0]);
        let first = self.answer(fields).filter(found);
        first.or_else(|| self.answer(none).filter(found))
    }

    /// Whether the template fails for arguments as objects, and not as text.
    fn takes_text(&self) -> bool {
        let fails = |takes_text| self.calls_text(&IDS[0][..1], takes_text).is_none();
        fails(false) && !fails(true)
    }

    /// Whether the template refuses ids of other lengths than nine.
    fn has_short_ids(&self, takes_text: bool) -> bool {
        let fails = |id: &str| self.calls_text(&[id], takes_text).is_none();
        fails("call_0123456789abcdef") && !fails(IDS[0][0])
    }

    /// An answer with a text only: before and after the text.
    fn plain(&self) -> Option<(String, String)> {
        let text = self.answer(vec![("content", TemplateValue::text(CONTENT))])?;
        let (before, after) = text.split_once(CONTENT)?;
        Some((before.to_string(), after.to_string()))
    }

    /// The field of thoughts, and the tags around them.
    fn thought(&self) -> Option<(&'static str, ThoughtTags)> {
        let (header, _) = self.plain()?;
        let tags = |key: &'static str| {
            let text = self.answer(vec![
                ("content", TemplateValue::text(CONTENT)),
                (key, TemplateValue::text(THOUGHT)),
            ])?;
            let (before, rest) = text.split_once(THOUGHT)?;
            let (between, _) = rest.split_once(CONTENT)?;
            let open = pieces(before);
            let common = same_start(&pieces(&header), &open);
            // The header may have the tags of an empty thought.
            let from = common.min(open.len().checked_sub(1)?);
            let open = TextMarker::new(&before[open[from].start..]);
            let close = TextMarker::new(between);
            let is_tag = |marker: &TextMarker| marker.is_distinct();
            (is_tag(&open) && is_tag(&close)).then_some((key, ThoughtTags { open, close }))
        };
        THOUGHT_KEYS.into_iter().find_map(tags)
    }

    fn calls(&self, takes_text: bool) -> Option<CallFormat> {
        IDS.iter().find_map(|ids| self.calls_with(ids, takes_text))
    }

    fn calls_with(&self, ids: &[&str; 2], takes_text: bool) -> Option<CallFormat> {
        let one = self.calls_text(&ids[..1], takes_text)?;
        let (header, end) = self.plain()?;
        let payload = Payload::find(&one, 0, ids)?;
        // The markers without the header and the end of the turn.
        let before = pieces(&one[..payload.start]);
        let skip = same_start(&pieces(&header), &before);
        let before = &before[skip..];
        let after_text = &one[payload.end..];
        let after = pieces(after_text);
        let keep = after.len() - same_end(&pieces(&end), &after);
        let after = &after[..keep];
        let before = Span::new(&one[..payload.start], before);
        let after = Span::new(after_text, after);
        let two = self.calls_text(ids, takes_text);
        let second = two.as_ref().and_then(|two| {
            let first = Payload::find(two, 0, ids)?;
            let rest = &two[first.end..];
            let second = Payload::find(rest, 1, ids)?;
            Some(&rest[..second.start])
        });
        let (section, call, separator) = match second {
            None => (
                Default::default(),
                (before.marker(), after.marker()),
                TextMarker::default(),
            ),
            Some(middle) => split(&before, &after, middle),
        };
        Some(CallFormat {
            section,
            call,
            separator,
            body: payload.body,
        })
    }
}

/// Pieces of a text.
struct Span<'a> {
    text: &'a str,
    pieces: &'a [TextPiece<'a>],
}

impl<'a> Span<'a> {
    fn new(text: &'a str, pieces: &'a [TextPiece<'a>]) -> Span<'a> {
        Span { text, pieces }
    }

    fn part(&self, from: usize, to: usize) -> Span<'a> {
        Span::new(self.text, &self.pieces[from..to])
    }

    /// The marker of these pieces, with the white space up to the next piece.
    fn marker(&self) -> TextMarker {
        let (Some(first), Some(last)) = (self.pieces.first(), self.pieces.last()) else {
            return TextMarker::default();
        };
        let rest = &self.text[last.end..];
        let blank = rest.len() - rest.trim_start().len();
        let mut marker = TextMarker::new(&self.text[first.start..last.end]);
        marker.spelling += &rest[..blank];
        marker
    }
}

/// The markers of a section and of calls, and the separator, from the text before and after one
/// call and the text between two.
fn split(
    before: &Span<'_>,
    after: &Span<'_>,
    middle: &str,
) -> (
    (TextMarker, TextMarker),
    (TextMarker, TextMarker),
    TextMarker,
) {
    let between = pieces(middle);
    let between = Span::new(middle, &between);
    let count = between.pieces.len();
    let open = same_end(before.pieces, between.pieces);
    let close = same_start(after.pieces, between.pieces).min(count - open);
    let (open_at, close_at) = (before.pieces.len() - open, close);
    let section = (
        before.part(0, open_at).marker(),
        after.part(close_at, after.pieces.len()).marker(),
    );
    let call = (
        before.part(open_at, before.pieces.len()).marker(),
        after.part(0, close_at).marker(),
    );
    let separator = between.part(close, count - open).marker();
    (section, call, separator)
}

fn same_start(a: &[TextPiece<'_>], b: &[TextPiece<'_>]) -> usize {
    let pairs = a.iter().zip(b);
    pairs.take_while(|(a, b)| a.text == b.text).count()
}

fn same_end(a: &[TextPiece<'_>], b: &[TextPiece<'_>]) -> usize {
    let pairs = a.iter().rev().zip(b.iter().rev());
    pairs.take_while(|(a, b)| a.text == b.text).count()
}

/// A call in a rendering, from its object or its name to the end of its arguments.
struct Payload {
    start: usize,
    end: usize,
    body: CallBody,
}

impl Payload {
    fn find(text: &str, index: usize, ids: &[&str; 2]) -> Option<Payload> {
        let key = [KEYS[0], KEYS[3]][index];
        let key_at = text.find(key)?;
        let name_at = text.find(NAMES[index]).filter(|at| *at < key_at);
        let braces = text.match_indices('{').map(|(at, _)| at);
        let mut objects = braces.filter(|at| *at < key_at).filter_map(|at| {
            let mut values =
                serde_json::Deserializer::from_str(&text[at..]).into_iter::<&RawValue>();
            let raw = values.next()?.ok()?.get();
            let has_key = raw.contains(key) && raw.contains(NAMES[index]);
            has_key.then_some((at, raw))
        });
        if let Some((start, raw)) = objects.next() {
            return Payload::object(text, (start, raw), (index, ids));
        }
        let name_at = name_at?;
        Payload::named(text, name_at, (index, ids))
    }

    fn object(
        text: &str,
        (start, raw): (usize, &str),
        (index, ids): (usize, &[&str; 2]),
    ) -> Option<Payload> {
        let mut value: Value = serde_json::from_str(raw).ok()?;
        let mut wrapper = None;
        let is_call = |value: &Value| {
            let fields = value.as_object().into_iter().flatten();
            fields.into_iter().any(|(_, field)| field == NAMES[index])
        };
        if !is_call(&value) {
            let fields = value.as_object()?.iter();
            let (key, inner) = fields.into_iter().find(|(_, field)| is_call(field))?;
            wrapper = Some(key.clone());
            value = inner.clone();
        }
        let fields = value.as_object()?;
        let key_of = |is: &dyn Fn(&Value) -> bool| {
            let (key, _) = fields.iter().find(|(_, field)| is(field))?;
            Some(key.clone())
        };
        let key = [KEYS[0], KEYS[3]][index];
        let has_key = |value: &Value| value.to_string().contains(key);
        let whole: Value = serde_json::from_str(raw).ok()?;
        let id = whole.as_object().and_then(|all| {
            let (key, _) = all.iter().find(|(_, field)| **field == ids[index])?;
            Some(key.clone())
        });
        let end = start + raw.len();
        let is_list = text[..start].trim_end().ends_with('[')
            && text[end..].trim_start().starts_with([']', ',']);
        Some(Payload {
            start,
            end,
            body: CallBody::Json(JsonCall {
                name: key_of(&|value| value == NAMES[index])?,
                arguments: key_of(&|value| has_key(value))?,
                id,
                wrapper,
                is_list,
            }),
        })
    }

    fn named(text: &str, at: usize, (index, ids): (usize, &[&str; 2])) -> Option<Payload> {
        let key = [KEYS[0], KEYS[3]][index];
        let name_end = at + NAMES[index].len();
        let rest = &text[name_end..];
        let between = &rest[..rest.find(key)?];
        let id_prefix = ids[index]
            .split_once(NAMES[index])
            .map(|(prefix, _)| prefix);
        let id_prefix = id_prefix.filter(|prefix| text[..at].ends_with(prefix));
        let named = |after: &str, arguments: ArgumentsForm, end: usize| {
            let mut after = TextMarker::new(after);
            for part in &mut after.parts {
                if *part == MarkerPart::Text(ids[index].to_string()) {
                    *part = MarkerPart::Id;
                }
            }
            if id_prefix.is_some() {
                with_index(&mut after);
            }
            Payload {
                start: at,
                end: name_end + end,
                body: CallBody::Named {
                    after,
                    id_prefix: id_prefix.map(str::to_string),
                    arguments,
                },
            }
        };
        if let Some(brace) = between.rfind('{') {
            let mut values =
                serde_json::Deserializer::from_str(&rest[brace..]).into_iter::<&RawValue>();
            if let Some(Ok(raw)) = values.next() {
                let end = brace + raw.get().len();
                return Some(named(&rest[..brace], ArgumentsForm::Json, end));
            }
        }
        let value = [VALUES[0], VALUES[2]][index];
        let last = [VALUES[1], VALUES[2]][index];
        let (_, after_key) = rest.split_once(key)?;
        let (after_key, _) = after_key.split_once(value)?;
        let last_end = rest.find(last)? + last.len();
        let bracket = between.trim_end().chars().next_back();
        if let Some(open @ ('(' | '{')) = bracket {
            let close = if open == '(' { ')' } else { '}' };
            let quote = after_key.trim_start_matches([':', '=', ' ']);
            let quote = match quote {
                "" | "\"" | "'" => TextMarker::default(),
                quote => TextMarker::new(quote),
            };
            let end = last_end + rest[last_end..].find(close)? + 1;
            return Some(named(
                between,
                ArgumentsForm::Literals { quote, close },
                end,
            ));
        }
        if index > 0 {
            // The markers are those of the first call.
            let close = rest[last_end..].find('>')?;
            let end = last_end + close + 1;
            return Some(named(between, ArgumentsForm::Json, end));
        }
        let (markers, after) = pair_markers(rest, between, after_key)?;
        let close = markers.close.matches(rest[last_end..].trim_start());
        let super::marker::MarkerMatch::Yes(bytes) = close else {
            return None;
        };
        let end = last_end + super::marker::blanks(&rest[last_end..]) + bytes;
        Some(named(&after, ArgumentsForm::Pairs(markers), end))
    }
}

/// Replaces the digits of `:0` by any digits.
fn with_index(marker: &mut TextMarker) {
    let Some(MarkerPart::Text(first)) = marker.parts.first() else {
        return;
    };
    let text = first.trim_end_matches(|c: char| c.is_ascii_digit());
    if text.len() < first.len() {
        let text = MarkerPart::Text(text.to_string());
        marker.parts.splice(0..1, [text, MarkerPart::Digits]);
    }
}

/// The markers of arguments as tags, and the text after the name. `rest` follows the name.
fn pair_markers(rest: &str, between: &str, after_key: &str) -> Option<(PairMarkers, String)> {
    let (_, from_value) = rest.split_once(VALUES[0])?;
    let (middle, from_key) = from_value.split_once(KEYS[1])?;
    let (after_number_key, _) = from_key.split_once(NUMBER)?;
    let (first, second) = (pieces(between), pieces(middle));
    let open = same_end(&first, &second);
    if open == 0 || open == second.len() || middle.contains(KEYS[0]) {
        return None;
    }
    let open_at = first.len() - open;
    let close = Span::new(middle, &second[..second.len() - open]).marker();
    let has_lines = after_key.ends_with('\n') && middle.starts_with('\n');
    let markers = PairMarkers {
        open: Span::new(between, &first[open_at..]).marker(),
        after_key: [
            TextMarker::new(after_key),
            TextMarker::new(after_number_key),
        ],
        close,
        has_lines,
    };
    Some((markers, between[..first[open_at].start].to_string()))
}
