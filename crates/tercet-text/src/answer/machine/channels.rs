//! Answers that consist of messages on channels, as gpt-oss writes them.

use super::super::head::{ArgumentsStart, CallHead};
use super::super::marker::{MarkerMatch, TextMarker};
use super::{AnswerParser, AnswerPlace};

/// Maximum bytes of a header of a channel.
const MAX_HEADER: usize = 512;

impl AnswerParser {
    /// The header of a channel: its name, and the recipient of a call.
    pub(super) fn header(&mut self) -> bool {
        const MESSAGE: &str = "<|message|>";
        let Some(at) = self.rest.find(MESSAGE) else {
            let begun = self.rest.trim_start();
            let may_be = begun.is_empty()
                || ["<|channel|>", "<|start|>", "to=", "assistant"]
                    .iter()
                    .any(|start| begun.starts_with(start) || start.starts_with(begun));
            if may_be && !self.is_done && self.rest.len() <= MAX_HEADER {
                return self.wait(AnswerPlace::Header);
            }
            if self.is_done && may_be {
                self.rest.clear();
            }
            return match self.rest.is_empty() {
                true => self.wait(AnswerPlace::Header),
                false => self.go(AnswerPlace::Text),
            };
        };
        let header = self.take(at + MESSAGE.len());
        let recipient = header.split_once("to=functions.").map(|(_, name)| {
            let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
            name.split(|c| !is_name(c))
                .next()
                .unwrap_or_default()
                .to_string()
        });
        let channel = header
            .split_once("<|channel|>")
            .map_or("", |(_, name)| name);
        self.blank.clear();
        self.drops_blank = true;
        match recipient {
            Some(name) if self.is_tool(&name) => self.begin_call(CallHead {
                begins_list: false,
                name,
                id: None,
                bytes: 0,
                arguments: ArgumentsStart::Object { depth: 0 },
            }),
            _ if channel.trim_start().starts_with("analysis") => {
                self.go(AnswerPlace::Thought(TextMarker::default()))
            }
            _ => self.go(AnswerPlace::Text),
        }
    }

    /// The end of a channel's text, if channels are used: the first end token.
    pub(super) fn channel_end(&self) -> Option<(usize, MarkerMatch)> {
        let ends = [
            "<|end|>",
            "<|return|>",
            "<|call|>",
            "<|start|>",
            "<|channel|>",
        ];
        let ends = ends
            .iter()
            .filter_map(|end| TextMarker::new(end).find(&self.rest));
        ends.min_by_key(|(at, _)| *at)
    }

    pub(super) fn end_channel(&mut self, bytes: usize) -> bool {
        let is_end = !self.rest.starts_with("<|start|>") && !self.rest.starts_with("<|channel|>");
        self.take(if is_end { bytes } else { 0 });
        self.go(AnswerPlace::Header)
    }

    pub(super) fn channel_text(&mut self) -> bool {
        let (at, found) = self
            .channel_end()
            .unwrap_or((self.rest.len(), MarkerMatch::No));
        let text = self.take(at);
        self.say(&text, false);
        match found {
            MarkerMatch::Yes(bytes) => {
                self.blank.clear();
                self.end_channel(bytes)
            }
            MarkerMatch::Partial if self.is_done => {
                let text = self.take(self.rest.len());
                self.say(&text, false);
                self.wait(AnswerPlace::Text)
            }
            MarkerMatch::Partial | MarkerMatch::No => self.wait(AnswerPlace::Text),
        }
    }
}
