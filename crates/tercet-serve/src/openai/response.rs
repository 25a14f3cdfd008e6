//! What answers of both completion routes look like.

use std::hash::{BuildHasher, RandomState};

use serde_json::{Map, Value, json};
use tercet_models::Finish;

use super::calls::{Call, Calls};
use crate::http::now;
use crate::likely::{Scored, Spelled};

/// What tells one route's answers from the other's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Completion,
    Chat,
}

/// What an answer says besides its texts.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) form: Form,
    pub(super) id: String,
    pub(super) created: u64,
    pub(crate) model: String,
    /// Of all prompts.
    pub(crate) prompt_tokens: usize,
    /// How many texts there are.
    pub(crate) texts: usize,
    /// Whether a stream ends with the numbers of tokens.
    pub(crate) usage: bool,
    /// Whether tokens are told with their probabilities.
    pub(crate) logprobs: bool,
    /// How calls of tools are read, where there may be some.
    pub(crate) calls: Option<Calls>,
}

/// A text, or a part of one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Piece {
    pub(crate) text: String,
    pub(crate) calls: Vec<Call>,
    pub(crate) scores: Vec<Scored>,
}

impl Frame {
    pub(crate) fn new(form: Form, model: &str, prompt_tokens: usize) -> Frame {
        let prefix = match form {
            Form::Completion => "cmpl",
            Form::Chat => "chatcmpl",
        };
        let id = format!("{prefix}-{:016x}", RandomState::new().hash_one(0u8));
        Frame {
            form,
            id,
            created: now(),
            model: model.to_string(),
            prompt_tokens,
            texts: 1,
            usage: false,
            logprobs: false,
            calls: None,
        }
    }

    fn usage_of(&self, written: usize) -> Value {
        json!({
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": written,
            "total_tokens": self.prompt_tokens + written,
        })
    }

    fn object(&self, object: &str, choices: Value) -> Value {
        json!({"id": self.id, "object": object, "created": self.created, "model": self.model, "choices": choices})
    }

    fn choice(&self, index: usize, mut choice: Value, scores: &[Scored]) -> Value {
        choice["index"] = json!(index);
        choice["logprobs"] = match (self.logprobs, self.form) {
            (false, _) => Value::Null,
            (true, Form::Completion) => of_completion(scores),
            (true, Form::Chat) => of_chat(scores),
        };
        choice["finish_reason"] = Value::Null;
        choice
    }

    /// The whole answer: each text, how it ended, and the tokens of all.
    pub(crate) fn whole(&self, texts: &[(Piece, Finish)], written: usize) -> Value {
        let object = match self.form {
            Form::Completion => "text_completion",
            Form::Chat => "chat.completion",
        };
        let choices = texts.iter().enumerate().map(|(index, (piece, finish))| {
            let choice = match self.form {
                Form::Completion => json!({"text": piece.text}),
                Form::Chat => {
                    let mut message =
                        json!({"role": "assistant", "content": piece.text, "refusal": null});
                    if !piece.calls.is_empty() {
                        message["tool_calls"] = piece.calls.iter().map(Call::shown).collect();
                        if piece.text.is_empty() {
                            message["content"] = Value::Null;
                        }
                    }
                    json!({"message": message})
                }
            };
            let mut choice = self.choice(index, choice, &piece.scores);
            choice["finish_reason"] = json!(reason(*finish, !piece.calls.is_empty()));
            choice
        });
        let mut whole = self.object(object, choices.collect());
        whole["usage"] = self.usage_of(written);
        whole
    }

    /// A part of a stream.
    fn part(&self, index: usize, choice: Value, scores: &[Scored]) -> Value {
        let choice = self.choice(index, choice, scores);
        let mut part = self.object(self.object_of_part(), json!([choice]));
        if self.usage {
            part["usage"] = Value::Null;
        }
        part
    }

