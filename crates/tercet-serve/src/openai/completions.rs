//! `POST /v1/completions`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use axum::response::Response;
use serde_json::Value;

use super::response::{CompletionKind, CompletionRenderer, EchoedPrompt, ResponseEnvelope};
use super::sampling::{MAX_PROMPTS, take_params};
use crate::answer_stream::{AnswerStream, stream_response};
use crate::conversation::select_language;
use crate::error::{ApiError, json_response};
use crate::fields::{JsonFields, wrong};
use crate::fill_in_middle::FillInMiddle;
use crate::http::AppState;
use crate::language::{GenerationRequest, ServedLanguageModel};
use crate::logprobs::TokenText;
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
    let selected = select_language(&app, &mut fields, &record).await?;
    let (language, adapter) = (&selected.model, selected.adapter);
    let given = fields.need("prompt")?;
    let echoes = fields.truth("echo")?.unwrap_or(false);
    let suffix = fields.text("suffix")?.filter(|text| !text.is_empty());
    let mut wanted = take_params(fields, CompletionKind::Completion, &record)?;
    let (prompts, texts) = match &suffix {
        None => prompts(language, given)?,
        Some(_) if echoes => {
            let message = "field `echo` cannot be combined with `suffix`";
            return Err(ApiError::bad_request(message));
        }
        Some(suffix) => {
            let tokens = FillInMiddle::for_field("suffix", &language.tokenizer)?;
            wanted.stop_tokens.extend(&tokens.ends);
            (
                vec![infill(language, &tokens, (given, suffix))?],
                Vec::new(),
            )
        }
    };
    let echoed = match echoes {
        true => echoed(language, &prompts, texts)?,
        false => Vec::new(),
    };
    let texts = prompts.len() * wanted.n;
    if texts > MAX_PROMPTS {
        return Err(ApiError::bad_request(format!(
            "`prompt` and `n` request {texts} completions; at most {MAX_PROMPTS} are supported"
        )));
    }
    let frame = ResponseEnvelope {
        choice_count: texts,
        per_prompt: wanted.n,
        usage: wanted.usage,
        seed: wanted.seed,
        logprobs: wanted.top_logprobs.is_some(),
        details: wanted.details,
        echoed,
        prompts: if wanted.details.ids {
            prompts.clone()
        } else {
            Vec::new()
        },
        ..ResponseEnvelope::new(
            CompletionKind::Completion,
            &selected.name,
            prompts.iter().map(Vec::len).sum(),
        )
    };
    record.set_prompt_tokens(frame.prompt_tokens);
    let requests = prompts
        .iter()
        .flat_map(|prompt| wanted.requests(prompt, DEFAULT_TOKENS));
    let mut requests: Vec<GenerationRequest> = requests.collect();
    if echoes && wanted.top_logprobs.is_some() {
        requests
            .iter_mut()
            .for_each(GenerationRequest::force_prompt);
    }
    let responses = language
        .start(requests, adapter, app.ticket(&record))
        .await?;
    let mut answers = AnswerStream::new(responses, (texts, None), (language, &record));
    match wanted.stream {
        true => stream_response(answers, CompletionRenderer::new(frame)).await,
        false => Ok(json_response(
            &frame.full_response(answers.collect().await?),
        )),
    }
}

/// The tokens of prompts, and the texts of those that are texts.
type Prompts = (Vec<Vec<u32>>, Vec<Option<String>>);

/// The tokens of all prompts, and the texts of those that are texts. `prompt` is a string, a list of
/// tokens, or a list of either.
fn prompts(language: &ServedLanguageModel, prompt: Value) -> Result<Prompts, ApiError> {
    let items = match prompt {
        Value::Array(items) if !items.is_empty() && !items.iter().any(Value::is_number) => {
            if items.len() > MAX_PROMPTS {
                return Err(ApiError::bad_request(format!(
                    "field `prompt` has {} prompts; at most {MAX_PROMPTS} are supported",
                    items.len()
                )));
            }
            items
        }
        one => vec![one],
    };
    let texts = items.iter().map(|item| item.as_str().map(str::to_string));
    let texts = texts.collect();
    let prompts = items.into_iter().map(|item| tokens(language, item));
    Ok((prompts.collect::<Result<_, _>>()?, texts))
}

/// The tokens of a prompt whose middle is missing.
fn infill(
    language: &ServedLanguageModel,
    tokens: &FillInMiddle,
    (prompt, suffix): (Value, &str),
) -> Result<Vec<u32>, ApiError> {
    let Value::String(prefix) = prompt else {
        return Err(wrong("prompt", &prompt, "a text, because of `suffix`"));
    };
    language.check_bytes(prefix.len() + suffix.len())?;
    tokens.prompt(&language.tokenizer, (&prefix, suffix), &[])
}

/// The prompts as the response repeats them.
fn echoed(
    language: &ServedLanguageModel,
    prompts: &[Vec<u32>],
    texts: Vec<Option<String>>,
) -> Result<Vec<EchoedPrompt>, ApiError> {
    let one = |(prompt, text): (&Vec<u32>, Option<String>)| {
        let tokenizer = &language.tokenizer;
        let text = match text {
            Some(text) => text,
            None => tokenizer.decode(prompt).map_err(|e| ApiError::failed(&e))?,
        };
        let first = prompt.first().map(|id| TokenText::new(tokenizer, *id));
        Ok(EchoedPrompt { text, first })
    };
    prompts.iter().zip(texts).map(one).collect()
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
