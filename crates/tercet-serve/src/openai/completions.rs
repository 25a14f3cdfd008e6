//! `POST /v1/completions`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use axum::response::Response;
use serde_json::Value;

use super::response::{CompletionKind, ResponseEnvelope};
use super::sampling::{CompletionParams, MAX_PROMPTS};
use super::streaming;
use crate::error::ApiError;
use crate::fields::{JsonFields, wrong};
use crate::http::AppState;
use crate::language::ServedLanguageModel;
use crate::models::SelectedLanguage;
use crate::request_log::RequestRecord;

/// Default of `max_tokens`, as in OpenAI's API.
const DEFAULT_TOKENS: usize = 16;

pub(crate) async fn handle(
    State(app): State<Arc<AppState>>,
    Extension(record): Extension<Arc<RequestRecord>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let body = app.body(&headers, body, &["application/json"]).await?;
    let mut fields = JsonFields::parse(&body)?;
    let asked = fields.text("model")?;
    let SelectedLanguage {
        name,
        model: language,
        adapter,
    } = app.models.language(asked.as_deref())?;
    record.set_model(asked.as_deref(), &name);
    let prompts = prompts(language, fields.need("prompt")?)?;
    fields.neutral(&[("suffix", &[Value::String(String::new())])])?;
    let wanted = CompletionParams::take(fields, CompletionKind::Completion, &record)?;
    let texts = prompts.len() * wanted.n;
    if texts > MAX_PROMPTS {
        return Err(ApiError::bad_request(format!(
            "`prompt` and `n` request {texts} completions; at most {MAX_PROMPTS} are supported"
        )));
    }
    let frame = ResponseEnvelope {
        choice_count: texts,
        usage: wanted.usage,
        seed: wanted.seed,
        logprobs: wanted.top_logprobs.is_some(),
        details: wanted.details,
        prompts: if wanted.details.ids {
            prompts.clone()
        } else {
            Vec::new()
        },
        ..ResponseEnvelope::new(
            CompletionKind::Completion,
            &name,
            prompts.iter().map(Vec::len).sum(),
        )
    };
    record.set_prompt_tokens(frame.prompt_tokens);
    let requests = prompts
        .iter()
        .flat_map(|prompt| wanted.requests(prompt, DEFAULT_TOKENS));
    let pieces = language
        .start(requests.collect(), adapter, &app.metrics)
        .await?;
    match wanted.stream {
        true => streaming::stream(frame, pieces, record).await,
        false => streaming::collect_response(&frame, pieces, &record).await,
    }
}

/// Returns the tokens of all prompts. `prompt` is a string, a list of tokens, or a list of either.
fn prompts(language: &ServedLanguageModel, prompt: Value) -> Result<Vec<Vec<u32>>, ApiError> {
    match prompt {
        Value::Array(items) if !items.is_empty() && !items.iter().any(Value::is_number) => {
            if items.len() > MAX_PROMPTS {
                return Err(ApiError::bad_request(format!(
                    "field `prompt` has {} prompts; at most {MAX_PROMPTS} are supported",
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

/// Returns the tokens of one prompt: a string or a list of tokens.
fn tokens(language: &ServedLanguageModel, prompt: Value) -> Result<Vec<u32>, ApiError> {
    let expected = "a text or a list of tokens, or a list of either";
    match prompt {
        Value::String(text) => {
            language.check_bytes(text.len())?;
            let tokens = language.tokenizer.encode(&text, true);
            tokens.map_err(|e| ApiError::failed(&e))
        }
        Value::Array(items) if items.iter().all(Value::is_u64) && !items.is_empty() => {
            let vocab = language.tokenizer.vocab_len();
            let token = |item: &Value| {
                let id = item.as_u64().and_then(|id| u32::try_from(id).ok());
                id.filter(|&id| (id as usize) < vocab).ok_or_else(|| {
                    ApiError::bad_request(format!(
                        "token {item} of `prompt` is outside the vocabulary of {vocab}"
                    ))
                })
            };
            items.iter().map(token).collect()
        }
        other => Err(wrong("prompt", &other, expected)),
    }
}
