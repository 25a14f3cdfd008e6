//! `POST /v1/embeddings`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::error::{ApiError, json_response};
use crate::fields::{JsonFields, wrong};
use crate::http::AppState;
use crate::metrics::count;

/// Maximum texts of a request, as in OpenAI's API.
const MAX_INPUTS: usize = 2048;

pub(crate) async fn handle(
    State(app): State<Arc<AppState>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let body = app.body(&headers, body, &["application/json"]).await?;
    let mut fields = JsonFields::parse(&body)?;
    let name = fields
        .text("model")?
        .ok_or_else(|| ApiError::bad_request("field `model` is missing"))?;
    let encoder = app.models.encoder(&name)?;
    let texts = fields.texts("input")?;
    if texts.is_empty() || texts.len() > MAX_INPUTS {
        return Err(ApiError::bad_request(format!(
            "field `input` has {} texts; expected 1 to {MAX_INPUTS}",
            texts.len()
        )));
    }
    let format = fields
        .text("encoding_format")?
        .unwrap_or_else(|| "float".into());
    let spelled: fn(&[f32]) -> Value = match format.as_str() {
        "float" => |row| json!(row),
        "base64" => |row| {
            let bytes: Vec<u8> = row.iter().flat_map(|x| x.to_le_bytes()).collect();
            Value::String(STANDARD.encode(bytes))
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
    fields.neutral(&[("user", &[])])?;
    fields.finish()?;
    let embedded = encoder.embed(texts, cut).await?;
    count(&app.metrics.prompt_tokens, embedded.tokens);
    let row = |(at, row): (usize, &Vec<f32>)| json!({"object": "embedding", "index": at, "embedding": spelled(row)});
    let data: Vec<Value> = embedded.rows.iter().enumerate().map(row).collect();
    let usage = json!({"prompt_tokens": embedded.tokens, "total_tokens": embedded.tokens});
    Ok(json_response(
        &json!({"object": "list", "data": data, "model": name, "usage": usage}),
    ))
}
