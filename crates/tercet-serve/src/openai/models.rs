//! `GET /v1/models`, in the form of OpenAI's and of Anthropic's API.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::response::Response;
use serde_json::{Value, json};

use crate::error::{ApiError, json_response};
use crate::http::AppState;
use crate::request_log::timestamp;

/// A model with the fields of OpenAI's and of Anthropic's API.
fn model_json(app: &AppState, name: &str, parent: Option<&str>) -> Value {
    let started = timestamp(Duration::from_secs(app.started));
    let mut shown = json!({
        "id": name, "object": "model", "created": app.started, "owned_by": "tercet",
        "type": "model", "display_name": name, "created_at": started,
    });
    if let Some(parent) = parent {
        shown["parent"] = parent.into();
    }
    shown
}

pub(crate) async fn list(State(app): State<Arc<AppState>>) -> Response {
    let all = app.models.listed_models();
    let data = all
        .iter()
        .map(|(name, parent)| model_json(&app, name, *parent));
    let data: Vec<Value> = data.collect();
    let id = |(name, _): &(String, Option<&str>)| name.clone();
    json_response(&json!({
        "object": "list", "data": data, "has_more": false,
        "first_id": all.first().map(id), "last_id": all.last().map(id),
    }))
}

pub(crate) async fn one(
    State(app): State<Arc<AppState>>,
    Path(model): Path<String>,
) -> Result<Response, ApiError> {
    let all = app.models.listed_models();
    match all.iter().find(|(name, _)| *name == model) {
        Some((name, parent)) => Ok(json_response(&model_json(&app, name, *parent))),
        None => {
            let known: Vec<String> = all.iter().map(|(name, _)| name.clone()).collect();
            Err(ApiError::no_model(&model, &known))
        }
    }
}
