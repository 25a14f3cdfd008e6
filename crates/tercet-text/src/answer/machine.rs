//! The state machine that takes an answer apart while it is written.

mod channels;
mod tags;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use self::tags::PairValue;
use super::arguments::{LiteralScanner, ObjectScanner, StringDecoder};
use super::format::{ArgumentsForm, CallBody};
use super::head::{ArgumentsStart, CallHead, HeadMatch, read_head};
use super::marker::{MarkerMatch, TextMarker, begins_any, blanks};
use super::{AnswerEvent, AnswerFormat, AnswerTool, ParsedAnswer};

/// Maximum bytes of the head of a call.
const MAX_HEAD: usize = 1 << 20;

/// The place in an answer.
#[derive(Clone, Debug)]
enum AnswerPlace {
    /// Before the first text: a thought or a call without a marker may begin.
    Start,
    /// The header of a channel.
    Header,
    /// A thought that ends with this marker.
    Thought(TextMarker),
    Text,
    /// The arguments of a call, in objects to this depth.
    Object {
        scanner: ObjectScanner,
        decoder: Option<StringDecoder>,
        depth: usize,
    },
    Literals(LiteralScanner),
    Pairs {
        is_first: bool,
    },
    Value(PairValue),
    /// Text after a value that had the marker of its end in it. It is dropped if more arguments or the
    /// end of the call follow.
    PairGap {
        held: String,
    },
    /// After the arguments, in this many objects.
    ObjectTail {
        depth: usize,
        in_string: bool,
        is_escaped: bool,
        has_comma: bool,
    },
    CallTail,
}

/// Parser of an answer: thoughts, text, and calls of tools. It accepts the answer in pieces; the
/// events do not depend on the ends of the pieces.
///
/// ```
/// use tercet_text::answer::{AnswerEvent, AnswerFormat, AnswerParser, AnswerTool};
/// let tools = [AnswerTool::new("now", None)];
/// let mut parser = AnswerParser::new(&AnswerFormat::default(), &tools, "");
/// let mut events = parser.push("<think>The clock.</think>\n<tool_call>{\"name\": \"now\", ");
/// assert_eq!(events, [AnswerEvent::Thought("The clock.".into())]);
/// events = parser.push("\"arguments\": {}}</tool_call>");
/// assert!(matches!(&events[0], AnswerEvent::Call { name, .. } if name == "now"));
/// assert_eq!(events[1], AnswerEvent::Arguments("{}".into()));
/// assert!(parser.finish().is_empty());
/// ```
#[derive(Clone, Debug)]
pub struct AnswerParser {
    format: Arc<AnswerFormat>,
    tools: Arc<[AnswerTool]>,
    /// Whether calls of other tools are calls, too.
    takes_any_tool: bool,
    /// Whether only the first call is returned.
    is_single: bool,
    place: AnswerPlace,
    /// Text that was not consumed.
    rest: String,
    /// White space that is returned only if more text follows.
    blank: String,
    /// Whether white space before the next text is dropped.
    drops_blank: bool,
    calls: usize,
    /// The name of the open call.
    name: String,
    /// Whether the last call began without a marker.
    is_bare: bool,
    /// Whether the last calls are in a list that the format has no marker for.
    is_in_list: bool,
    /// Length of `rest` from which the head of a call is read again.
    next_head: usize,
    /// Whether the text ended.
    is_done: bool,
    events: Vec<AnswerEvent>,
}

impl AnswerParser {
    /// A parser for an answer of this format after `prompt`, which may end within a thought. Only
    /// calls of these tools are calls.
    #[must_use]
    pub fn new(format: &AnswerFormat, tools: &[AnswerTool], prompt: &str) -> AnswerParser {
        let open = format.thoughts.iter().find(|tags| tags.open.ends(prompt));
        let place = match open {
            Some(tags) => AnswerPlace::Thought(tags.close.clone()),
            None if format.has_channels => AnswerPlace::Header,
            None => AnswerPlace::Start,
        };
        AnswerParser {
            format: Arc::new(format.clone()),
            tools: tools.into(),
            takes_any_tool: false,
            is_single: false,
            drops_blank: matches!(place, AnswerPlace::Thought(_)),
            place,
            rest: String::new(),
            blank: String::new(),
            calls: 0,
            name: String::new(),
            is_bare: false,
            is_in_list: false,
            next_head: 0,
            is_done: false,
            events: Vec::new(),
        }
    }