    fn object_of_part(&self) -> &'static str {
        match self.form {
            Form::Completion => "text_completion",
            Form::Chat => "chat.completion.chunk",
        }
    }

    /// The event of a piece of a text.
    pub(crate) fn piece(&self, index: usize, piece: &Piece) -> String {
        let choice = match self.form {
            Form::Completion => json!({"text": piece.text}),
            Form::Chat => {
                let mut delta = Map::new();
                if !piece.text.is_empty() || piece.calls.is_empty() {
                    delta.insert("content".into(), json!(piece.text));
                }
                if !piece.calls.is_empty() {
                    let calls = piece.calls.iter().enumerate().map(|(i, call)| {
                        let mut call = call.shown();
                        call["index"] = json!(i);
                        call
                    });
                    delta.insert("tool_calls".into(), calls.collect());
                }
                json!({"delta": delta})
            }
        };
        event(&self.part(index, choice, &piece.scores))
    }

    /// The events before the texts.
    pub(crate) fn beginning(&self) -> String {
        let first = |index| {
            let delta = json!({"delta": {"role": "assistant", "content": ""}});
            event(&self.part(index, delta, &[]))
        };
        match self.form {
            Form::Completion => String::new(),
            Form::Chat => (0..self.texts).map(first).collect(),
        }
    }

    /// The event after a text.
    pub(crate) fn end(&self, index: usize, finish: Finish, calls: bool) -> String {
        let choice = match self.form {
            Form::Completion => json!({"text": ""}),
            Form::Chat => json!({"delta": {}}),
        };
        let mut part = self.part(index, choice, &[]);
        part["choices"][0]["logprobs"] = Value::Null;
        part["choices"][0]["finish_reason"] = json!(reason(finish, calls));
        event(&part)
    }

    /// The events after all texts.
    pub(crate) fn last(&self, written: usize) -> String {
        let mut events = String::new();
        if self.usage {
            let mut last = self.object(self.object_of_part(), json!([]));
            last["usage"] = self.usage_of(written);
            events += &event(&last);
        }
        events + "data: [DONE]\n\n"
    }
}

fn reason(finish: Finish, calls: bool) -> &'static str {
    match finish {
        Finish::End | Finish::Stop | Finish::Cancelled if calls => "tool_calls",
        Finish::End | Finish::Stop | Finish::Cancelled => "stop",
        Finish::Length | Finish::Context => "length",
    }
}

/// JSON has no line ends in it, so an event is one line.
pub(crate) fn event(value: &Value) -> String {
    format!("data: {value}\n\n")
}

/// By lists; the likeliest tokens as an object, the token itself always among them.
fn of_completion(scores: &[Scored]) -> Value {
    let likeliest = scores.iter().map(|of| {
        let mut map = Map::new();
        let own = (&of.token, of.logprob);
        let others = of.likeliest.iter().map(|(token, log)| (token, *log));
        for (token, log) in others.chain([own]) {
            // Of tokens that are spelled alike the likeliest.
            map.entry(&token.text).or_insert_with(|| json!(log));
        }
        Value::Object(map)
    });
    json!({
        "tokens": scores.iter().map(|of| of.token.text.as_str()).collect::<Vec<_>>(),
        "token_logprobs": scores.iter().map(|of| of.logprob).collect::<Vec<_>>(),
        "top_logprobs": likeliest.collect::<Vec<_>>(),
        "text_offset": scores.iter().map(|of| of.offset).collect::<Vec<_>>(),
    })
}

fn of_chat(scores: &[Scored]) -> Value {
    let shown = |token: &Spelled, log: f64| json!({"token": token.text, "logprob": log, "bytes": token.bytes});
    let content = scores.iter().map(|of| {
        let likeliest = of.likeliest.iter().map(|(token, log)| shown(token, *log));
        let mut own = shown(&of.token, of.logprob);
        own["top_logprobs"] = likeliest.collect();
        own
    });
    json!({"content": content.collect::<Vec<_>>(), "refusal": null})
}
