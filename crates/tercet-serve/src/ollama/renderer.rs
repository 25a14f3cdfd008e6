//! Responses of `/api/chat` and `/api/generate`: lines of JSON, or one document.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tercet_models::FinishReason;
use tercet_models::answer::{AnswerEvent, ParsedAnswer};

use super::nanoseconds;
use crate::answer_stream::{AnswerEnd, AnswerPiece, AnswerRenderer, WholeAnswer};
use crate::error::ApiError;
use crate::logprobs::TokenLogprob;
use crate::request_log::current_timestamp;

/// The route, whose responses have text in different fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OllamaForm {
    Chat,
    Generate,
}

/// Writes an answer, as a stream or whole.
pub(super) struct OllamaRenderer {
    model: String,
    form: OllamaForm,
    prompt_tokens: usize,
    /// Whether responses have logprobs.
    logprobs: bool,
    began: Instant,
    /// Time of waiting for the model.
    load_time: Duration,
    /// A call whose arguments are not complete.
    call: ParsedAnswer,
    calls: usize,
}

impl OllamaRenderer {
    pub(super) fn new(
        model: &str,
        form: OllamaForm,
        (prompt_tokens, logprobs): (usize, bool),
        (began, load_time): (Instant, Duration),
    ) -> OllamaRenderer {
        OllamaRenderer {
            model: model.to_string(),
            form,
            prompt_tokens,
            logprobs,
            began,
            load_time,
            call: ParsedAnswer::default(),
            calls: 0,
        }
    }

    /// The document of a whole answer.
    pub(super) fn whole(mut self, answer: WholeAnswer) -> Value {
        let mut parsed = ParsedAnswer::default();
        let events = answer.piece.events.into_iter();
        events.for_each(|event| parsed.add(event));
        let calls: Vec<Value> = parsed
            .calls
            .iter()
            .map(|call| self.call_json(call))
            .collect();
        let mut whole = document(
            &self.model,
            self.form,
            (&parsed.text, &parsed.thought),
            calls,
        );
        self.add_logprobs(&mut whole, &answer.piece.scores);
        self.add_end(&mut whole, &answer.end);
        whole
    }

    fn add_logprobs(&self, document: &mut Value, scores: &[TokenLogprob]) {
        if self.logprobs {
            document["logprobs"] = scores.iter().map(TokenLogprob::to_json).collect();
        }
    }

    /// Adds the reason of the end, counts and times.
    fn add_end(&self, document: &mut Value, end: &AnswerEnd) {
        let total = self.began.elapsed();
        // The prompt was read when the first text came.
        let first = end
            .first_text
            .map_or(total, |first| first.saturating_duration_since(self.began));
        let reason = match end.finish {
            FinishReason::Length | FinishReason::Context => "length",
            FinishReason::End | FinishReason::Stop | FinishReason::Cancelled => "stop",
        };
        let fields = json!({
            "done": true, "done_reason": reason, "total_duration": nanoseconds(total),
            "load_duration": nanoseconds(self.load_time), "prompt_eval_count": self.prompt_tokens,
            "prompt_eval_duration": nanoseconds(first.saturating_sub(self.load_time)),
            "eval_count": end.tokens, "eval_duration": nanoseconds(total.saturating_sub(first)),
        });
        if let (Some(document), Value::Object(fields)) = (document.as_object_mut(), fields) {
            document.extend(fields);
        }
    }

    /// A complete call. Arguments that were cut are no object and therefore empty.
    fn call_json(&mut self, call: &tercet_models::answer::ToolCall) -> Value {
        let arguments = serde_json::from_str(&call.arguments).ok();
        let arguments = arguments.filter(Value::is_object);
        let index = self.calls;
        self.calls += 1;
        json!({"id": call.id, "function": {
            "index": index, "name": call.name, "arguments": arguments.unwrap_or_else(|| json!({})),
        }})
    }

    /// The call that is complete.
    fn take_call(&mut self) -> Vec<Value> {
        let calls = std::mem::take(&mut self.call).calls;
        calls.iter().map(|call| self.call_json(call)).collect()
    }
}

/// A document with a piece of an answer.
fn document(
    model: &str,
    form: OllamaForm,
    (text, thought): (&str, &str),
    calls: Vec<Value>,
) -> Value {
    let mut document = json!({"model": model, "created_at": current_timestamp()});
    let mut message = match form {
        OllamaForm::Chat => json!({"role": "assistant", "content": text}),
        OllamaForm::Generate => json!({"response": text}),
    };
    if !thought.is_empty() {
        message["thinking"] = thought.into();
    }
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    match (form, document.as_object_mut(), message) {
        (OllamaForm::Generate, Some(document), Value::Object(fields)) => document.extend(fields),
        (_, _, message) => document["message"] = message,
    }
    document["done"] = false.into();
    document
}

/// The response of a request that only loads or unloads the model.
pub(super) fn without_text(model: &str, form: OllamaForm, reason: &str) -> Value {
    let mut loaded = document(model, form, ("", ""), Vec::new());
    loaded["done"] = true.into();
    loaded["done_reason"] = reason.into();
    loaded
}

/// A line of a stream. Serialized JSON contains no line ends.
fn line(document: &Value) -> String {
    format!("{document}\n")
}

impl AnswerRenderer for OllamaRenderer {
    const MEDIA_TYPE: &'static str = "application/x-ndjson";

    fn piece(&mut self, _: usize, piece: AnswerPiece) -> String {
        let mut lines = String::new();
        let mut scores = piece.scores;
        for event in piece.events {
            let (text, thought) = match event {
                AnswerEvent::Text(text) => (text, String::new()),
                AnswerEvent::Thought(text) => (String::new(), text),
                event @ AnswerEvent::Call { .. } => {
                    // A call is complete when the next part begins.
                    let calls = self.take_call();
                    if !calls.is_empty() {
                        lines += &line(&document(&self.model, self.form, ("", ""), calls));
                    }
                    self.call.add(event);
                    continue;
                }
                event => {
                    self.call.add(event);
                    continue;
                }
            };
            let calls = self.take_call();
            let mut document = document(&self.model, self.form, (&text, &thought), calls);
            self.add_logprobs(&mut document, &std::mem::take(&mut scores));
            lines += &line(&document);
        }
        lines
    }

    fn end(&mut self, _: usize, end: &AnswerEnd) -> String {
        let mut lines = String::new();
        let calls = self.take_call();
        if !calls.is_empty() {
            lines += &line(&document(&self.model, self.form, ("", ""), calls));
        }
        let mut last = document(&self.model, self.form, ("", ""), Vec::new());
        self.add_end(&mut last, end);
        lines + &line(&last)
    }

    fn last(&mut self, _: usize) -> String {
        String::new()
    }

    fn failure(&mut self, error: &ApiError) -> String {
        line(&json!({"error": error.message}))
    }
}
