//! Response formats of both completion routes.

use std::hash::{BuildHasher, RandomState};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use tercet_models::FinishReason;
use tercet_models::answer::{AnswerEvent, ParsedAnswer, ToolCall};

use crate::answer_stream::{AnswerEnd, AnswerPiece, AnswerRenderer, WholeAnswer};
use crate::error::ApiError;
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
    /// Number of completions of each prompt.
    pub(crate) per_prompt: usize,
    /// Whether a stream ends with the token usage.
    pub(crate) usage: bool,
    /// Whether the response contains logprobs.
    pub(crate) logprobs: bool,
    /// Seed of the first completion, which the request gave or the server drew.
    pub(crate) seed: u64,
    pub(crate) details: TokenDetails,
    /// The prompts, of which each has the same number of completions, if the request asks for token
    /// ids.
    pub(crate) prompts: Vec<Vec<u32>>,
    /// The prompts, of which each has the same number of completions, if the response repeats them.
    pub(crate) echoed: Vec<EchoedPrompt>,
}

/// A prompt that a response repeats.
#[derive(Clone, Debug)]
pub(crate) struct EchoedPrompt {
    pub(crate) text: String,
    /// The first token, which has no logprob.
    pub(crate) first: Option<TokenText>,
}

/// A piece of a stream as OpenAI's API writes it.
#[derive(Debug, Default)]
struct Delta {
    text: String,
    thought: String,
    /// The parts of calls, at most one per call.
    call_parts: Vec<CallPart>,
}

/// A part of a call in a stream.
#[derive(Debug)]
struct CallPart {
    index: usize,
    /// Id and name, in the first part of a call.
    head: Option<(String, String)>,
    arguments: String,
}

impl CallPart {
    fn json(&self) -> Value {
        match &self.head {
            Some((id, name)) => {
                let function = json!({"name": name, "arguments": self.arguments});
                json!({"index": self.index, "id": id, "type": "function", "function": function})
            }
            None => json!({"index": self.index, "function": {"arguments": self.arguments}}),
        }
    }
}

