//! Output items of the Responses API, and the events of a stream.

use std::hash::{BuildHasher, RandomState};

use serde_json::{Value, json};
use tercet_models::FinishReason;
use tercet_models::answer::AnswerEvent;

use crate::answer_stream::{AnswerEnd, AnswerPiece, AnswerRenderer, WholeAnswer};
use crate::error::ApiError;
use crate::http::now;
use crate::logprobs::TokenLogprob;

/// A response without its output.
pub(super) struct ResponseFrame {
    id: String,
    created: u64,
    model: String,
    /// Fields of the request that the response repeats.
    echo: Value,
    prompt_tokens: usize,
    /// Whether texts have logprobs.
    pub(super) logprobs: bool,
}

impl ResponseFrame {
    pub(super) fn new(model: &str, echo: Value, prompt_tokens: usize) -> ResponseFrame {
        ResponseFrame {
            id: new_id("resp"),
            created: now(),
            model: model.to_string(),
            echo,
            prompt_tokens,
            logprobs: false,
        }
    }

    /// The response with this status.
    fn json(&self, status: &str, output: &[Value]) -> Value {
        let mut response = json!({
            "id": self.id, "object": "response", "created_at": self.created, "status": status,
            "background": false, "completed_at": null, "error": null, "incomplete_details": null,
            "model": self.model, "output": output, "previous_response_id": null, "store": false,
            "service_tier": "default", "usage": null, "user": null,
        });
        if let (Some(response), Some(echo)) = (response.as_object_mut(), self.echo.as_object()) {
            response.extend(echo.clone());
        }
        response
    }
}

fn new_id(prefix: &str) -> String {
    let state = RandomState::new();
    format!(
        "{prefix}_{:016x}{:016x}",
        state.hash_one(0u8),
        state.hash_one(1u8)
    )
}

/// An item that is written.
enum OpenItem {
    Message {
        id: String,
        text: String,
        logprobs: Vec<Value>,
    },
    Reasoning {
        id: String,
        text: String,
    },
    Call {
        id: String,
        call_id: String,
        name: String,
        arguments: String,
    },
}

impl OpenItem {
    /// The item with this status.
    fn json(&self, status: &str) -> Value {
        match self {
            OpenItem::Message { id, .. } => json!({
                "id": id, "type": "message", "status": status, "role": "assistant",
                "content": [self.part()],
            }),
            OpenItem::Reasoning { id, .. } => json!({
                "id": id, "type": "reasoning", "status": status, "summary": [],
                "content": [self.part()],
            }),
            OpenItem::Call {
                id,
                call_id,
                name,
                arguments,
            } => json!({
                "id": id, "type": "function_call", "status": status, "call_id": call_id,
                "name": name, "arguments": arguments,
            }),
        }
    }

    /// The item before its first piece.
    fn begun(&self) -> Value {
        let mut item = self.json("in_progress");
        if item["content"].is_array() {
            item["content"] = json!([]);
        }
        item
    }

    /// The only part of a message or of thoughts.
    fn part(&self) -> Value {
        match self {
            OpenItem::Message { text, logprobs, .. } => json!({
                "type": "output_text", "text": text, "annotations": [], "logprobs": logprobs,
            }),
            OpenItem::Reasoning { text, .. } => json!({"type": "reasoning_text", "text": text}),
            OpenItem::Call { .. } => Value::Null,
        }
    }

    fn id(&self) -> &str {
        match self {
            OpenItem::Message { id, .. }
            | OpenItem::Reasoning { id, .. }
            | OpenItem::Call { id, .. } => id,
        }
    }
}

/// Writes a response, as a stream or whole.
pub(super) struct ResponseRenderer {
    frame: ResponseFrame,
    /// Number of the next event.
    sequence: u64,
    output: Vec<Value>,
    open: Option<OpenItem>,
    /// The reason, and counts: generated tokens, cached prompt tokens, tokens of thoughts.
    finished: Option<(FinishReason, [usize; 3])>,
}

impl ResponseRenderer {
    pub(super) fn new(frame: ResponseFrame) -> ResponseRenderer {
        ResponseRenderer {
            frame,
            sequence: 0,
            output: Vec::new(),
            open: None,
            finished: None,
        }
    }

    /// The response of a whole answer.
    pub(super) fn whole(mut self, answer: WholeAnswer) -> Value {
        self.piece(0, answer.piece);
        self.end(0, &answer.end);
        self.response()
    }

    /// The response after the end of its answer.
    fn response(&self) -> Value {
        let unfinished = (FinishReason::Cancelled, [0; 3]);
        let (finish, [tokens, cached, thoughts]) = self.finished.unwrap_or(unfinished);
        let is_cut = is_cut(finish);
        let status = if is_cut { "incomplete" } else { "completed" };
        let mut response = self.frame.json(status, &self.output);
        if is_cut {
            response["incomplete_details"] = json!({"reason": "max_output_tokens"});
        } else {
            response["completed_at"] = now().into();
        }
        let prompt = self.frame.prompt_tokens;
        response["usage"] = json!({
            "input_tokens": prompt, "input_tokens_details": {"cached_tokens": cached},
            "output_tokens": tokens, "output_tokens_details": {"reasoning_tokens": thoughts},
            "total_tokens": prompt + tokens,
        });
        response
    }

    /// An event with the next number.
    fn event(&mut self, kind: &str, fields: Value) -> String {
        let mut event = json!({"type": kind, "sequence_number": self.sequence});
        self.sequence += 1;
        if let (Some(event), Value::Object(fields)) = (event.as_object_mut(), fields) {
            event.extend(fields);
        }
        format!("event: {kind}\ndata: {event}\n\n")
    }

