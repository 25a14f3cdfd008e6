//! `GET /v1/models`.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::Response;
use serde_json::{Value, json};

use crate::error::{Refusal, json_response};
use crate::http::App;

fn shown(app: &App, name: &str) -> Value {
    json!({"id": name, "object": "model", "created": app.started, "owned_by": "tercet"})
}

pub(crate) async fn list(State(app): State<Arc<App>>) -> Response {
    let data: Vec<Value> = app.models.names().map(|name| shown(&app, name)).collect();
    json_response(&json!({"object": "list", "data": data}))
}

pub(crate) async fn one(
    State(app): State<Arc<App>>,
    Path(model): Path<String>,
) -> Result<Response, Refusal> {
    let known: Vec<String> = app.models.names().map(str::to_string).collect();
    match known.contains(&model) {
        true => Ok(json_response(&shown(&app, &model))),
        false => Err(Refusal::no_model(&model, &known)),
    }
}
