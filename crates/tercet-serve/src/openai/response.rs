//! Response formats of both completion routes.

use std::hash::{BuildHasher, RandomState};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use tercet_models::FinishReason;
use tercet_models::answer::{AnswerEvent, AnswerParser, ToolCall};

use crate::http::now;
use crate::language::TokenDetails;
use crate::logprobs::{TokenLogprob, TokenText};

/// The completion route; its response format differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CompletionKind {
    Completion,
    Chat,
}

/// Response data other than the generated text.
#[derive(Clone, Debug)]
pub(crate) struct ResponseEnvelope {
    pub(crate) form: CompletionKind,
    pub(super) id: String,
    pub(super) created: u64,
    pub(crate) model: String,
    /// Total tokens of all prompts.
    pub(crate) prompt_tokens: usize,
    /// Number of completions.
    pub(crate) choice_count: usize,
    /// Whether a stream ends with the token usage.
    pub(crate) usage: bool,
    /// Whether the response contains logprobs.
    pub(crate) logprobs: bool,
    /// Seed of the first completion, which the request gave or the server drew.
    pub(crate) seed: u64,
    /// Parser of thoughts and calls, for conversations.
    pub(crate) answers: Option<AnswerParser>,
    pub(crate) details: TokenDetails,
    /// The prompts, of which each has the same number of completions, if the request asks for token
    /// ids.
    pub(crate) prompts: Vec<Vec<u32>>,
}

/// A completion, or a part of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Delta {
    pub(crate) text: String,
    pub(crate) thought: String,
    /// The calls of a whole completion.
    pub(crate) calls: Vec<ToolCall>,
    /// The parts of calls in a piece of a stream.
    pub(crate) call_parts: Vec<Value>,
    pub(crate) scores: Vec<TokenLogprob>,
    /// Token ids, if the request has any [`TokenDetails`].
    pub(crate) tokens: Vec<u32>,
    /// A row for each token, if the request asks for logits.
    pub(crate) logits: Vec<f32>,
}

impl Delta {
    /// Adds the parts of an answer to a piece of a stream. `calls` is the number of calls so far.
    pub(crate) fn add(&mut self, events: Vec<AnswerEvent>, calls: &mut usize) {
        for event in events {
            match event {
                AnswerEvent::Text(text) => self.text += &text,
                AnswerEvent::Thought(text) => self.thought += &text,
                AnswerEvent::Call { id, name } => {
                    let function = json!({"name": name, "arguments": ""});
                    self.call_parts.push(
                        json!({"index": *calls, "id": id, "type": "function", "function": function}),
                    );
                    *calls += 1;
                }
                AnswerEvent::Arguments(text) => {
                    let index = calls.saturating_sub(1);
                    let function = json!({"arguments": text});
                    self.call_parts
                        .push(json!({"index": index, "function": function}));
                }
                _ => {}
            }
        }
    }

    /// Whether a piece shows nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.text.is_empty() && self.thought.is_empty() && self.call_parts.is_empty()
    }
}

/// A call as OpenAI's API writes it.
fn call_json(call: &ToolCall) -> Value {
    let function = json!({"name": call.name, "arguments": call.arguments});
    json!({"id": call.id, "type": "function", "function": function})
}

impl ResponseEnvelope {
    pub(crate) fn new(form: CompletionKind, model: &str, prompt_tokens: usize) -> ResponseEnvelope {
        let prefix = match form {
            CompletionKind::Completion => "cmpl",
            CompletionKind::Chat => "chatcmpl",
        };
        let id = format!("{prefix}-{:016x}", RandomState::new().hash_one(0u8));
        ResponseEnvelope {
            form,
            id,
            created: now(),
            model: model.to_string(),
            prompt_tokens,
            choice_count: 1,
            usage: false,
            logprobs: false,
            seed: 0,
            answers: None,
            details: TokenDetails::default(),
            prompts: Vec::new(),
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
        json!({
            "id": self.id, "object": object, "created": self.created, "model": self.model,
            "seed": self.seed, "choices": choices,
        })
    }

    fn choice(&self, index: usize, mut choice: Value, scores: &[TokenLogprob]) -> Value {
        choice["index"] = json!(index);
        choice["logprobs"] = match (self.logprobs, self.form) {
            (false, _) => Value::Null,
            (true, CompletionKind::Completion) => completion_logprobs(scores),
            (true, CompletionKind::Chat) => chat_logprobs(scores),
        };
        choice["finish_reason"] = Value::Null;
        choice
    }

    /// The complete response: each completion with its finish reason, and the token usage.
    pub(crate) fn full_response(&self, texts: &[(Delta, FinishReason)], written: usize) -> Value {
        let object = match self.form {
            CompletionKind::Completion => "text_completion",
            CompletionKind::Chat => "chat.completion",
        };
        let choices = texts.iter().enumerate().map(|(index, (piece, finish))| {
            let choice = match self.form {
                CompletionKind::Completion => json!({"text": piece.text}),
                CompletionKind::Chat => {
                    let mut message =
                        json!({"role": "assistant", "content": piece.text, "refusal": null});
                    if !piece.thought.is_empty() {
                        message["reasoning_content"] = json!(piece.thought);
                        message["reasoning"] = json!(piece.thought);
                    }
                    if !piece.calls.is_empty() {
                        message["tool_calls"] = piece.calls.iter().map(call_json).collect();
                        if piece.text.is_empty() {
                            message["content"] = Value::Null;
                        }
                    }
                    json!({"message": message})
                }
            };
            let mut choice = self.choice(index, choice, &piece.scores);
            choice["finish_reason"] = json!(reason(*finish, !piece.calls.is_empty()));
            self.add_details(&mut choice, index, piece);
            choice
        });
        let mut whole = self.object(object, choices.collect());
        whole["usage"] = self.usage_of(written);
        whole
    }

    /// Adds the token ids and logits of a whole completion.
    fn add_details(&self, choice: &mut Value, index: usize, piece: &Delta) {
        if self.details.ids {
            choice["token_ids"] = json!(piece.tokens);
            let each = (self.choice_count / self.prompts.len().max(1)).max(1);
            choice["prompt_token_ids"] = json!(self.prompts.get(index / each));
        }
        if self.details.logits {
            let bytes: Vec<u8> = piece.logits.iter().flat_map(|x| x.to_le_bytes()).collect();
            let rows = piece.tokens.len();
            let columns = piece.logits.len() / rows.max(1);
            choice["logits"] =
                json!({"dtype": "F32", "shape": [rows, columns], "data": STANDARD.encode(bytes)});
        }
    }

    /// One chunk of a stream.
    fn part(&self, index: usize, choice: Value, scores: &[TokenLogprob]) -> Value {
        let choice = self.choice(index, choice, scores);
        let mut part = self.object(self.object_of_part(), json!([choice]));
        if self.usage {
            part["usage"] = Value::Null;
        }
        part
    }

    fn object_of_part(&self) -> &'static str {
        match self.form {
            CompletionKind::Completion => "text_completion",
            CompletionKind::Chat => "chat.completion.chunk",
        }
    }

