//! Answers of both completion routes, whole or as a stream of events.

use std::hash::{BuildHasher, RandomState};

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use serde_json::{Value, json};
use tercet_models::Finish;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::error::{Refusal, json_response};
use crate::http::now;
use crate::language::Reply;

/// What tells one route's answers from the other's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Completion,
    Chat,
}

/// What an answer says besides its text.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    form: Form,
    id: String,
    created: u64,
    model: String,
    prompt_tokens: usize,
    usage: bool,
}

impl Frame {
    pub(crate) fn new(form: Form, model: &str, prompt_tokens: usize, usage: bool) -> Frame {
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
            usage,
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

    /// The whole answer.
    fn whole(&self, text: &str, finish: Finish, written: usize) -> Value {
        let (object, mut choice) = match self.form {
            Form::Completion => ("text_completion", json!({"text": text})),
            Form::Chat => (
                "chat.completion",
                json!({"message": {"role": "assistant", "content": text, "refusal": null}}),
            ),
        };
        choice["index"] = json!(0);
        choice["logprobs"] = Value::Null;
        choice["finish_reason"] = json!(reason(finish));
        let mut whole = self.object(object, json!([choice]));
        whole["usage"] = self.usage_of(written);
        whole
    }

    /// A part of a stream: a text, or why it ended.
    fn part(&self, text: Option<&str>, finish: Option<Finish>) -> Value {
        let (object, mut choice) = match (self.form, text) {
            (Form::Completion, text) => ("text_completion", json!({"text": text.unwrap_or("")})),
            (Form::Chat, Some(text)) => {
                ("chat.completion.chunk", json!({"delta": {"content": text}}))
            }
            (Form::Chat, None) => ("chat.completion.chunk", json!({"delta": {}})),
        };
        choice["index"] = json!(0);
        choice["logprobs"] = Value::Null;
        choice["finish_reason"] = finish.map_or(Value::Null, |f| json!(reason(f)));
        let mut part = self.object(object, json!([choice]));
        if self.usage {
            part["usage"] = Value::Null;
        }
        part
    }

    /// The events before the text.
    fn beginning(&self) -> String {
        match self.form {
            Form::Completion => String::new(),
            Form::Chat => {
                let mut first = self.part(Some(""), None);
                first["choices"][0]["delta"]["role"] = json!("assistant");
                event(&first)
            }
        }
    }

    /// The events after the text.
    fn end(&self, finish: Finish, written: usize) -> String {
        let mut events = event(&self.part(None, Some(finish)));
        if self.usage {
            let object = match self.form {
                Form::Completion => "text_completion",
                Form::Chat => "chat.completion.chunk",
            };
            let mut last = self.object(object, json!([]));
            last["usage"] = self.usage_of(written);
            events += &event(&last);
        }
        events + "data: [DONE]\n\n"
    }
}

fn reason(finish: Finish) -> &'static str {
    match finish {
        Finish::End | Finish::Stop | Finish::Cancelled => "stop",
        Finish::Length | Finish::Context => "length",
    }
}

/// JSON has no line ends in it, so an event is one line.
fn event(value: &Value) -> String {
    format!("data: {value}\n\n")
}

/// Waits for the whole text. When the client leaves, this is dropped, and the receiver with it.
///
/// # Errors
/// What the text failed with.
pub(crate) async fn whole(
    frame: &Frame,
    mut replies: UnboundedReceiver<Reply>,
) -> Result<Response, Refusal> {
    let mut text = String::new();
    loop {
        match replies.recv().await {
            Some(Reply::Text(piece)) => text += &piece,
            Some(Reply::Done(finish, written)) => {
                return Ok(json_response(&frame.whole(&text, finish, written)));
            }
            Some(Reply::Failed(refusal)) => return Err(refusal),
            None => return Err(Refusal::lost()),
        }
    }
}

/// Server-sent events as the text comes. What fails before any text is an error as without a stream; later it is an
/// event with the error, after which the stream ends without `[DONE]`.
///
/// # Errors
/// What failed before any text.
pub(crate) async fn stream(
    frame: Frame,
    mut replies: UnboundedReceiver<Reply>,
) -> Result<Response, Refusal> {
    let first = match replies.recv().await {
        Some(Reply::Failed(refusal)) => return Err(refusal),
        None => return Err(Refusal::lost()),
        Some(reply) => reply,
    };
    let state = Some((frame, replies, Some(first)));
    let events = unfold(state, |state| async move {
        let (frame, mut replies, first) = state?;
        let beginning = match &first {
            Some(_) => frame.beginning(),
            None => String::new(),
        };
        let reply = match first {
            Some(first) => Some(first),
            None => replies.recv().await,
        };
        let (events, ended) = match reply {
            Some(Reply::Text(text)) => (event(&frame.part(Some(&text), None)), false),
            Some(Reply::Done(finish, written)) => (frame.end(finish, written), true),
            Some(Reply::Failed(refusal)) => (event(&refusal.body()), true),
            None => (event(&Refusal::lost().body()), true),
        };
        let next = (!ended).then_some((frame, replies, None));
        Some((
            Ok::<Bytes, std::convert::Infallible>(Bytes::from(beginning + &events)),
            next,
        ))
    });
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    Ok((headers, Body::from_stream(events)).into_response())
}