    /// Returns only the first call.
    #[must_use]
    pub fn with_single_call(mut self, is_single: bool) -> AnswerParser {
        self.is_single = is_single;
        self
    }

    /// Takes calls of tools with any name, if they begin with a marker. An answer that is
    /// only shown has no list of tools.
    #[must_use]
    pub fn with_any_tool(mut self) -> AnswerParser {
        self.takes_any_tool = true;
        self
    }

    /// Adds a piece of the answer.
    pub fn push(&mut self, piece: &str) -> Vec<AnswerEvent> {
        self.rest += piece;
        while self.step() {}
        std::mem::take(&mut self.events)
    }

    /// The marker that ends the thought which the answer is in, as the template writes it; `None`
    /// outside of thoughts.
    #[must_use]
    pub fn open_thought(&self) -> Option<&str> {
        match &self.place {
            AnswerPlace::Thought(close) => Some(&close.spelling),
            _ => None,
        }
    }

    /// Ends the answer and returns the remaining events.
    pub fn finish(&mut self) -> Vec<AnswerEvent> {
        self.is_done = true;
        self.next_head = 0;
        while self.step() {}
        if matches!(self.place, AnswerPlace::Text | AnswerPlace::Start)
            && self.calls == 0
            && !self.drops_blank
        {
            let blank = std::mem::take(&mut self.blank);
            self.event(AnswerEvent::Text(blank));
        }
        std::mem::take(&mut self.events)
    }

    /// Parses a whole answer.
    #[must_use]
    pub fn parse(mut self, text: &str) -> ParsedAnswer {
        let mut answer = ParsedAnswer::default();
        self.push(text).into_iter().for_each(|e| answer.add(e));
        self.finish().into_iter().for_each(|e| answer.add(e));
        answer
    }

    fn event(&mut self, event: AnswerEvent) {
        let is_muted = self.is_single && self.calls > 1;
        match (&event, self.events.last_mut()) {
            (AnswerEvent::Call { .. } | AnswerEvent::Arguments(_), _) if is_muted => {}
            (AnswerEvent::Text(new), _) | (AnswerEvent::Thought(new), _) if new.is_empty() => {}
            (AnswerEvent::Arguments(new), _) if new.is_empty() => {}
            (AnswerEvent::Text(new), Some(AnswerEvent::Text(old)))
            | (AnswerEvent::Thought(new), Some(AnswerEvent::Thought(old)))
            | (AnswerEvent::Arguments(new), Some(AnswerEvent::Arguments(old))) => old.push_str(new),
            _ => self.events.push(event),
        }
    }

    /// Removes the first bytes of the rest.
    fn take(&mut self, bytes: usize) -> String {
        if bytes == 0 {
            return String::new();
        }
        let rest = self.rest.split_off(bytes);
        std::mem::replace(&mut self.rest, rest)
    }

    fn is_tool(&self, name: &str) -> bool {
        let is_known = self.tools.iter().any(|tool| tool.name == name);
        is_known || (self.takes_any_tool && !name.is_empty())
    }

    /// Advances by one part; false if more text is needed.
    fn step(&mut self) -> bool {
        match std::mem::replace(&mut self.place, AnswerPlace::Text) {
            AnswerPlace::Start => self.start(),
            AnswerPlace::Header => self.header(),
            AnswerPlace::Thought(close) => self.thought(close),
            AnswerPlace::Text => self.text(),
            AnswerPlace::Object {
                scanner,
                decoder,
                depth,
            } => self.object(scanner, decoder, depth),
            AnswerPlace::Literals(scanner) => self.literals(scanner),
            AnswerPlace::Pairs { is_first } => self.pairs(is_first),
            AnswerPlace::Value(value) => self.value(value),
            AnswerPlace::PairGap { held } => self.pair_gap(held),
            AnswerPlace::ObjectTail {
                depth,
                in_string,
                is_escaped,
                has_comma,
            } => self.object_tail(depth, in_string, is_escaped, has_comma),
            AnswerPlace::CallTail => self.call_tail(),
        }
    }

