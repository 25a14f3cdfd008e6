//! `POST /score` and `/v1/score` of vLLM: scores of pairs of texts by a reranker.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use axum::response::Response;
use serde_json::{Value, json};

use super::ignored_fields::IGNORED;
use super::rerank::MAX_DOCUMENTS;
use crate::error::{ApiError, json_response};
use crate::fields::JsonFields;
use crate::http::{AppState, now};
use crate::metrics::count;
use crate::queue_ticket::take_terms;
use crate::request_log::RequestRecord;

/// Names of the fields with the first and with the second texts.
const FIRST: [&str; 4] = ["text_1", "queries", "query", "data_1"];
const SECOND: [&str; 4] = ["text_2", "documents", "items", "data_2"];

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
    let first = texts(&mut fields, FIRST)?;
    let second = texts(&mut fields, SECOND)?;
    let cut = fields.truth("truncate")?.unwrap_or(false);
    fields.ignore(&IGNORED, (&record, ""));
    fields.finish()?;
    // One text is compared with each of the others; lists of the same length by pairs.
    let groups: Vec<(String, Vec<String>)> = match (first.len(), second.len()) {
        (1, _) => first
            .into_iter()
            .map(|text| (text, second.clone()))
            .collect(),
        (a, b) if a == b => {
            let pairs = first.into_iter().zip(second);
            pairs.map(|(a, b)| (a, vec![b])).collect()
        }
        (a, b) => {
            return Err(ApiError::bad_request(format!(
                "field `text_1` has {a} texts and `text_2` has {b}; expected one text in `text_1`, or the same number in both"
            )));
        }
    };
    let mut scores = Vec::new();
    let mut tokens = 0;
    for (query, documents) in groups {
        let ranked = reranker
            .rank(query, documents, cut, &app.ticket(&record))
            .await?;
        scores.extend(ranked.scores);
        tokens += ranked.tokens;
    }
    count(&app.metrics.prompt_tokens, tokens);
    record.set_prompt_tokens(tokens);
    let data = scores.iter().enumerate();
    let data =
        data.map(|(index, score)| json!({"index": index, "object": "score", "score": score}));
    let id = format!("score-{:016x}", RandomState::new().hash_one(0u8));
    let usage = json!({"prompt_tokens": tokens, "total_tokens": tokens});
    Ok(json_response(&json!({
        "id": id, "object": "list", "created": now(), "model": name,
        "data": data.collect::<Vec<Value>>(), "usage": usage,
    })))
}

/// Takes the texts of the first field that is present.
fn texts(fields: &mut JsonFields, names: [&str; 4]) -> Result<Vec<String>, ApiError> {
    for name in names {
        let texts = fields.texts(name)?;
        if texts.len() > MAX_DOCUMENTS {
            let message = format!(
                "field `{name}` has {} texts; expected 1 to {MAX_DOCUMENTS}",
                texts.len()
            );
            return Err(ApiError::bad_request(message).with_param(name));
        }
        if !texts.is_empty() {
            return Ok(texts);
        }
    }
    Err(fields.missing(names[0]))
}
