//! Arguments that are written as tags, and their values.

use serde_json::Value;

use super::super::AnswerEvent;
use super::super::arguments::{escaped, is_text, value_json};
use super::super::format::{ArgumentsForm, CallBody, PairMarkers};
use super::super::marker::{MarkerMatch, TextMarker, blanks};
use super::{AnswerParser, AnswerPlace};

/// The value of a key, between markers.
#[derive(Clone, Debug)]
pub(super) struct PairValue {
    /// The schema of the value.
    schema: Option<Value>,
    /// A text that is written as it arrives.
    is_text: bool,
    is_begun: bool,
    /// The line end before the value was read.
    has_line: bool,
    section: LiteralSection,
    /// The value so far, if it is not written yet.
    held: String,
}

/// A section of a value that markers do not end: `<![CDATA[` to `]]>`, in which MiniCPM writes values with `<` and `&`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LiteralSection {
    /// The value has not begun.
    Before,
    Inside,
    /// A section has ended, and another one may follow.
    After,
    /// The value has other text.
    Never,
}

const SECTION_START: &str = "<![CDATA[";
const SECTION_END: &str = "]]>";

impl AnswerParser {
    pub(super) fn pair_markers(&self) -> PairMarkers {
        match &self.format.calls.body {
            CallBody::Named {
                arguments: ArgumentsForm::Pairs(markers),
                ..
            } => markers.clone(),
            // Only calls with pairs have this place.
            CallBody::Named { .. } | CallBody::Json(_) => PairMarkers {
                open: TextMarker::default(),
                after_key: Default::default(),
                close: TextMarker::default(),
                has_lines: false,
            },
        }
    }

    pub(super) fn pairs(&mut self, is_first: bool) -> bool {
        let markers = self.pair_markers();
        let blank = blanks(&self.rest);
        let begun = &self.rest[blank..];
        let found = match begun.is_empty() {
            true => MarkerMatch::Partial,
            false => markers.open.matches(begun),
        };
        let bytes = match found {
            MarkerMatch::Yes(bytes) => blank + bytes,
            MarkerMatch::Partial if !self.is_done => {
                return self.wait(AnswerPlace::Pairs { is_first });
            }
            MarkerMatch::Partial => {
                // The answer was cut here.
                self.rest.clear();
                return self.wait(AnswerPlace::Pairs { is_first });
            }
            MarkerMatch::No if is_first => {
                self.event(AnswerEvent::Arguments("{}".to_string()));
                return self.go(AnswerPlace::CallTail);
            }
            MarkerMatch::No => return self.end_of_pairs(begun.len()),
        };
        // The key ends at the first of the markers after keys.
        let rest = &self.rest[bytes..];
        let ends = markers.after_key.iter().enumerate();
        let ends = ends.filter_map(|(i, marker)| Some((marker.find(rest)?, i)));
        let end = ends.min_by_key(|((at, found), _)| match found {
            MarkerMatch::Yes(_) => (*at, 0),
            MarkerMatch::Partial => (*at, 1),
            MarkerMatch::No => (*at, 2),
        });
        let Some(((at, MarkerMatch::Yes(len)), which)) = end else {
            if self.is_done {
                self.rest.clear();
            }
            return self.wait(AnswerPlace::Pairs { is_first });
        };
        let key = rest[..at].trim().to_string();
        self.take(bytes + at + len);
        let start = if is_first { '{' } else { ',' };
        self.event(AnswerEvent::Arguments(format!(
            "{start}{}:",
            Value::from(key.as_str())
        )));
        let tool = self.tools.iter().find(|tool| tool.name == self.name);
        let schema = tool.and_then(|tool| tool.property(&key)).cloned();
        let tells_kind = markers.after_key[0] != markers.after_key[1];
        self.go(AnswerPlace::Value(PairValue {
            is_text: match tells_kind {
                true => which == 0,
                false => schema.as_ref().is_some_and(is_text),
            },
            schema,
            is_begun: false,
            has_line: false,
            section: LiteralSection::Before,
            held: String::new(),
        }))
    }

    /// The place after a value that no key follows: the end of the call, or text. `bytes` are those of
    /// the rest after its white space.
    fn end_of_pairs(&mut self, bytes: usize) -> bool {
        let begun = &self.rest[self.rest.len() - bytes..];
        let calls = &self.format.calls;
        let (closings, openings) = (calls.closings(), calls.openings());
        // A model may leave out the end of a call.
        let ends = closings.iter().chain(&openings);
        let found: Vec<MarkerMatch> = ends.map(|marker| marker.matches(begun)).collect();
        let is_end = found.iter().any(|m| matches!(m, MarkerMatch::Yes(_)));
        if !is_end && found.contains(&MarkerMatch::Partial) && !self.is_done {
            return self.wait(AnswerPlace::Pairs { is_first: false });
        }
        if is_end || closings.is_empty() || self.is_done {
            self.event(AnswerEvent::Arguments("}".to_string()));
            return self.go(AnswerPlace::CallTail);
        }
        let held = String::new();
        self.go(AnswerPlace::PairGap { held })
    }