    /// Events at the start of an item.
    fn begin_item(&mut self, item: OpenItem) -> String {
        let mut events = self.close("completed");
        let (at, id) = (self.output.len(), item.id().to_string());
        let added = json!({"output_index": at, "item": item.begun()});
        events += &self.event("response.output_item.added", added);
        if !matches!(item, OpenItem::Call { .. }) {
            let part =
                json!({"item_id": id, "output_index": at, "content_index": 0, "part": item.part()});
            events += &self.event("response.content_part.added", part);
        }
        self.open = Some(item);
        events
    }

    /// Events at the end of the open item.
    fn close(&mut self, status: &str) -> String {
        let Some(item) = self.open.take() else {
            return String::new();
        };
        let (at, id) = (self.output.len(), item.id().to_string());
        let mut place = json!({"item_id": id, "output_index": at});
        let mut events = match &item {
            OpenItem::Call {
                name, arguments, ..
            } => {
                place["name"] = json!(name);
                place["arguments"] = json!(arguments);
                self.event("response.function_call_arguments.done", place)
            }
            OpenItem::Message { text, logprobs, .. } => {
                place["content_index"] = 0.into();
                let mut done = place.clone();
                done["text"] = json!(text);
                done["logprobs"] = json!(logprobs);
                place["part"] = item.part();
                self.event("response.output_text.done", done)
                    + &self.event("response.content_part.done", place)
            }
            OpenItem::Reasoning { text, .. } => {
                place["content_index"] = 0.into();
                let mut done = place.clone();
                done["text"] = json!(text);
                place["part"] = item.part();
                self.event("response.reasoning_text.done", done)
                    + &self.event("response.content_part.done", place)
            }
        };
        let item = item.json(status);
        let done = json!({"output_index": at, "item": item});
        events += &self.event("response.output_item.done", done);
        self.output.push(item);
        events
    }

    fn text(&mut self, piece: &str, scores: Vec<Value>) -> String {
        let mut events = String::new();
        if !matches!(self.open, Some(OpenItem::Message { .. })) {
            events += &self.begin_item(OpenItem::Message {
                id: new_id("msg"),
                text: String::new(),
                logprobs: Vec::new(),
            });
        }
        let Some(OpenItem::Message { id, text, logprobs }) = &mut self.open else {
            return events;
        };
        *text += piece;
        let mut delta = json!({
            "item_id": id, "output_index": self.output.len(), "content_index": 0, "delta": piece,
        });
        delta["logprobs"] = json!(scores);
        logprobs.extend(scores);
        events + &self.event("response.output_text.delta", delta)
    }

    fn thought(&mut self, piece: &str) -> String {
        let mut events = String::new();
        if !matches!(self.open, Some(OpenItem::Reasoning { .. })) {
            events += &self.begin_item(OpenItem::Reasoning {
                id: new_id("rs"),
                text: String::new(),
            });
        }
        let Some(OpenItem::Reasoning { id, text }) = &mut self.open else {
            return events;
        };
        *text += piece;
        let delta = json!({
            "item_id": id, "output_index": self.output.len(), "content_index": 0, "delta": piece,
        });
        events + &self.event("response.reasoning_text.delta", delta)
    }

    fn arguments(&mut self, piece: &str) -> String {
        let Some(OpenItem::Call { id, arguments, .. }) = &mut self.open else {
            return String::new();
        };
        *arguments += piece;
        let delta = json!({"item_id": id, "output_index": self.output.len(), "delta": piece});
        self.event("response.function_call_arguments.delta", delta)
    }
}

impl AnswerRenderer for ResponseRenderer {
    fn begin(&mut self) -> String {
        let response = self.frame.json("in_progress", &[]);
        let created = json!({"response": response});
        self.event("response.created", created.clone())
            + &self.event("response.in_progress", created)
    }

    fn piece(&mut self, _: usize, piece: AnswerPiece) -> String {
        let mut scores: Vec<Value> = match self.frame.logprobs {
            true => piece.scores.iter().map(TokenLogprob::to_json).collect(),
            false => Vec::new(),
        };
        let mut events = String::new();
        for event in piece.events {
            events += &match event {
                AnswerEvent::Text(text) => self.text(&text, std::mem::take(&mut scores)),
                AnswerEvent::Thought(text) => self.thought(&text),
                AnswerEvent::Call { id, name } => self.begin_item(OpenItem::Call {
                    id: new_id("fc"),
                    call_id: id,
                    name,
                    arguments: String::new(),
                }),
                AnswerEvent::Arguments(text) => self.arguments(&text),
                _ => String::new(),
            };
        }
        events
    }

    fn end(&mut self, _: usize, end: &AnswerEnd) -> String {
        self.finished = Some((end.finish, [end.tokens, end.cached, end.thought_tokens]));
        let status = match is_cut(end.finish) {
            true => "incomplete",
            false => "completed",
        };
        self.close(status)
    }

    fn last(&mut self, _: usize) -> String {
        let response = self.response();
        let kind = match response["status"] == "incomplete" {
            true => "response.incomplete",
            false => "response.completed",
        };
        self.event(kind, json!({"response": response}))
    }

    fn failure(&mut self, error: &ApiError) -> String {
        let mut response = self.frame.json("failed", &self.output);
        response["error"] = json!({"code": "server_error", "message": error.message});
        self.event("response.failed", json!({"response": response}))
    }
}

/// Whether an answer ended at a limit.
fn is_cut(finish: FinishReason) -> bool {
    matches!(finish, FinishReason::Length | FinishReason::Context)
}
