//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use serde_json::Value;
use tercet_models::dataset::{Message, Role};

use super::answer::{self, Form, Frame};
use super::sampling::Wanted;
use crate::error::Refusal;
use crate::fields::{Fields, wrong};
use crate::http::App;
use crate::language::Language;

/// Messages of a conversation at most.
const MOST_MESSAGES: usize = 1000;

pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Refusal> {
    let body = app.body(&headers, body, &["application/json"]).await?;
    let mut fields = Fields::parse(&body)?;
    let name = fields
        .text("model")?
        .ok_or_else(|| Refusal::bad("field `model` is missing"))?;
    let language = app.models.language(&name)?;
    let messages = messages(fields.need("messages")?)?;
    let wanted = Wanted::take(fields)?;
    let prompt = tokens(language, &messages)?;
    let frame = Frame::new(Form::Chat, &name, prompt.len(), wanted.usage);
    let room = language.context.saturating_sub(prompt.len());
    let replies = language.start(wanted.request(prompt, room), &app.metrics);
    let replies = replies.await?;
    match wanted.stream {
        true => answer::stream(frame, replies).await,
        false => answer::whole(&frame, replies).await,
    }
}

fn messages(value: Value) -> Result<Vec<Message>, Refusal> {
    let Value::Array(items) = value else {
        return Err(wrong("messages", &value, "a list of messages"));
    };
    if items.is_empty() || items.len() > MOST_MESSAGES {
        return Err(Refusal::bad(format!(
            "field `messages` has {} messages; expected 1 to {MOST_MESSAGES}",
            items.len()
        )));
    }
    items.into_iter().map(message).collect()
}

fn message(value: Value) -> Result<Message, Refusal> {
    let mut fields = Fields::of(value, "a message")?;
    let role = fields.text("role")?.unwrap_or_default();
    let Some(known) = Role::ALL.iter().find(|r| r.name() == role) else {
        let names: Vec<&str> = Role::ALL.iter().map(|r| r.name()).collect();
        return Err(wrong(
            "role",
            &Value::String(role),
            &format!("one of {}", names.join(", ")),
        ));
    };
    let content = match fields.need("content")? {
        Value::String(text) => text,
        Value::Array(parts) => parts
            .into_iter()
            .map(part)
            .collect::<Result<String, Refusal>>()?,
        other => {
            return Err(wrong(
                "content",
                &other,
                "a text, or a list of parts of type `text`",
            ));
        }
    };
    fields.neutral(&[("tool_calls", &[Value::Array(Vec::new())])])?;
    fields.finish()?;
    Ok(Message::new(*known, &content))
}

/// The text of a part of a message.
fn part(value: Value) -> Result<String, Refusal> {
    let mut fields = Fields::of(value, "a part of a message")?;
    let kind = fields.text("type")?.unwrap_or_default();
    if kind != "text" {
        return Err(wrong(
            "type",
            &Value::String(kind),
            "`text`: other parts of messages are not supported",
        ));
    }
    let text = fields
        .text("text")?
        .ok_or_else(|| Refusal::bad("field `text` is missing"))?;
    fields.finish()?;
    Ok(text)
}

/// The tokens of a conversation up to where the answer begins.
///
/// What a message says is read together with what the template puts around it, so a message that spells a special token
/// could end its own turn and begin another: such a message is refused.
fn tokens(language: &Language, messages: &[Message]) -> Result<Vec<u32>, Refusal> {
    let tokenizer = &language.tokenizer;
    for message in messages {
        let plain = tokenizer
            .encode(message.content(), false)
            .map_err(|e| Refusal::failed(&e))?;
        let literal = tokenizer
            .encode_literally(message.content(), false)
            .map_err(|e| Refusal::failed(&e))?;
        if plain != literal {
            return Err(Refusal::bad(
                "a message spells a special token of the model, which could end its turn; leave it out",
            ));
        }
    }
    let tools = tercet_models::dataset::template::Value::None;
    let rendered = language.template.render(messages, &tools, true);
    let rendered = rendered.map_err(|e| {
        Refusal::bad(format!(
            "the chat template refuses the messages: {}",
            tercet::one_line(&e)
        ))
    })?;
    tokenizer
        .encode(&rendered.text, false)
        .map_err(|e| Refusal::failed(&e))
}
