//! `GET /v1/models`, in the form of OpenAI's and of Anthropic's API.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::response::Response;
use serde_json::{Value, json};

use crate::error::{ApiError, json_response};
use crate::http::AppState;
use crate::models::ListedModel;
use crate::request_log::timestamp;

/// A model with the fields of OpenAI's and of Anthropic's API.
fn model_json(app: &AppState, model: &ListedModel) -> Value {
    let name = &model.name;
    let started = timestamp(Duration::from_secs(app.started));
    let mut shown = json!({
        "id": name, "object": "model", "created": app.started, "owned_by": "tercet",
        "type": "model", "display_name": name, "created_at": started,
        "task": model.kind.task(), "input_modalities": model.kind.inputs(), "loaded": model.is_loaded,
    });
    if let Some(parent) = &model.base {
        shown["parent"] = parent.as_str().into();
    }
    shown
}

pub(crate) async fn list(State(app): State<Arc<AppState>>) -> Response {
    let all = app.models.listed_models();
    let data = all.iter().map(|model| model_json(&app, model));
    let data: Vec<Value> = data.collect();
    let id = |model: &ListedModel| model.name.clone();
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
    match all.iter().find(|listed| listed.name == model) {
        Some(listed) => Ok(json_response(&model_json(&app, listed))),
        None => {
            let known: Vec<String> = all.iter().map(|listed| listed.name.clone()).collect();
            Err(ApiError::no_model(&model, &known))
        }
    }
}