    /// Sets the place and waits for more text.
    fn wait(&mut self, place: AnswerPlace) -> bool {
        self.place = place;
        false
    }

    fn go(&mut self, place: AnswerPlace) -> bool {
        self.place = place;
        true
    }

    fn start(&mut self) -> bool {
        let blank = blanks(&self.rest);
        if blank == self.rest.len() {
            return match self.is_done {
                true => self.go(AnswerPlace::Text),
                false => self.wait(AnswerPlace::Start),
            };
        }
        let begun = &self.rest[blank..];
        let mut is_partial = false;
        for tags in &self.format.thoughts {
            match tags.open.matches(begun) {
                MarkerMatch::Yes(bytes) => {
                    let close = tags.close.clone();
                    self.take(blank + bytes);
                    self.drops_blank = true;
                    return self.go(AnswerPlace::Thought(close));
                }
                MarkerMatch::Partial => is_partial = true,
                MarkerMatch::No => {}
            }
            // Some templates begin an answer without a thought with the end of thoughts.
            match tags.close.matches(begun) {
                MarkerMatch::Yes(bytes) if bytes > 0 => {
                    self.take(blank + bytes);
                    self.drops_blank = true;
                    return self.go(AnswerPlace::Start);
                }
                MarkerMatch::Partial => is_partial = true,
                MarkerMatch::Yes(_) | MarkerMatch::No => {}
            }
        }
        if !self.tools.is_empty() {
            match self.bare_call(blank) {
                Some(HeadMatch::Call(head)) => {
                    self.is_bare = true;
                    return self.begin_call(head);
                }
                Some(HeadMatch::Partial) => is_partial = true,
                Some(HeadMatch::No) | None => {}
            }
        }
        if is_partial && !self.is_done {
            return self.wait(AnswerPlace::Start);
        }
        self.go(AnswerPlace::Text)
    }

    /// Reads a call that begins at a byte of the rest with no marker, or one that text may begin
    /// with, too.
    fn bare_call(&mut self, at: usize) -> Option<HeadMatch> {
        const PYTHON: &str = "<|python_tag|>";
        let format = Arc::clone(&self.format);
        let openings = match format.calls.is_bare() {
            true => format.calls.openings(),
            false => Vec::new(),
        };
        let mut is_partial = false;
        for opening in openings {
            match opening.matches(&self.rest[at..]) {
                MarkerMatch::Yes(bytes) => match self.head(at + bytes, false) {
                    HeadMatch::No => {}
                    head => return Some(head),
                },
                MarkerMatch::Partial => is_partial = true,
                MarkerMatch::No => {}
            }
        }
        let begun = &self.rest[at..];
        if PYTHON.starts_with(begun) {
            return Some(HeadMatch::Partial);
        }
        let tag = if begun.starts_with(PYTHON) {
            PYTHON.len()
        } else {
            0
        };
        let at = at + tag + blanks(&begun[tag..]);
        let found = match self.rest[at..].chars().next() {
            None => HeadMatch::Partial,
            Some('{') => self.object_head(at, true),
            Some(_) => HeadMatch::No,
        };
        Some(match (found, is_partial) {
            (HeadMatch::No, true) => HeadMatch::Partial,
            (found, _) => found,
        })
    }

    /// Reads the head of a call that is an object, in any format of the model.
    fn object_head(&mut self, at: usize, is_bare: bool) -> HeadMatch {
        let format = Arc::clone(&self.format);
        let plain;
        let calls = match format.calls.body {
            CallBody::Json(_) => &format.calls,
            CallBody::Named { .. } => {
                plain = super::format::CallFormat::hermes();
                &plain
            }
        };
        self.limited(at, |this, text| {
            read_head(calls, text, is_bare, &|name| this.is_tool(name))
        })
    }

    /// Reads the head of a call at a byte of the rest.
    fn head(&mut self, at: usize, is_bare: bool) -> HeadMatch {
        let format = Arc::clone(&self.format);
        self.limited(at, |this, text| {
            read_head(&format.calls, text, is_bare, &|name| this.is_tool(name))
        })
    }

