//! `POST /v1/completions`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use serde_json::Value;

use super::answer::{self, Form, Frame};
use super::sampling::Wanted;
use crate::error::Refusal;
use crate::fields::{Fields, wrong};
use crate::http::App;
use crate::language::Language;

/// As many tokens as OpenAI's route writes where nothing is said.
const DEFAULT_TOKENS: usize = 16;

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
    let prompt = tokens(language, fields.need("prompt")?)?;
    fields.neutral(&[("suffix", &[Value::String(String::new())])])?;
    let wanted = Wanted::take(fields)?;
    let frame = Frame::new(Form::Completion, &name, prompt.len(), wanted.usage);
    let replies = language.start(wanted.request(prompt, DEFAULT_TOKENS), &app.metrics);
    let replies = replies.await?;
    match wanted.stream {
        true => answer::stream(frame, replies).await,
        false => answer::whole(&frame, replies).await,
    }
}

/// The tokens of a prompt: a text, tokens, or a list of one of either.
fn tokens(language: &Language, prompt: Value) -> Result<Vec<u32>, Refusal> {
    let expected = "one text or one list of tokens";
    match prompt {
        Value::String(text) => language
            .tokenizer
            .encode(&text, true)
            .map_err(|e| Refusal::failed(&e)),
        Value::Array(items) if items.iter().all(Value::is_u64) && !items.is_empty() => {
            let vocab = language.tokenizer.vocab_len();
            let token = |item: &Value| {
                let id = item.as_u64().and_then(|id| u32::try_from(id).ok());
                id.filter(|&id| (id as usize) < vocab).ok_or_else(|| {
                    Refusal::bad(format!(
                        "token {item} of `prompt` is outside the vocabulary of {vocab}"
                    ))
                })
            };
            items.iter().map(token).collect()
        }
        Value::Array(mut items) if items.len() == 1 && !items[0].is_number() => {
            let only = items.swap_remove(0);
            match only {
                Value::Array(ref inner) if !inner.iter().all(Value::is_u64) => {
                    Err(wrong("prompt", &only, expected))
                }
                Value::Array(_) | Value::String(_) => tokens(language, only),
                other => Err(wrong("prompt", &other, expected)),
            }
        }
        other => Err(wrong("prompt", &other, expected)),
    }
}
