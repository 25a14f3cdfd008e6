//! The served models: `/api/tags`, `/api/ps`, `/api/show` and `/api/version`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use axum::response::Response;
use serde_json::{Value, json};

use super::{OllamaError, model_name, read_body};
use crate::error::{ApiError, json_response};
use crate::fields::JsonFields;
use crate::fill_in_middle::FillInMiddle;
use crate::http::AppState;
use crate::model_facts::ModelFacts;
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

/// `GET /api/version`
pub(crate) async fn version() -> Response {
    json_response(&json!({"version": API_VERSION, "tercet": env!("CARGO_PKG_VERSION")}))
}

/// `GET /api/tags`: all models.
pub(crate) async fn tags(State(app): State<Arc<AppState>>) -> Response {
    json_response(&json!({"models": listed(&app, |_, model| model)}))
}

/// `GET /api/ps`: all models, because they stay loaded.
pub(crate) async fn ps(State(app): State<Arc<AppState>>) -> Response {
    let running = |name: &str, mut model: Value| {
        model["expires_at"] = NEVER.into();
        model["size_vram"] = model["size"].clone();
        if let Ok(selected) = app.models.language(Some(name)) {
            model["context_length"] = selected.model.context.into();
        }
        model
    };
    json_response(&json!({"models": listed(&app, running)}))
}

/// The models that have files, each with what `of` makes of it.
fn listed(app: &AppState, of: impl Fn(&str, Value) -> Value) -> Vec<Value> {
    let all = app.models.listed_models().into_iter();
    let model = |(name, base): (String, Option<&str>)| {
        let facts = app.models.facts(base.unwrap_or(&name))?;
        let model = json!({
            "name": name, "model": name, "modified_at": loaded_at(app), "size": facts.bytes,
            "digest": facts.digest(&name), "details": details(facts, base),
        });
        Some(of(&name, model))
    };
    all.filter_map(model).collect()
}

/// The start of the server, which is when models were loaded.
fn loaded_at(app: &AppState) -> String {
    timestamp(std::time::Duration::from_secs(app.started))
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
    let language = app.models.language(asked.as_deref());
    let (name, language) = match language {
        Ok(selected) => (selected.name, Some(selected.model)),
        Err(refusal) => match app.models.encoder(asked.as_deref()) {
            Ok((name, _)) => (name.to_string(), None),
            Err(_) => return Err(refusal.into()),
        },
    };
    record.set_model(asked.as_deref(), &name);
    let listed = app.models.listed_models();
    let base = listed.iter().find(|(own, _)| *own == name);
    let base = base.and_then(|(_, base)| *base);
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
    if let Some(language) = language {
        capabilities = vec!["completion", "tools"];
        let source = language.template.source();
        if THOUGHTS.iter().any(|text| source.contains(text)) {
            capabilities.push("thinking");
        }
        if FillInMiddle::new(&language.tokenizer).is_some() {
            capabilities.push("insert");
        }
    }
    Ok(json_response(&json!({
        "modelfile": "", "parameters": "", "license": "", "modified_at": loaded_at(&app),
        "template": language.map_or("", |language| language.template.source()),
        "details": details(facts, base), "model_info": info, "capabilities": capabilities,
    })))
}