    /// Reads a head again only after the text has grown by a part, so that the time stays
    /// proportional to the text.
    fn limited(&mut self, at: usize, read: impl Fn(&Self, &str) -> HeadMatch) -> HeadMatch {
        let len = self.rest.len();
        if len < self.next_head {
            return HeadMatch::Partial;
        }
        let mut found = read(self, &self.rest[at..]);
        self.next_head = 0;
        if let HeadMatch::Partial = found {
            match self.is_done || len - at > MAX_HEAD {
                true => found = HeadMatch::No,
                false => self.next_head = len + len / 32,
            }
        }
        if let HeadMatch::Call(head) = &mut found {
            head.bytes += at;
        }
        found
    }

    fn begin_call(&mut self, head: CallHead) -> bool {
        self.take(head.bytes);
        self.blank.clear();
        self.drops_blank = true;
        self.calls += 1;
        self.is_in_list |= head.begins_list;
        let id = head.id.filter(|id| !id.is_empty());
        let id = id.unwrap_or_else(|| self.format.new_id());
        self.name.clone_from(&head.name);
        let name = head.name;
        self.event(AnswerEvent::Call { id, name });
        let place = match head.arguments {
            ArgumentsStart::Object { depth } => AnswerPlace::Object {
                scanner: ObjectScanner::default(),
                decoder: None,
                depth,
            },
            ArgumentsStart::Text { depth } => AnswerPlace::Object {
                scanner: ObjectScanner::default(),
                decoder: Some(StringDecoder::default()),
                depth,
            },
            ArgumentsStart::Done { json, depth } => {
                let mut scanner = ObjectScanner::default();
                let mut out = String::new();
                json.chars().for_each(|c| {
                    scanner.push(c, &mut out);
                });
                self.event(AnswerEvent::Arguments(out));
                object_tail(depth)
            }
            ArgumentsStart::Literals => {
                let mut out = String::new();
                let scanner = LiteralScanner::new(&mut out);
                self.event(AnswerEvent::Arguments(out));
                AnswerPlace::Literals(scanner)
            }
            ArgumentsStart::Pairs => AnswerPlace::Pairs { is_first: true },
        };
        self.go(place)
    }

    fn thought(&mut self, close: TextMarker) -> bool {
        let found = match self.format.has_channels && close.is_empty() {
            true => self.channel_end(),
            false => close.find(&self.rest),
        };
        let (at, found) = found.unwrap_or((self.rest.len(), MarkerMatch::No));
        let text = self.take(at);
        self.say(&text, true);
        match found {
            MarkerMatch::Yes(bytes) => {
                self.blank.clear();
                self.drops_blank = true;
                if close.is_empty() {
                    return self.end_channel(bytes);
                }
                self.take(bytes);
                self.go(AnswerPlace::Start)
            }
            MarkerMatch::Partial if self.is_done => {
                let text = self.take(self.rest.len());
                self.say(&text, true);
                self.wait(AnswerPlace::Thought(close))
            }
            MarkerMatch::Partial | MarkerMatch::No => self.wait(AnswerPlace::Thought(close)),
        }
    }

    /// Returns a text, without white space at its end until more text follows.
    fn say(&mut self, text: &str, is_thought: bool) {
        let mut text = text;
        if self.drops_blank {
            text = text.trim_start();
        }
        if text.is_empty() {
            return;
        }
        let kept = text.trim_end();
        if !kept.is_empty() {
            self.drops_blank = false;
            let said = std::mem::take(&mut self.blank) + kept;
            self.event(match is_thought {
                true => AnswerEvent::Thought(said),
                false => AnswerEvent::Text(said),
            });
        }
        self.blank += &text[kept.len()..];
    }

