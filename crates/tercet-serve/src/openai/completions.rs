//! `POST /v1/completions`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use serde_json::Value;

use super::answer::{Form, Frame};
use super::deliver;
use super::sampling::{MOST_TEXTS, Wanted};
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
    let (language, adapter) = app.models.language(&name)?;
    let prompts = prompts(language, fields.need("prompt")?)?;
    fields.neutral(&[("suffix", &[Value::String(String::new())])])?;
    let wanted = Wanted::take(fields, Form::Completion)?;
    let texts = prompts.len() * wanted.n;
    if texts > MOST_TEXTS {
        return Err(Refusal::bad(format!(
            "`prompt` and `n` ask for {texts} texts; at most {MOST_TEXTS} are possible"
        )));
    }
    let frame = Frame {
        texts,
        usage: wanted.usage,
        logprobs: wanted.likeliest.is_some(),
        ..Frame::new(Form::Completion, &name, prompts.iter().map(Vec::len).sum())
    };
    let requests = prompts
        .iter()
        .flat_map(|prompt| wanted.requests(prompt, DEFAULT_TOKENS));
    let pieces = language
        .start(requests.collect(), adapter, &app.metrics)
        .await?;
    match wanted.stream {
        true => deliver::stream(frame, pieces).await,
        false => deliver::whole(&frame, pieces).await,
    }
}

/// The tokens of prompts: a text, tokens, or a list of either.
fn prompts(language: &Language, prompt: Value) -> Result<Vec<Vec<u32>>, Refusal> {
    match prompt {
        Value::Array(items) if !items.is_empty() && !items.iter().any(Value::is_number) => {
            if items.len() > MOST_TEXTS {
                return Err(Refusal::bad(format!(
                    "field `prompt` has {} prompts; at most {MOST_TEXTS} are possible",
                    items.len()
                )));
            }
            items
                .into_iter()
                .map(|item| tokens(language, item))
                .collect()
        }
        one => Ok(vec![tokens(language, one)?]),
    }
}

/// The tokens of a text, or tokens.
fn tokens(language: &Language, prompt: Value) -> Result<Vec<u32>, Refusal> {
    let expected = "a text or a list of tokens, or a list of either";
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
        other => Err(wrong("prompt", &other, expected)),
    }
}
