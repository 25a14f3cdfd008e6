//! `GET /v1/models`.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::Response;
use serde_json::{Value, json};

use crate::error::{Refusal, json_response};
use crate::http::App;

fn shown(app: &App, name: &str, parent: Option<&str>) -> Value {
    let mut shown =
        json!({"id": name, "object": "model", "created": app.started, "owned_by": "tercet"});
    if let Some(parent) = parent {
        shown["parent"] = parent.into();
    }
    shown
}

pub(crate) async fn list(State(app): State<Arc<App>>) -> Response {
    let all = app.models.shown();
    let data = all.iter().map(|(name, parent)| shown(&app, name, *parent));
    let data: Vec<Value> = data.collect();
    json_response(&json!({"object": "list", "data": data}))
}

pub(crate) async fn one(
    State(app): State<Arc<App>>,
    Path(model): Path<String>,
) -> Result<Response, Refusal> {
    let all = app.models.shown();
    match all.iter().find(|(name, _)| *name == model) {
        Some((name, parent)) => Ok(json_response(&shown(&app, name, *parent))),
        None => {
            let known: Vec<String> = all.iter().map(|(name, _)| name.clone()).collect();
            Err(Refusal::no_model(&model, &known))
        }
    }
}