    fn text(&mut self) -> bool {
        if self.format.has_channels {
            return self.channel_text();
        }
        let openings = match self.tools.is_empty() && !self.takes_any_tool {
            true => Vec::new(),
            false => self.format.calls.openings(),
        };
        let distinct = openings.iter().filter(|opening| opening.is_distinct());
        let found = distinct.filter_map(|opening| opening.find(&self.rest));
        // At the same place, a marker that is complete comes first, then the longest.
        let found = found.min_by_key(|(at, found)| match found {
            MarkerMatch::Yes(bytes) => (*at, 1, usize::MAX - bytes),
            MarkerMatch::Partial => (*at, 0, 0),
            MarkerMatch::No => (*at, 2, 0),
        });
        let Some((at, found)) = found else {
            let text = self.take(self.rest.len());
            self.say(&text, false);
            return self.wait(AnswerPlace::Text);
        };
        let text = self.take(at);
        self.next_head = self.next_head.saturating_sub(at);
        self.say(&text, false);
        let head = match found {
            MarkerMatch::Yes(bytes) => {
                (self.is_bare, self.is_in_list) = (false, false);
                self.head(bytes, false)
            }
            MarkerMatch::Partial if self.is_done => HeadMatch::No,
            MarkerMatch::Partial | MarkerMatch::No => HeadMatch::Partial,
        };
        match head {
            HeadMatch::Call(head) => self.begin_call(head),
            HeadMatch::Partial => self.wait(AnswerPlace::Text),
            HeadMatch::No => {
                // This marker is text.
                let first = self.rest.chars().next().map_or(0, char::len_utf8);
                let text = self.take(first);
                self.say(&text, false);
                self.go(AnswerPlace::Text)
            }
        }
    }

    fn object(
        &mut self,
        mut scanner: ObjectScanner,
        mut decoder: Option<StringDecoder>,
        depth: usize,
    ) -> bool {
        let mut out = String::new();
        let mut used = 0;
        let mut end = None;
        for (at, c) in self.rest.char_indices() {
            used = at + c.len_utf8();
            if let Some(decoder) = &mut decoder {
                match decoder.push(c) {
                    Some(text) => text.chars().for_each(|c| {
                        scanner.push(c, &mut out);
                    }),
                    None => {
                        end = Some(object_tail(depth));
                        break;
                    }
                }
                continue;
            }
            if scanner.is_outside() && matches!(c, '<' | '[') {
                // Broken JSON: the object ends with the call.
                match self.ends_call(at) {
                    MarkerMatch::Yes(_) => {
                        used = at;
                        end = Some(AnswerPlace::CallTail);
                        break;
                    }
                    MarkerMatch::Partial if !self.is_done => {
                        used = at;
                        break;
                    }
                    MarkerMatch::Partial | MarkerMatch::No => {}
                }
            }
            if scanner.push(c, &mut out) {
                end = Some(object_tail(depth));
                break;
            }
        }
        self.take(used);
        self.event(AnswerEvent::Arguments(out));
        match end {
            Some(place) => self.go(place),
            None => self.wait(AnswerPlace::Object {
                scanner,
                decoder,
                depth,
            }),
        }
    }

    /// Whether a marker that ends a call is at a byte of the rest.
    fn ends_call(&self, at: usize) -> MarkerMatch {
        let text = &self.rest[at..];
        let mut closings = self.format.calls.closings();
        closings.retain(|marker| marker.is_distinct());
        if self.format.has_channels {
            closings = ["<|call|>", "<|end|>"].map(TextMarker::new).to_vec();
        }
        begins_any(&closings, text)
    }

    fn literals(&mut self, mut scanner: LiteralScanner) -> bool {
        let format = Arc::clone(&self.format);
        let CallBody::Named {
            arguments: ArgumentsForm::Literals { quote, .. },
            ..
        } = &format.calls.body
        else {
            return self.go(AnswerPlace::CallTail);
        };
        let mut out = String::new();
        let (mut used, mut is_end) = (0, false);
        while let Some(c) = self.rest[used..].chars().next() {
            let found = match quote.is_empty() {
                true => MarkerMatch::No,
                false => quote.matches(&self.rest[used..]),
            };
            match found {
                MarkerMatch::Yes(bytes) => {
                    scanner.push_quote(&mut out);
                    used += bytes;
                    continue;
                }
                MarkerMatch::Partial if !self.is_done => break,
                MarkerMatch::Partial | MarkerMatch::No => {}
            }
            used += c.len_utf8();
            if scanner.push(c, &mut out) {
                is_end = true;
                break;
            }
        }
        self.take(used);
        self.event(AnswerEvent::Arguments(out));
        match is_end {
            true => self.go(AnswerPlace::CallTail),
            false => self.wait(AnswerPlace::Literals(scanner)),
        }
    }

