//! A conversation and the tokens of it that the model's cache holds.
//!
//! The whole conversation is written by the template at each turn, so that a template may look back. What of it the cache
//! holds is not computed again:
//!
//! 1. Where the text up to the answer and the answer begin the new text, and a special token follows, the tokens that
//!    the model itself wrote stay, and only what follows is read.
//! 2. Else (templates drop the reasoning of earlier answers or trim them; the system message was changed) the new text
//!    is read as a whole, and its tokens are computed from the first on that the cache does not hold.

use std::time::Instant;

use serde::Serialize;
use tercet::counted;
use tercet_models::dataset::{ChatTemplate, Message, Role, leading_special};
use tercet_models::{Event, Finish, Generator, Tokenizer, WriteOptions, write};

use super::super::generate::{Phase, Stop};
use super::super::prompt::render;
use crate::error::CliError;
use crate::interrupt::interrupted;
use crate::progress;

pub(super) struct Dialogue<'a> {
    generator: Generator,
    tokenizer: &'a Tokenizer,
    template: &'a ChatTemplate,
    ends: Vec<u32>,
    system: Option<Message>,
    /// Turns of the user and of the model.
    messages: Vec<Message>,
    /// The tokens of the last turn, answer included; the cache holds the first [`Generator::position`] of them.
    held: Vec<u32>,
    /// What they spell.
    text: String,
}

/// An answer, and what it took.
#[derive(Debug, Serialize)]
pub(super) struct Answer {
    user: String,
    text: String,
    stop: Stop,
    /// Tokens of the conversation up to the answer.
    prompt_tokens: usize,
    /// Those of them that the cache held.
    cached_tokens: usize,
    tokens: Vec<u32>,
    prefill: Phase,
    decode: Phase,
}

impl Answer {
    pub(super) fn summary(&self) -> String {
        let Answer {
            prefill, decode, ..
        } = self;
        let tokens = |n| counted(n, "token", "tokens");
        let (read, wrote) = (tokens(prefill.tokens), tokens(self.tokens.len()));
        let cached = self.cached_tokens;
        let stopped = self.cut_short().unwrap_or("done");
        format!(
            "read {read}, {:.0}/s, {cached} from the cache; wrote {wrote}, {:.0}/s; {stopped}",
            prefill.tokens_per_second, decode.tokens_per_second
        )
    }

    /// What a person should know of an answer that the model did not end.
    pub(super) fn cut_short(&self) -> Option<&'static str> {
        match self.stop {
            Stop::End => None,
            Stop::Length => Some("stopped: as many tokens as -n allows"),
            Stop::Context => {
                Some("stopped: the context is full; /reset begins anew, -c N gives more")
            }
            Stop::Interrupted => Some("stopped: interrupted"),
        }
    }
}

impl<'a> Dialogue<'a> {
    pub(super) fn new(
        generator: Generator,
        tokenizer: &'a Tokenizer,
        template: &'a ChatTemplate,
        ends: Vec<u32>,
    ) -> Dialogue<'a> {
        Dialogue {
            generator,
            tokenizer,
            template,
            ends,
            system: None,
            messages: Vec::new(),
            held: Vec::new(),
            text: String::new(),
        }
    }

    /// Forgets the turns. The cache is kept: the system message in it may serve again.
    pub(super) fn reset(&mut self) {
        self.messages.clear();
    }

    /// What the model is told before the turns, from the next one on.
    pub(super) fn set_system(&mut self, text: Option<&str>) {
        self.system = text.map(|text| Message::new(Role::System, text));
    }

    /// A turn: the answer to a message, shown piece by piece.
    ///
    /// # Errors
    /// [`CliError::Model`]; the conversation is then as before. Or what `show` fails with.
    pub(super) fn say(
        &mut self,
        user: &str,
        limit: usize,
        show: &mut dyn FnMut(&str) -> Result<(), CliError>,
    ) -> Result<Answer, CliError> {
        let said = Message::new(Role::User, user);
        let before = self.system.iter().chain(&self.messages);
        let all: Vec<Message> = before.chain([&said]).cloned().collect();
        let text = render(self.template, &all)?;
        let prompt = self.tokens(&text)?;
        let cached = &self.held[..self.held.len().min(self.generator.position())];
        let same = cached.iter().zip(&prompt).take_while(|(a, b)| a == b);
        // One token at least goes in: the next one follows from it.
        let kept = same.count().min(prompt.len().saturating_sub(1));
        self.generator.truncate(kept);
        self.held.clone_from(&prompt);
        self.text.clone_from(&text);
        let answer = self.answer(user, &prompt, kept, limit, show)?;
        self.held.extend(&answer.tokens);
        self.text += &answer.text;
        // Nothing was said, so nothing is answered.
        let unheard = answer.stop == Stop::Interrupted && answer.tokens.is_empty();
        if !unheard {
            let answered = Message::new(Role::Assistant, &answer.text);
            self.messages.extend([said, answered]);
        }
        Ok(answer)
    }

    /// The tokens of a conversation up to the answer.
    fn tokens(&self, text: &str) -> Result<Vec<u32>, CliError> {
        let read = |text: &str| {
            let ids = self.tokenizer.encode(text, false);
            ids.map_err(CliError::model("cannot process the message"))
        };
        let rest = text.strip_prefix(&self.text).unwrap_or("");
        if self.held.is_empty() || leading_special(self.tokenizer, rest).is_none() {
            return read(text);
        }
        let mut tokens = self.held.clone();
        tokens.extend(read(rest)?);
        Ok(tokens)
    }

    /// Computes what the cache does not hold of `prompt`, and the answer.
    fn answer(
        &mut self,
        user: &str,
        prompt: &[u32],
        kept: usize,
        limit: usize,
        show: &mut dyn FnMut(&str) -> Result<(), CliError>,
    ) -> Result<Answer, CliError> {
        let options = WriteOptions {
            max_tokens: limit,
            stop: &[],
            eos: &self.ends,
        };
        let new = &prompt[kept..];
        let bar = progress::bar("prefill", new.len(), "tokens");
        let (started, mut read_at, mut read) = (Instant::now(), None, 0);
        let (mut text, mut failed) = (String::new(), None);
        let event = &mut |event: Event<'_>| {
            match event {
                Event::Prompt(done) => {
                    read = done;
                    bar.set_position(done as u64);
                    if done == new.len() {
                        bar.finish_and_clear();
                        read_at = Some(Instant::now());
                    }
                }
                Event::Text("", _) => {}
                Event::Text(piece, _) => {
                    text += piece;
                    failed = show(piece).err();
                }
            }
            failed.is_none() && !interrupted()
        };
        let written = write(&mut self.generator, self.tokenizer, new, &options, event);
        bar.finish_and_clear();
        if let Some(e) = failed {
            return Err(e);
        }
        let written = written.map_err(CliError::model("cannot answer the message"))?;
        let ended = Instant::now();
        let read_at = read_at.unwrap_or(ended);
        Ok(Answer {
            user: user.to_string(),
            text,
            stop: match written.finish {
                Finish::End | Finish::Stop => Stop::End,
                Finish::Length => Stop::Length,
                Finish::Context => Stop::Context,
                Finish::Cancelled => Stop::Interrupted,
            },
            prompt_tokens: prompt.len(),
            cached_tokens: kept,
            prefill: Phase::new(read, read_at - started),
            // The first token comes with the prompt.
            decode: Phase::new(written.tokens.len().saturating_sub(1), ended - read_at),
            tokens: written.tokens,
        })
    }
}
