//! `GET /v1/models`.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::Response;
use serde_json::{Value, json};

use crate::error::{ApiError, json_response};
use crate::http::AppState;

fn model_json(app: &AppState, name: &str, parent: Option<&str>) -> Value {
    let mut shown =
        json!({"id": name, "object": "model", "created": app.started, "owned_by": "tercet"});
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
    json_response(&json!({"object": "list", "data": data}))
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