impl Delta {
    /// The piece of these events. `calls` is the number of calls so far.
    fn from_events(events: Vec<AnswerEvent>, calls: &mut usize) -> Delta {
        let mut delta = Delta::default();
        for event in events {
            match event {
                AnswerEvent::Text(text) => delta.text += &text,
                AnswerEvent::Thought(text) => delta.thought += &text,
                AnswerEvent::Call { id, name } => {
                    delta.call_parts.push(CallPart {
                        index: *calls,
                        head: Some((id, name)),
                        arguments: String::new(),
                    });
                    *calls += 1;
                }
                AnswerEvent::Arguments(text) => {
                    let index = calls.saturating_sub(1);
                    match delta.call_parts.last_mut() {
                        Some(part) if part.index == index => part.arguments += &text,
                        _ => delta.call_parts.push(CallPart {
                            index,
                            head: None,
                            arguments: text,
                        }),
                    }
                }
                _ => {}
            }
        }
        delta
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
            per_prompt: 1,
            usage: false,
            logprobs: false,
            seed: 0,
            details: TokenDetails::default(),
            prompts: Vec::new(),
            echoed: Vec::new(),
        }
    }

    /// Token usage: generated tokens, prompt tokens that a cache had, and tokens of thoughts.
    fn usage_of(&self, written: usize, (cached, thoughts): (usize, usize)) -> Value {
        let mut usage = json!({
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": written,
            "total_tokens": self.prompt_tokens + written,
            "prompt_tokens_details": {"cached_tokens": cached},
        });
        if self.form == CompletionKind::Chat {
            usage["completion_tokens_details"] = json!({"reasoning_tokens": thoughts});
        }
        usage
    }

    /// Cached prompt tokens of the completion with this index. Each prompt counts once.
    fn cached_of(&self, index: usize, end: &AnswerEnd) -> usize {
        match index.is_multiple_of(self.per_prompt.max(1)) {
            true => end.cached,
            false => 0,
        }
    }

    fn object(&self, object: &str, choices: Value) -> Value {
        json!({
            "id": self.id, "object": object, "created": self.created, "model": self.model,
            "seed": self.seed, "choices": choices,
        })
    }

    /// The prompt that the completion with this index repeats.
    fn echoed(&self, index: usize) -> Option<&EchoedPrompt> {
        let each = (self.choice_count / self.echoed.len().max(1)).max(1);
        self.echoed.get(index / each)
    }

    /// A choice with its logprobs, which may be the first of its completion.
    fn choice(
        &self,
        index: usize,
        mut choice: Value,
        (scores, is_first): (&[TokenLogprob], bool),
    ) -> Value {
        let first = self.echoed(index).filter(|_| is_first);
        let first = first.and_then(|prompt| prompt.first.as_ref());
        choice["index"] = json!(index);
        choice["logprobs"] = match (self.logprobs, self.form) {
            (false, _) => Value::Null,
            (true, CompletionKind::Completion) => completion_logprobs(first, scores),
            (true, CompletionKind::Chat) => chat_logprobs(scores),
        };
        choice["finish_reason"] = Value::Null;
        choice
    }

    /// The complete response: each completion with its finish reason, and the token usage.
    pub(crate) fn full_response(&self, answers: Vec<WholeAnswer>) -> Value {
        let object = match self.form {
            CompletionKind::Completion => "text_completion",
            CompletionKind::Chat => "chat.completion",
        };
        let written = answers.iter().map(|answer| answer.end.tokens).sum();
        let ends = answers.iter().map(|answer| &answer.end).enumerate();
        let cached = ends.map(|(index, end)| self.cached_of(index, end)).sum();
        let thoughts = answers.iter().map(|answer| answer.end.thought_tokens).sum();
        let choices = answers.into_iter().enumerate().map(|(index, answer)| {
            let WholeAnswer { mut piece, end } = answer;
            let mut parsed = ParsedAnswer::default();
            let events = std::mem::take(&mut piece.events);
            events.into_iter().for_each(|event| parsed.add(event));
            let choice = match self.form {
                CompletionKind::Completion => {
                    let echoed = self.echoed(index).map_or("", |prompt| prompt.text.as_str());
                    json!({"text": format!("{echoed}{}", parsed.text)})
                }
                CompletionKind::Chat => {
                    let mut message =
                        json!({"role": "assistant", "content": parsed.text, "refusal": null});
                    if !parsed.thought.is_empty() {
                        message["reasoning_content"] = json!(parsed.thought);
                        message["reasoning"] = json!(parsed.thought);
                    }
                    if !parsed.calls.is_empty() {
                        message["tool_calls"] = parsed.calls.iter().map(call_json).collect();
                        if parsed.text.is_empty() {
                            message["content"] = Value::Null;
                        }
                    }
                    json!({"message": message})
                }
            };
            let mut choice = self.choice(index, choice, (&piece.scores, true));
            choice["finish_reason"] = json!(reason(&end));
            self.add_details(&mut choice, index, &piece);
            choice
        });
        let mut whole = self.object(object, choices.collect());
        whole["usage"] = self.usage_of(written, (cached, thoughts));
        whole
    }

    /// Adds the token ids and logits of a whole completion.
    fn add_details(&self, choice: &mut Value, index: usize, piece: &AnswerPiece) {
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
    fn part(&self, index: usize, choice: Value, scores: (&[TokenLogprob], bool)) -> Value {
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

    /// Events with a piece of a completion. `calls` is the number of its calls so far. Clients read
    /// one part of one call per event, so further parts have their own events.
    fn piece(
        &self,
        index: usize,
        piece: AnswerPiece,
        (calls, is_first): (&mut usize, bool),
    ) -> String {
        let part = Delta::from_events(piece.events, calls);
        let mut call_parts = part.call_parts.iter().map(CallPart::json);
        let choice = match self.form {
            CompletionKind::Completion => json!({"text": part.text}),
            CompletionKind::Chat => {
                let mut delta = Map::new();
                if !part.thought.is_empty() {
                    delta.insert("reasoning_content".into(), json!(part.thought));
                    delta.insert("reasoning".into(), json!(part.thought));
                }
                if !part.text.is_empty() || delta.is_empty() && part.call_parts.is_empty() {
                    delta.insert("content".into(), json!(part.text));
                }
                if let Some(call) = call_parts.next() {
                    delta.insert("tool_calls".into(), json!([call]));
                }
                json!({"delta": delta})
            }
        };
        let mut part = self.part(index, choice, (&piece.scores, is_first));
        if self.details.ids {
            part["choices"][0]["token_ids"] = json!(piece.tokens);
        }
        let mut events = event(&part);
        for call in call_parts {
            let choice = json!({"delta": {"tool_calls": [call]}});
            events += &event(&self.part(index, choice, (&[], false)));
        }
        events
    }

    /// Events before the first piece.
    fn beginning(&self) -> String {
        let first = |index| {
            let delta = json!({"delta": {"role": "assistant", "content": ""}});
            event(&self.part(index, delta, (&[], false)))
        };
        let echoed = |index| {
            let prompt = self.echoed(index)?;
            let mut part = self.part(index, json!({"text": prompt.text}), (&[], false));
            part["choices"][0]["logprobs"] = Value::Null;
            Some(event(&part))
        };
        match self.form {
            CompletionKind::Completion => (0..self.choice_count).filter_map(echoed).collect(),
            CompletionKind::Chat => (0..self.choice_count).map(first).collect(),
        }
    }

    /// Event at the end of a completion.
    fn end(&self, index: usize, end: &AnswerEnd) -> String {
        let choice = match self.form {
            CompletionKind::Completion => json!({"text": ""}),
            CompletionKind::Chat => json!({"delta": {}}),
        };
        let mut part = self.part(index, choice, (&[], false));
        part["choices"][0]["logprobs"] = Value::Null;
        part["choices"][0]["finish_reason"] = json!(reason(end));
        event(&part)
    }

    /// Events after all completions.
    fn last(&self, written: usize, counts: (usize, usize)) -> String {
        let mut events = String::new();
        if self.usage {
            let mut last = self.object(self.object_of_part(), json!([]));
            last["usage"] = self.usage_of(written, counts);
            events += &event(&last);
        }
        events + "data: [DONE]\n\n"
    }
}

/// Writes completions as events of a stream.
pub(crate) struct CompletionRenderer {
    frame: ResponseEnvelope,
    /// Calls of each completion so far.
    calls: Vec<usize>,
    /// Whether a completion has had a piece.
    has_begun: Vec<bool>,
    /// Prompt tokens that a cache had.
    cached: usize,
    thought_tokens: usize,
}

impl CompletionRenderer {
    pub(crate) fn new(frame: ResponseEnvelope) -> CompletionRenderer {
        CompletionRenderer {
            calls: vec![0; frame.choice_count],
            has_begun: vec![false; frame.choice_count],
            cached: 0,
            thought_tokens: 0,
            frame,
        }
    }
}

impl AnswerRenderer for CompletionRenderer {
    fn begin(&mut self) -> String {
        self.frame.beginning()
    }

    fn piece(&mut self, index: usize, piece: AnswerPiece) -> String {
        let is_first = !std::mem::replace(&mut self.has_begun[index], true);
        self.frame
            .piece(index, piece, (&mut self.calls[index], is_first))
    }

    fn end(&mut self, index: usize, end: &AnswerEnd) -> String {
        self.cached += self.frame.cached_of(index, end);
        self.thought_tokens += end.thought_tokens;
        self.frame.end(index, end)
    }

    fn last(&mut self, tokens: usize) -> String {
        self.frame.last(tokens, (self.cached, self.thought_tokens))
    }

    /// The stream then ends without `[DONE]`.
    fn failure(&mut self, error: &ApiError) -> String {
        event(&error.body())
    }
}

fn reason(end: &AnswerEnd) -> &'static str {
    match end.finish {
        FinishReason::End | FinishReason::Stop | FinishReason::Cancelled if end.has_calls => {
            "tool_calls"
        }
        FinishReason::End | FinishReason::Stop | FinishReason::Cancelled => "stop",
        FinishReason::Length | FinishReason::Context => "length",
    }
}

