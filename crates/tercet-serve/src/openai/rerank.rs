//! `POST /v1/rerank`, in the format of Cohere and Jina.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use axum::response::Response;
use serde_json::{Value, json};

use super::ignored_fields::IGNORED;
use crate::error::{ApiError, json_response};
use crate::fields::{JsonFields, wrong};
use crate::http::AppState;
use crate::metrics::count;
use crate::queue_ticket::take_terms;
use crate::request_log::RequestRecord;

/// Maximum documents of a request.
pub(super) const MAX_DOCUMENTS: usize = 2048;

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
    let model = app.models.reranker(asked.as_deref());
    let (name, reranker) = app.in_time(&record, model).await?;
    record.set_model(asked.as_deref(), name);
    let query = fields
        .text("query")?
        .ok_or_else(|| ApiError::bad_request("field `query` is missing"))?;
    let documents = documents(fields.need("documents")?, &record)?;
    let top = match fields.count("top_n")? {
        Some(0) => return Err(wrong("top_n", &json!(0), "a whole number, 1 or more")),
        top => top.map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX)),
    };
    let shown = fields.truth("return_documents")?.unwrap_or(false);
    let cut = fields.truth("truncate")?.unwrap_or(false);
    fields.ignore(&IGNORED, (&record, ""));
    fields.finish()?;
    let texts = if shown { documents.clone() } else { Vec::new() };
    let ranked = reranker
        .rank(query, documents, cut, &app.ticket(&record))
        .await?;
    count(&app.metrics.prompt_tokens, ranked.tokens);
    record.set_prompt_tokens(ranked.tokens);
    let mut order: Vec<(usize, f32)> = ranked.scores.into_iter().enumerate().collect();
    // The sort is stable: documents with equal scores stay in input order.
    order.sort_by(|a, b| b.1.total_cmp(&a.1));
    order.truncate(top);
    let results = order.into_iter().map(|(index, score)| {
        let mut result = json!({"index": index, "relevance_score": score});
        if let Some(text) = texts.get(index) {
            result["document"] = json!({"text": text});
        }
        result
    });
    let results: Vec<Value> = results.collect();
    let id = format!("rerank-{:016x}", RandomState::new().hash_one(0u8));
    let usage = json!({"prompt_tokens": ranked.tokens, "total_tokens": ranked.tokens});
    Ok(json_response(
        &json!({"id": id, "model": name, "results": results, "usage": usage}),
    ))
}

/// Parses a list of texts, or of objects with a `text` each.
fn documents(value: Value, record: &RequestRecord) -> Result<Vec<String>, ApiError> {
    let expected = "a list of texts, or of objects with a `text` each";
    let Value::Array(items) = value else {
        return Err(wrong("documents", &value, expected));
    };
    if items.is_empty() || items.len() > MAX_DOCUMENTS {
        return Err(ApiError::bad_request(format!(
            "field `documents` has {} documents; expected 1 to {MAX_DOCUMENTS}",
            items.len()
        )));
    }
    let document = |item| match item {
        Value::String(text) => Ok(text),
        Value::Object(_) => {
            let mut fields = JsonFields::from_value(item, "a document")?;
            let text = fields
                .text("text")?
                .ok_or_else(|| ApiError::bad_request("field `text` of a document is missing"))?;
            fields.ignore_rest((record, "documents."));
            Ok(text)
        }
        other => Err(wrong("documents", &other, expected)),
    };
    items.into_iter().map(document).collect()
}