    /// Drops text up to the next key or the end of the call. Without these, the text is part of the
    /// answer.
    pub(super) fn pair_gap(&mut self, mut held: String) -> bool {
        let mut markers = self.format.calls.closings();
        markers.push(self.pair_markers().open);
        let found = markers.iter().filter_map(|marker| marker.find(&self.rest));
        let found = found.min_by_key(|(at, found)| (*at, *found == MarkerMatch::Partial));
        let (at, found) = found.unwrap_or((self.rest.len(), MarkerMatch::No));
        if let MarkerMatch::Yes(_) = found {
            self.take(at);
            return self.go(AnswerPlace::Pairs { is_first: false });
        }
        if !self.is_done {
            held += &self.take(at);
            return self.wait(AnswerPlace::PairGap { held });
        }
        self.rest.insert_str(0, &held);
        self.event(AnswerEvent::Arguments("}".to_string()));
        self.go(AnswerPlace::CallTail)
    }

    pub(super) fn value(&mut self, mut value: PairValue) -> bool {
        let markers = self.pair_markers();
        if markers.has_lines && !value.is_begun && !value.has_line {
            match self.rest.chars().next() {
                None if !self.is_done => return self.wait(AnswerPlace::Value(value)),
                Some('\n') => {
                    self.take(1);
                }
                _ => {}
            }
            value.has_line = true;
        }
        if let LiteralSection::Before | LiteralSection::After = value.section {
            if self.rest.starts_with(SECTION_START) {
                self.take(SECTION_START.len());
                value.section = LiteralSection::Inside;
            } else if SECTION_START.starts_with(&self.rest) && !self.is_done {
                return self.wait(AnswerPlace::Value(value));
            } else if value.section == LiteralSection::Before {
                value.section = LiteralSection::Never;
            }
        }
        let is_first = !std::mem::replace(&mut value.is_begun, true);
        if is_first && value.is_text {
            self.event(AnswerEvent::Arguments("\"".to_string()));
        }
        if value.section == LiteralSection::Inside {
            return self.section(value);
        }
        let (at, found) = match markers.close.find(&self.rest) {
            Some((at, MarkerMatch::Yes(bytes))) => (at, Some(bytes)),
            Some((at, _)) => (at, None),
            None => (self.rest.len(), None),
        };
        let text = self.take(at);
        // White space between a section and the marker is no part of the value.
        if value.section != LiteralSection::After || !text.trim().is_empty() {
            value.held += &text;
        }
        let is_line = markers.has_lines && value.held.ends_with('\n');
        if let Some(bytes) = found {
            self.take(bytes);
            if is_line {
                value.held.pop();
            }
            let end = match value.is_text {
                true => format!("{}\"", escaped(&value.held)),
                false => value_json(&value.held, value.schema.as_ref()),
            };
            self.event(AnswerEvent::Arguments(end));
            return self.go(AnswerPlace::Pairs { is_first: false });
        }
        if value.is_text {
            let kept = match is_line && !self.is_done {
                true => value.held.split_off(value.held.len() - 1),
                false => String::new(),
            };
            let text = std::mem::replace(&mut value.held, kept);
            self.event(AnswerEvent::Arguments(escaped(&text)));
        }
        if self.is_done {
            self.rest.clear();
        }
        self.wait(AnswerPlace::Value(value))
    }

    /// Reads a section of a value up to its end.
    fn section(&mut self, mut value: PairValue) -> bool {
        let end = self.rest.find(SECTION_END);
        let at = end.unwrap_or_else(|| {
            // The last bytes may be the start of the end.
            let begun = (1..SECTION_END.len()).rev();
            let mut begun = begun.filter(|len| self.rest.ends_with(&SECTION_END[..*len]));
            let kept = if self.is_done {
                0
            } else {
                begun.next().unwrap_or(0)
            };
            self.rest.len() - kept
        });
        let text = self.take(at);
        match value.is_text {
            true => self.event(AnswerEvent::Arguments(escaped(&text))),
            false => value.held += &text,
        }
        if end.is_some() {
            self.take(SECTION_END.len());
            value.section = LiteralSection::After;
            return self.go(AnswerPlace::Value(value));
        }
        self.wait(AnswerPlace::Value(value))
    }
}