    /// Event with a piece of a completion.
    pub(crate) fn piece(&self, index: usize, piece: &Delta) -> String {
        let choice = match self.form {
            CompletionKind::Completion => json!({"text": piece.text}),
            CompletionKind::Chat => {
                let mut delta = Map::new();
                if !piece.thought.is_empty() {
                    delta.insert("reasoning_content".into(), json!(piece.thought));
                    delta.insert("reasoning".into(), json!(piece.thought));
                }
                if !piece.text.is_empty() || delta.is_empty() && piece.call_parts.is_empty() {
                    delta.insert("content".into(), json!(piece.text));
                }
                if !piece.call_parts.is_empty() {
                    delta.insert("tool_calls".into(), json!(piece.call_parts));
                }
                json!({"delta": delta})
            }
        };
        let mut part = self.part(index, choice, &piece.scores);
        if self.details.ids {
            part["choices"][0]["token_ids"] = json!(piece.tokens);
        }
        event(&part)
    }

    /// Events before the first piece.
    pub(crate) fn beginning(&self) -> String {
        let first = |index| {
            let delta = json!({"delta": {"role": "assistant", "content": ""}});
            event(&self.part(index, delta, &[]))
        };
        match self.form {
            CompletionKind::Completion => String::new(),
            CompletionKind::Chat => (0..self.choice_count).map(first).collect(),
        }
    }

    /// Event at the end of a completion.
    pub(crate) fn end(&self, index: usize, finish: FinishReason, calls: bool) -> String {
        let choice = match self.form {
            CompletionKind::Completion => json!({"text": ""}),
            CompletionKind::Chat => json!({"delta": {}}),
        };
        let mut part = self.part(index, choice, &[]);
        part["choices"][0]["logprobs"] = Value::Null;
        part["choices"][0]["finish_reason"] = json!(reason(finish, calls));
        event(&part)
    }

    /// Events after all completions.
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

fn reason(finish: FinishReason, calls: bool) -> &'static str {
    match finish {
        FinishReason::End | FinishReason::Stop | FinishReason::Cancelled if calls => "tool_calls",
        FinishReason::End | FinishReason::Stop | FinishReason::Cancelled => "stop",
        FinishReason::Length | FinishReason::Context => "length",
    }
}

/// A server-sent event. Serialized JSON contains no line ends, so an event is one line.
pub(crate) fn event(value: &Value) -> String {
    format!("data: {value}\n\n")
}

/// Logprobs in the format of the completions route: parallel lists. Top logprobs are objects and
/// always include the sampled token.
fn completion_logprobs(scores: &[TokenLogprob]) -> Value {
    let likeliest = scores.iter().map(|of| {
        let mut map = Map::new();
        let own = (&of.token, of.logprob);
        let others = of.top_logprobs.iter().map(|(token, log)| (token, *log));
        for (token, log) in others.chain([own]) {
            // If several tokens have the same text, the object has the most likely one.
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

fn chat_logprobs(scores: &[TokenLogprob]) -> Value {
    let shown = |token: &TokenText, log: f64| json!({"token": token.text, "logprob": log, "bytes": token.bytes});
    let content = scores.iter().map(|of| {
        let likeliest = of
            .top_logprobs
            .iter()
            .map(|(token, log)| shown(token, *log));
        let mut own = shown(&of.token, of.logprob);
        own["top_logprobs"] = likeliest.collect();
        own
    });
    json!({"content": content.collect::<Vec<_>>(), "refusal": null})
}
