//! Routes about the tokens and settings of language models, with the fields of llama.cpp's server
//! and of vLLM: `POST /tokenize`, `POST /detokenize`, `POST /apply-template`, `GET /props`, `GET /slots`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Extension, Query, State};
use axum::http::HeaderMap;
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value, json};
use tercet_models::Tokenizer;

use crate::audio_parts;
use crate::conversation::select_language;
use crate::encoder::off_the_event_loop;
use crate::error::{ApiError, json_response};
use crate::fields::JsonFields;
use crate::http::AppState;
use crate::language::ServedLanguageModel;
use crate::models::SelectedLanguage;
use crate::openai::chat;
use crate::request_log::RequestRecord;

/// Parses a request and selects its model.
async fn read_request(
    app: &AppState,
    record: &RequestRecord,
    body: &[u8],
) -> Result<(JsonFields, Arc<ServedLanguageModel>), ApiError> {
    let mut fields = JsonFields::parse(body)?;
    let selected = select_language(app, &mut fields, record).await?;
    Ok((fields, selected.model))
}

/// `POST /tokenize`: the tokens of a text, which is `content` without or `prompt` with the special
/// tokens around a text by default.
pub(crate) async fn tokenize(
    State(app): State<Arc<AppState>>,
    Extension(record): Extension<Arc<RequestRecord>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let body = app.body(&headers, body, &["application/json"]).await?;
    let (mut fields, model) = read_request(&app, &record, &body).await?;
    let (text, default) = match (fields.text("content")?, fields.text("prompt")?) {
        (Some(text), None) => (text, false),
        (None, Some(text)) => (text, true),
        (None, None) => {
            return Err(ApiError::bad_request(
                "field `content` or `prompt` is missing",
            ));
        }
        (Some(_), Some(_)) => {
            return Err(ApiError::bad_request(
                "fields `content` and `prompt` are both set; send one of them",
            ));
        }
    };
    let added = [
        fields.truth("add_special")?,
        fields.truth("add_special_tokens")?,
    ];
    let added = added.into_iter().flatten().next().unwrap_or(default);
    let parsed = fields.truth("parse_special")?.unwrap_or(true);
    let pieces = fields.truth("with_pieces")?.unwrap_or(false);
    let texts = fields.truth("return_token_strs")?.unwrap_or(false);
    fields.ignore_rest((&record, ""));
    let tokenizer = Arc::clone(&model.tokenizer);
    let encode = move || match parsed {
        true => tokenizer.encode(&text, added),
        false => tokenizer.encode_literally(&text, added),
    };
    // The size of the body bounds that of the text.
    let ids = off_the_event_loop(body.len(), encode).await?;
    let ids = ids.map_err(|e| ApiError::failed(&e))?;
    record.set_prompt_tokens(ids.len());
    let tokenizer = &model.tokenizer;
    let pieces = pieces.then(|| {
        let piece = |id: &u32| json!({"id": id, "piece": piece(tokenizer, *id)});
        ids.iter().map(piece).collect::<Vec<Value>>()
    });
    let tokens = pieces.map_or_else(|| json!(ids), Value::from);
    let mut answer = json!({"tokens": tokens, "count": ids.len(), "max_model_len": model.context});
    if texts {
        let texts = ids
            .iter()
            .map(|id| tokenizer.id_to_token(*id).unwrap_or_default());
        answer["token_strs"] = texts.collect::<Vec<String>>().into();
    }
    Ok(json_response(&answer))
}

/// The text of a token; bytes if they are no UTF-8 alone.
fn piece(tokenizer: &Tokenizer, id: u32) -> Value {
    match tokenizer.bytes(id) {
        Some((bytes, false)) => match String::from_utf8(bytes) {
            Ok(text) => text.into(),
            Err(e) => e.into_bytes().into(),
        },
        Some((_, true)) | None => tokenizer.id_to_token(id).into(),
    }
}

/// `POST /detokenize`: the text of tokens, with the spelling of special tokens.
pub(crate) async fn detokenize(
    State(app): State<Arc<AppState>>,
    Extension(record): Extension<Arc<RequestRecord>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let body = app.body(&headers, body, &["application/json"]).await?;
    let (mut fields, model) = read_request(&app, &record, &body).await?;
    let ids = fields.need("tokens")?;
    fields.put("tokens", Some(ids));
    let ids = fields.token_ids("tokens")?;
    fields.ignore_rest((&record, ""));
    let vocab = model.tokenizer.vocab_len();
    if let Some(id) = ids.iter().find(|id| **id as usize >= vocab) {
        return Err(ApiError::bad_request(format!(
            "token {id} of `tokens` is outside the vocabulary of {vocab}"
        )));
    }
    let text = model.tokenizer.decode_with_special(&ids);
    let text = text.map_err(|e| ApiError::failed(&e))?;
    Ok(json_response(&json!({"content": text, "prompt": text})))
}

/// `POST /apply-template`: the text of a conversation up to the start of the answer.
pub(crate) async fn apply_template(
    State(app): State<Arc<AppState>>,
    Extension(record): Extension<Arc<RequestRecord>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let body = app.body(&headers, body, &["application/json"]).await?;
    let (mut fields, model) = read_request(&app, &record, &body).await?;
    audio_parts::write_down((&app, &record), &mut fields, "messages").await?;
    let rendered = chat::parse(fields, &model, &record)?.render(&model)?;
    Ok(json_response(&json!({"prompt": rendered.text})))
}

/// `GET /slots`: the slots of a language model, which `?model=NAME` selects. Requests may move, so
/// the first slots count as busy.
pub(crate) async fn slots(
    State(app): State<Arc<AppState>>,
    Query(query): Query<PropsQuery>,
) -> Result<Response, ApiError> {
    let model = app.models.language(query.model.as_deref()).await?.model;
    let load = model.load_now();
    let slot = |id| json!({"id": id, "n_ctx": model.context, "is_processing": id < load.busy, "speculative": false});
    let slots = (0..load.workers).map(slot);
    Ok(json_response(&slots.collect()))
}

/// The query of `GET /props` and `GET /slots`.
#[derive(Deserialize)]
pub(crate) struct PropsQuery {
    model: Option<String>,
}

/// `GET /props`: settings of a language model, which `?model=NAME` selects.
pub(crate) async fn props(
    State(app): State<Arc<AppState>>,
    Query(query): Query<PropsQuery>,
) -> Result<Response, ApiError> {
    let SelectedLanguage { name, model, .. } = app.models.language(query.model.as_deref()).await?;
    let spelled = |id: Option<&u32>| id.and_then(|id| model.tokenizer.id_to_token(*id));
    let around = model.tokenizer.surrounding();
    let (before, _) = around.map_err(|e| ApiError::failed(&e))?;
    Ok(json_response(&json!({
        "default_generation_settings": {"n_ctx": model.context},
        "total_slots": model.load_now().workers,
        "model_alias": name,
        "chat_template": model.template.source(),
        "bos_token": spelled(before.first()),
        "eos_token": spelled(model.ends().first()),
        "build_info": concat!("tercet ", env!("CARGO_PKG_VERSION")),
    })))
}