/// A server-sent event. Serialized JSON contains no line ends, so an event is one line.
pub(crate) fn event(value: &Value) -> String {
    format!("data: {value}\n\n")
}

/// Logprobs in the format of the completions route: parallel lists. Top logprobs are objects and
/// always include the sampled token. `first` is a token before them, which has no logprob.
fn completion_logprobs(first: Option<&TokenText>, scores: &[TokenLogprob]) -> Value {
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
    let none = || first.map(|_| Value::Null).into_iter();
    let tokens = scores.iter().map(|of| of.token.text.as_str());
    let tokens = first.iter().map(|first| first.text.as_str()).chain(tokens);
    let logprobs = none().chain(scores.iter().map(|of| of.logprob.into()));
    let offsets = scores.iter().map(|of| of.offset);
    json!({
        "tokens": tokens.collect::<Vec<_>>(),
        "token_logprobs": logprobs.collect::<Vec<Value>>(),
        "top_logprobs": none().chain(likeliest).collect::<Vec<_>>(),
        "text_offset": first.map(|_| 0).into_iter().chain(offsets).collect::<Vec<usize>>(),
    })
}

fn chat_logprobs(scores: &[TokenLogprob]) -> Value {
    let content = scores.iter().map(TokenLogprob::to_json);
    json!({"content": content.collect::<Vec<_>>(), "refusal": null})
}