    /// Skips the rest of the objects of a call.
    fn object_tail(
        &mut self,
        mut depth: usize,
        mut in_string: bool,
        mut is_escaped: bool,
        mut has_comma: bool,
    ) -> bool {
        let mut used = 0;
        for (at, c) in self.rest.char_indices() {
            if depth == 0 {
                break;
            }
            let is_end = match (in_string, c) {
                (true, _) => false,
                (false, '<') => true,
                (false, c) => !has_comma && !c.is_whitespace() && !matches!(c, ',' | '}'),
            };
            if is_end {
                depth = 0;
                break;
            }
            used = at + c.len_utf8();
            if in_string {
                in_string = is_escaped || c != '"';
                is_escaped = !is_escaped && c == '\\';
                continue;
            }
            match c {
                '{' | '[' => depth += 1,
                '}' | ']' => depth -= 1,
                '"' => in_string = true,
                ',' => has_comma = true,
                _ => {}
            }
        }
        self.take(used);
        match depth {
            0 => self.go(AnswerPlace::CallTail),
            _ => self.wait(AnswerPlace::ObjectTail {
                depth,
                in_string,
                is_escaped,
                has_comma,
            }),
        }
    }

    /// The markers after a call, and the next call of a list.
    fn call_tail(&mut self) -> bool {
        if self.format.has_channels {
            return self.go(AnswerPlace::Text);
        }
        let format = Arc::clone(&self.format);
        let blank = blanks(&self.rest);
        if blank == self.rest.len() {
            return self.wait(AnswerPlace::CallTail);
        }
        let begun = &self.rest[blank..];
        let mut closings = format.calls.closings();
        let is_json = matches!(format.calls.body, CallBody::Json(_));
        let (is_list, is_bare) = match &format.calls.body {
            CallBody::Json(keys) => (keys.is_list, self.is_bare || format.calls.is_bare()),
            CallBody::Named { .. } => (!format.calls.separator.is_empty(), self.is_bare),
        };
        if is_list || is_bare || self.is_in_list {
            closings.extend([",", ";"].map(TextMarker::new));
        }
        if self.is_in_list {
            closings.push(TextMarker::new("]"));
        }
        let mut is_partial = false;
        for marker in closings {
            match marker.matches(begun) {
                MarkerMatch::Yes(bytes) => {
                    self.take(blank + bytes);
                    return self.go(AnswerPlace::CallTail);
                }
                MarkerMatch::Partial => is_partial = true,
                MarkerMatch::No => {}
            }
        }
        let next = match (is_json || is_bare) && begun.starts_with('{') {
            true => self.object_head(blank, self.is_bare),
            false if is_list && !is_json && format.calls.call.0.is_empty() => {
                self.head(blank, false)
            }
            false => HeadMatch::No,
        };
        match next {
            HeadMatch::Call(head) => return self.begin_call(head),
            HeadMatch::Partial => is_partial = true,
            HeadMatch::No => {}
        }
        match is_partial {
            true if self.is_done => {
                // The answer was cut within a marker.
                if next_is_marker(&self.rest[blank..]) {
                    self.rest.clear();
                    return self.wait(AnswerPlace::CallTail);
                }
                self.go(AnswerPlace::Text)
            }
            true => self.wait(AnswerPlace::CallTail),
            false => self.go(AnswerPlace::Text),
        }
    }
}

/// Whether a cut text looks like a part of a marker.
fn next_is_marker(text: &str) -> bool {
    text.starts_with(['<', '[', ']', '`'])
}

fn object_tail(depth: usize) -> AnswerPlace {
    match depth {
        0 => AnswerPlace::CallTail,
        depth => AnswerPlace::ObjectTail {
            depth,
            in_string: false,
            is_escaped: false,
            has_comma: false,
        },
    }
}

/// A random id of a call, with this prefix and number of digits.
pub(super) fn random_id(prefix: &str, digits: usize) -> String {
    let number = RandomState::new().hash_one(0u8);
    let text = format!("{number:016x}");
    format!("{prefix}{}", &text[..digits.min(16)])
}
