//! `POST /v1/embeddings`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use serde_json::{Value, json};

use super::ignored_fields::IGNORED;
use crate::encoder::EncoderInputs;
use crate::error::{ApiError, json_text_response};
use crate::fields::{JsonFields, wrong};
use crate::http::AppState;
use crate::metrics::count;
use crate::queue_ticket::take_terms;
use crate::request_log::RequestRecord;

/// Maximum texts of a request, as in OpenAI's API.
pub(crate) const MAX_INPUTS: usize = 2048;

pub(crate) async fn handle(
    State(app): State<Arc<AppState>>,
    Extension(record): Extension<Arc<RequestRecord>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let body = app.body(&headers, body, &["application/json"]).await?;
    let mut fields = JsonFields::parse(&body)?;
    take_terms(&mut fields, &record)?;
    let asked = fields.text("model")?;
    let model = app.models.encoder(asked.as_deref());
    let (name, encoder) = app.in_time(&record, model).await?;
    record.set_model(asked.as_deref(), name);
    let inputs = inputs(&mut fields)?;
    let width = dimensions(&mut fields, encoder.width())?;
    let format = fields
        .text("encoding_format")?
        .unwrap_or_else(|| "float".into());
    let spelled: fn(&[f32]) -> SpelledVector<'_> = match format.as_str() {
        "float" => |row| SpelledVector::Floats(row),
        "base64" => |row| {
            let bytes: Vec<u8> = row.iter().flat_map(|x| x.to_le_bytes()).collect();
            SpelledVector::Base64(STANDARD.encode(bytes))
        },
        _ => {
            return Err(wrong(
                "encoding_format",
                &Value::String(format),
                "`float` or `base64`",
            ));
        }
    };
    // An extension of text-embeddings-inference.
    let cut = fields.truth("truncate")?.unwrap_or(false);
    fields.ignore(&IGNORED, (&record, ""));
    fields.finish()?;
    let mut embedded = encoder.embed(inputs, cut, &app.ticket(&record)).await?;
    if let Some(width) = width {
        embedded.rows.iter_mut().for_each(|row| shorten(row, width));
    }
    record.set_prompt_tokens(embedded.tokens);
    count(&app.metrics.prompt_tokens, embedded.tokens);
    let rows = embedded.rows.iter().enumerate();
    let data = rows.map(|(index, row)| EmbeddingItem {
        object: "embedding",
        index,
        embedding: spelled(row),
    });
    let list = EmbeddingList {
        object: "list",
        data: data.collect(),
        model: name,
        usage: json!({"prompt_tokens": embedded.tokens, "total_tokens": embedded.tokens}),
    };
    let text = serde_json::to_string(&list).map_err(|e| ApiError::failed(&e))?;
    Ok(json_text_response(text))
}

/// The response. It is written without a [`Value`], which takes several times as long for vectors and
/// writes an F32 with the digits of an F64.
#[derive(Serialize)]
struct EmbeddingList<'a> {
    object: &'static str,
    data: Vec<EmbeddingItem<'a>>,
    model: &'a str,
    usage: Value,
}

#[derive(Serialize)]
struct EmbeddingItem<'a> {
    object: &'static str,
    index: usize,
    embedding: SpelledVector<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum SpelledVector<'a> {
    Floats(&'a [f32]),
    /// Little-endian F32.
    Base64(String),
}

/// Parses `input`: a text, the tokens of a text, or a list of texts or of token lists.
fn inputs(fields: &mut JsonFields) -> Result<EncoderInputs, ApiError> {
    let expected = "a text, a list of tokens, or a list of either";
    let value = fields.need("input")?;
    let is_tokens = |item: &Value| item.as_array().is_some_and(|of| !of.is_empty());
    let is_texts = match &value {
        Value::Array(items) => items.iter().all(Value::is_string),
        value => value.is_string(),
    };
    if is_texts {
        fields.put("input", Some(value));
        return checked(EncoderInputs::Texts(fields.texts("input")?));
    }
    let inputs = match &value {
        Value::Array(items) if !items.is_empty() && items.iter().all(Value::is_number) => {
            EncoderInputs::Tokens(vec![tokens(items)?])
        }
        Value::Array(items) if !items.is_empty() && items.iter().all(is_tokens) => {
            let rows = items.iter().filter_map(Value::as_array);
            let rows = rows.map(|row| tokens(row));
            EncoderInputs::Tokens(rows.collect::<Result<_, _>>()?)
        }
        other => return Err(wrong("input", other, expected)),
    };
    checked(inputs)
}

/// Checks the number of texts.
fn checked(inputs: EncoderInputs) -> Result<EncoderInputs, ApiError> {
    let count = match &inputs {
        EncoderInputs::Texts(texts) => texts.len(),
        EncoderInputs::Tokens(rows) => rows.len(),
    };
    match (1..=MAX_INPUTS).contains(&count) {
        true => Ok(inputs),
        false => Err(ApiError::bad_request(format!(
            "field `input` has {count} texts; expected 1 to {MAX_INPUTS}"
        ))),
    }
}

fn tokens(items: &[Value]) -> Result<Vec<u32>, ApiError> {
    let id = |item: &Value| item.as_u64().and_then(|id| u32::try_from(id).ok());
    let ids = items.iter().map(|item| id(item).ok_or(item));
    ids.collect::<Result<_, _>>()
        .map_err(|item| wrong("input", item, "token ids"))
}

/// Parses the number of elements of the vectors; `None` for all of them.
pub(crate) fn dimensions(fields: &mut JsonFields, width: usize) -> Result<Option<usize>, ApiError> {
    let Some(count) = fields.count("dimensions")? else {
        return Ok(None);
    };
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    match (1..=width).contains(&count) {
        true => Ok((count < width).then_some(count)),
        false => Err(wrong(
            "dimensions",
            &count.into(),
            &format!("1 to {width}, the elements of the model's vectors"),
        )),
    }
}

/// Keeps the first elements of a vector, scaled to length 1.
pub(crate) fn shorten(row: &mut Vec<f32>, width: usize) {
    row.truncate(width);
    let squares = row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
    let length = squares.sqrt();
    if length > 0.0 {
        row.iter_mut()
            .for_each(|x| *x = (f64::from(*x) / length) as f32);
    }
}
