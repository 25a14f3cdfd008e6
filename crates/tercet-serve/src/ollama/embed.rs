//! `POST /api/embed`, and its predecessor `POST /api/embeddings`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use axum::response::Response;
use serde::Serialize;
use serde_json::json;

use super::keep_alive::take_keep_alive;
use super::{OllamaError, keep, model_name, nanoseconds, read_body};
use crate::encoder::{EmbeddingResult, EncoderInputs};
use crate::error::{ApiError, json_text_response};
use crate::fields::JsonFields;
use crate::http::AppState;
use crate::metrics::count;
use crate::openai::embeddings::{MAX_INPUTS, dimensions, shorten};
use crate::queue_ticket::take_terms;
use crate::request_log::RequestRecord;

/// The response of `/api/embed`. It is written without a `Value`, which would write an F32 with the
/// digits of an F64.
#[derive(Serialize)]
struct EmbedResponse<'a> {
    model: &'a str,
    embeddings: &'a [Vec<f32>],
    total_duration: u64,
    load_duration: u64,
    prompt_eval_count: usize,
}

/// The response of `/api/embeddings`.
#[derive(Serialize)]
struct EmbeddingResponse<'a> {
    embedding: &'a [f32],
}

/// Embeds the texts of a field. The duration is that of waiting for the model.
async fn embedded<'a>(
    app: &'a AppState,
    record: &RequestRecord,
    mut fields: JsonFields,
    field: &str,
) -> Result<(&'a str, EmbeddingResult, Duration), ApiError> {
    take_terms(&mut fields, record)?;
    let keep_alive = take_keep_alive(&mut fields)?;
    let asked = model_name(app, fields.text("model")?);
    let began = Instant::now();
    let model = app.models.encoder(asked.as_deref());
    let (name, encoder) = app.in_time(record, model).await?;
    let load_time = began.elapsed();
    record.set_model(asked.as_deref(), name);
    keep(app, name, (keep_alive, record));
    let texts = fields.texts(field)?;
    if texts.len() > MAX_INPUTS {
        let message = format!(
            "field `{field}` has {} texts; at most {MAX_INPUTS} are supported",
            texts.len()
        );
        return Err(ApiError::bad_request(message).with_param(field));
    }
    let width = dimensions(&mut fields, encoder.width())?;
    let cut = fields.truth("truncate")?.unwrap_or(true);
    fields.ignore_rest((record, ""));
    if texts.is_empty() {
        let (rows, tokens) = (Vec::new(), 0);
        return Ok((name, EmbeddingResult { rows, tokens }, load_time));
    }
    let mut result = encoder
        .embed(EncoderInputs::Texts(texts), cut, &app.ticket(record))
        .await?;
    if let Some(width) = width {
        result.rows.iter_mut().for_each(|row| shorten(row, width));
    }
    record.set_prompt_tokens(result.tokens);
    count(&app.metrics.prompt_tokens, result.tokens);
    Ok((name, result, load_time))
}

fn written(response: &impl Serialize) -> Result<Response, OllamaError> {
    let text = serde_json::to_string(response).map_err(|e| ApiError::failed(&e))?;
    Ok(json_text_response(text))
}

/// `POST /api/embed`: the vectors of texts, which have length 1.
pub(crate) async fn embed(
    State(app): State<Arc<AppState>>,
    Extension(record): Extension<Arc<RequestRecord>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, OllamaError> {
    let began = Instant::now();
    let body = read_body(&app, &headers, body).await?;
    let fields = JsonFields::parse(&body)?;
    let (model, result, load_time) = embedded(&app, &record, fields, "input").await?;
    written(&EmbedResponse {
        model,
        embeddings: &result.rows,
        total_duration: nanoseconds(began.elapsed()),
        load_duration: nanoseconds(load_time),
        prompt_eval_count: result.tokens,
    })
}

/// `POST /api/embeddings`: the vector of one text.
pub(crate) async fn embeddings(
    State(app): State<Arc<AppState>>,
    Extension(record): Extension<Arc<RequestRecord>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, OllamaError> {
    let body = read_body(&app, &headers, body).await?;
    let mut fields = JsonFields::parse(&body)?;
    let prompt = fields.text("prompt")?.filter(|text| !text.is_empty());
    fields.put("prompt", prompt.map(|text| json!([text])));
    let (_, result, _) = embedded(&app, &record, fields, "prompt").await?;
    let embedding = result.rows.first().map(Vec::as_slice).unwrap_or_default();
    written(&EmbeddingResponse { embedding })
}
