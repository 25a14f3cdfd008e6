//! The served models: `/api/tags`, `/api/ps`, `/api/show` and `/api/version`.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use axum::response::Response;
use serde_json::{Value, json};

use super::{OllamaError, model_name, read_body};
use crate::error::{ApiError, json_response};
use crate::fields::JsonFields;
use crate::fill_in_middle::FillInMiddle;
use crate::http::{AppState, now};
use crate::model_facts::ModelFacts;
use crate::models::ListedModel;
use crate::request_log::{RequestRecord, timestamp};

/// The version of Ollama whose API the routes follow; clients refuse older ones.
const API_VERSION: &str = "0.12.6";
/// Texts of chat templates of models that think.
const THOUGHTS: [&str; 4] = [
    "enable_thinking",
    "reasoning_content",
    "reasoning_effort",
    "<think>",
];
/// Time at which a model is unloaded: never, as Ollama writes it.
const NEVER: &str = "2318-01-01T00:00:00Z";
/// Longer times than a century count as never.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 86_400);

/// `GET /api/version`
pub(crate) async fn version() -> Response {
    json_response(&json!({"version": API_VERSION, "tercet": env!("CARGO_PKG_VERSION")}))
}

/// `GET /api/tags`: all models.
pub(crate) async fn tags(State(app): State<Arc<AppState>>) -> Response {
    let all = app.models.listed_models().into_iter();
    let all = all.filter_map(|model| listed(&app, &model));
    json_response(&json!({"models": all.collect::<Vec<Value>>()}))
}

/// `GET /api/ps`: the loaded models.
pub(crate) async fn ps(State(app): State<Arc<AppState>>) -> Response {
    let running = |model: ListedModel| {
        let mut shown = listed(&app, &model)?;
        let left = model.time_left.filter(|left| *left < LONGEST);
        shown["expires_at"] = match left {
            Some(left) => timestamp(Duration::from_secs(now()) + left).into(),
            None => NEVER.into(),
        };
        shown["size_vram"] = shown["size"].clone();
        if let Some(language) = app.models.loaded_language(&model.name) {
            shown["context_length"] = language.context.into();
        }
        Some(shown)
    };
    let all = app.models.listed_models().into_iter();
    let all = all.filter(|model| model.is_loaded).filter_map(running);
    json_response(&json!({"models": all.collect::<Vec<Value>>()}))
}

/// A model; `None` for graphs.
fn listed(app: &AppState, model: &ListedModel) -> Option<Value> {
    let (name, base) = (&model.name, model.base.as_deref());
    let facts = app.models.facts(base.unwrap_or(name))?;
    Some(json!({
        "name": name, "model": name, "modified_at": loaded_at(app), "size": facts.bytes,
        "digest": facts.digest(name), "details": details(facts, base),
    }))
}

/// The start of the server, which is when models were loaded.
fn loaded_at(app: &AppState) -> String {
    timestamp(Duration::from_secs(app.started))
}

fn details(facts: &ModelFacts, base: Option<&str>) -> Value {
    json!({
        "parent_model": base.unwrap_or_default(), "format": facts.format,
        "family": facts.architecture, "families": [facts.architecture],
        "parameter_size": facts.parameter_size(), "quantization_level": facts.quantization,
    })
}

/// `POST /api/show`: a model's template, sizes and capabilities.
pub(crate) async fn show(
    State(app): State<Arc<AppState>>,
    Extension(record): Extension<Arc<RequestRecord>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, OllamaError> {
    let body = read_body(&app, &headers, body).await?;
    let mut fields = JsonFields::parse(&body)?;
    let old_name = fields.text("name")?;
    let asked = model_name(&app, fields.text("model")?.or(old_name));
    fields.ignore_rest((&record, ""));
    let (name, language) = match app.models.encoder_name(asked.as_deref()) {
        Ok(name) => (name.to_string(), None),
        Err(_) => {
            let selected = app.models.language(asked.as_deref()).await?;
            (selected.name, Some(selected.model))
        }
    };
    record.set_model(asked.as_deref(), &name);
    let listed = app.models.listed_models();
    let base = listed.iter().find(|model| model.name == name);
    let base = base.and_then(|model| model.base.as_deref());
    let facts = app.models.facts(base.unwrap_or(&name));
    let facts = facts.ok_or_else(|| ApiError::no_model(&name, &[]))?;
    let architecture = &facts.architecture;
    let mut info = json!({
        "general.architecture": architecture, "general.parameter_count": facts.parameters,
    });
    for (key, value) in [
        ("context_length", facts.context),
        ("embedding_length", facts.width),
    ] {
        if let Some(value) = value {
            info[format!("{architecture}.{key}")] = value.into();
        }
    }
    let mut capabilities = vec!["embedding"];
    if let Some(language) = &language {
        capabilities = vec!["completion", "tools"];
        let source = language.template.source();
        if THOUGHTS.iter().any(|text| source.contains(text)) {
            capabilities.push("thinking");
        }
        if language.images.is_some() {
            capabilities.push("vision");
        }
        if FillInMiddle::new(&language.tokenizer).is_some() {
            capabilities.push("insert");
        }
    }
    Ok(json_response(&json!({
        "modelfile": "", "parameters": "", "license": "", "modified_at": loaded_at(&app),
        "template": language.as_ref().map_or("", |language| language.template.source()),
        "details": details(facts, base), "model_info": info, "capabilities": capabilities,
    })))
}
