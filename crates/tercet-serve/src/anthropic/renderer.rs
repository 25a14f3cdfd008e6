//! Messages of the model, and the events of a stream.

use std::hash::{BuildHasher, RandomState};

use serde_json::{Value, json};
use tercet_models::FinishReason;
use tercet_models::answer::AnswerEvent;

use super::AnthropicError;
use crate::answer_stream::{AnswerEnd, AnswerPiece, AnswerRenderer, WholeAnswer};
use crate::error::ApiError;

/// The kind of a content block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlockKind {
    Text,
    Thinking,
    ToolUse,
}

/// Writes a message, as a stream or whole.
pub(super) struct MessageRenderer {
    id: String,
    model: String,
    prompt_tokens: usize,
    /// Number of blocks that began.
    blocks: usize,
    open: Option<BlockKind>,
}

impl MessageRenderer {
    pub(super) fn new(model: &str, prompt_tokens: usize) -> MessageRenderer {
        let state = RandomState::new();
        MessageRenderer {
            id: format!(
                "msg_{:016x}{:016x}",
                state.hash_one(0u8),
                state.hash_one(1u8)
            ),
            model: model.to_string(),
            prompt_tokens,
            blocks: 0,
            open: None,
        }
    }

    /// A message with these blocks.
    fn message(&self, content: Vec<Value>) -> Value {
        json!({
            "id": self.id, "type": "message", "role": "assistant", "model": self.model,
            "content": content, "stop_reason": null, "stop_sequence": null, "usage": self.usage(0, 0),
        })
    }

    /// Token usage. Input tokens are those that no cache had.
    fn usage(&self, tokens: usize, cached: usize) -> Value {
        json!({
            "input_tokens": self.prompt_tokens.saturating_sub(cached), "output_tokens": tokens,
            "cache_creation_input_tokens": 0, "cache_read_input_tokens": cached,
        })
    }

    /// The message of a whole answer. The input of a call that was cut is empty.
    pub(super) fn whole(&self, answer: WholeAnswer) -> Value {
        let mut content = Vec::new();
        for event in answer.piece.events {
            match event {
                AnswerEvent::Text(text) => content.push(json!({"type": "text", "text": text})),
                AnswerEvent::Thought(text) => {
                    let block = json!({"type": "thinking", "thinking": text, "signature": ""});
                    content.push(block);
                }
                AnswerEvent::Call { id, name } => {
                    let block = json!({"type": "tool_use", "id": id, "name": name, "input": {}});
                    content.push(block);
                }
                AnswerEvent::Arguments(text) => {
                    let parsed = serde_json::from_str(&text).ok().filter(Value::is_object);
                    if let (Some(input), Some(block)) = (parsed, content.last_mut()) {
                        block["input"] = input;
                    }
                }
                _ => {}
            }
        }
        let mut message = self.message(content);
        message["stop_reason"] = stop_reason(&answer.end).into();
        message["stop_sequence"] = json!(answer.end.stop);
        message["usage"] = self.usage(answer.end.tokens, answer.end.cached);
        message
    }

    fn begin_block(&mut self, kind: BlockKind, block: Value) -> String {
        let mut events = self.close();
        let start = json!({"index": self.blocks, "content_block": block});
        events += &event("content_block_start", start);
        self.blocks += 1;
        self.open = Some(kind);
        events
    }

    /// Events at the end of the open block.
    fn close(&mut self) -> String {
        let Some(kind) = self.open.take() else {
            return String::new();
        };
        let index = self.blocks - 1;
        let mut events = String::new();
        if kind == BlockKind::Thinking {
            // Clients send thoughts back with their signature. This server needs none.
            let delta = json!({"type": "signature_delta", "signature": ""});
            events += &event(
                "content_block_delta",
                json!({"index": index, "delta": delta}),
            );
        }
        events + &event("content_block_stop", json!({"index": index}))
    }

    /// A piece of a block of this kind, which begins if it is not open.
    fn delta(&mut self, kind: BlockKind, block: Value, delta: Value) -> String {
        let mut events = String::new();
        if self.open != Some(kind) {
            events += &self.begin_block(kind, block);
        }
        let delta = json!({"index": self.blocks - 1, "delta": delta});
        events + &event("content_block_delta", delta)
    }
}

impl AnswerRenderer for MessageRenderer {
    fn begin(&mut self) -> String {
        let message = self.message(Vec::new());
        event("message_start", json!({"message": message})) + &event("ping", json!({}))
    }

    fn piece(&mut self, _: usize, piece: AnswerPiece) -> String {
        let mut events = String::new();
        for event in piece.events {
            events += &match event {
                AnswerEvent::Text(text) => self.delta(
                    BlockKind::Text,
                    json!({"type": "text", "text": ""}),
                    json!({"type": "text_delta", "text": text}),
                ),
                AnswerEvent::Thought(text) => self.delta(
                    BlockKind::Thinking,
                    json!({"type": "thinking", "thinking": "", "signature": ""}),
                    json!({"type": "thinking_delta", "thinking": text}),
                ),
                AnswerEvent::Call { id, name } => {
                    let block = json!({"type": "tool_use", "id": id, "name": name, "input": {}});
                    self.begin_block(BlockKind::ToolUse, block)
                }
                AnswerEvent::Arguments(text) => self.delta(
                    BlockKind::ToolUse,
                    Value::Null,
                    json!({"type": "input_json_delta", "partial_json": text}),
                ),
                _ => String::new(),
            };
        }
        events
    }

    fn end(&mut self, _: usize, end: &AnswerEnd) -> String {
        let delta = json!({"stop_reason": stop_reason(end), "stop_sequence": end.stop});
        let delta = json!({"delta": delta, "usage": self.usage(end.tokens, end.cached)});
        self.close() + &event("message_delta", delta)
    }

    fn last(&mut self, _: usize) -> String {
        event("message_stop", json!({}))
    }

    fn failure(&mut self, error: &ApiError) -> String {
        event("error", AnthropicError::body(error))
    }
}

fn stop_reason(end: &AnswerEnd) -> &'static str {
    match end.finish {
        FinishReason::Length | FinishReason::Context => "max_tokens",
        _ if end.has_calls => "tool_use",
        _ if end.stop.is_some() => "stop_sequence",
        _ => "end_turn",
    }
}

/// A server-sent event of this type.
fn event(kind: &str, mut fields: Value) -> String {
    fields["type"] = kind.into();
    format!("event: {kind}\ndata: {fields}\n\n")
}
