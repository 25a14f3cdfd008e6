//! Routes that load and unload models and adapters: `POST /models/load` and `/models/unload`, as llama.cpp's server
//! has them, and `POST /v1/load_lora_adapter` and `/v1/unload_lora_adapter`, as vLLM's.

use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde_json::json;

use crate::error::{ApiError, json_response};
use crate::fields::JsonFields;
use crate::http::AppState;
use crate::request_log::RequestRecord;

/// Reads the fields of a request.
async fn read(app: &AppState, headers: &HeaderMap, body: Body) -> Result<JsonFields, ApiError> {
    let body = app.body(headers, body, &["application/json"]).await?;
    JsonFields::parse(&body)
}

/// `POST /models/load`: loads `model`, so that the next request need not wait.
pub(crate) async fn load(
    State(app): State<Arc<AppState>>,
    Extension(record): Extension<Arc<RequestRecord>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let mut fields = read(&app, &headers, body).await?;
    let model = fields.need_text("model")?;
    fields.ignore_rest((&record, ""));
    app.models.load(&model).await?;
    Ok(json_response(&json!({"success": true})))
}

/// `POST /models/unload`: unloads `model` when its requests have ended.
pub(crate) async fn unload(
    State(app): State<Arc<AppState>>,
    Extension(record): Extension<Arc<RequestRecord>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let mut fields = read(&app, &headers, body).await?;
    let model = fields.need_text("model")?;
    fields.ignore_rest((&record, ""));
    app.models.unload(&model).await?;
    Ok(json_response(&json!({"success": true})))
}

/// `POST /v1/load_lora_adapter`: adds the adapter `lora_name` from `lora_path` to `base_model_name`, or replaces it.
pub(crate) async fn load_adapter(
    State(app): State<Arc<AppState>>,
    Extension(record): Extension<Arc<RequestRecord>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let mut fields = read(&app, &headers, body).await?;
    let name = fields.need_text("lora_name")?;
    let path = fields.need_text("lora_path")?;
    let model = fields.text("base_model_name")?;
    fields.ignore_rest((&record, ""));
    let path = adapter_path(app.options.adapter_folder.as_deref(), &path)?;
    app.models
        .add_adapter(model.as_deref(), &name, &path)
        .await?;
    Ok(json_response(&json!({"success": true})))
}

/// `POST /v1/unload_lora_adapter`: removes the adapter `lora_name` from `base_model_name`.
pub(crate) async fn unload_adapter(
    State(app): State<Arc<AppState>>,
    Extension(record): Extension<Arc<RequestRecord>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let mut fields = read(&app, &headers, body).await?;
    let name = fields.need_text("lora_name")?;
    let model = fields.text("base_model_name")?;
    fields.ignore_rest((&record, ""));
    app.models.remove_adapter(model.as_deref(), &name).await?;
    Ok(json_response(&json!({"success": true})))
}

/// The path of an adapter in the folder of adapters. A request reads no other files.
pub fn adapter_path(folder: Option<&Path>, path: &str) -> Result<PathBuf, ApiError> {
    let Some(folder) = folder else {
        let message =
            "the server loads no adapters while it runs; start it with --adapters-dir DIR";
        return Err(ApiError::new(
            StatusCode::FORBIDDEN,
            "adapters_disabled",
            message,
        ));
    };
    let relative = Path::new(path);
    // A path may be absolute, as long as it is in the folder.
    let relative = relative.strip_prefix(folder).unwrap_or(relative);
    let mut parts = relative.components();
    let is_inside = parts.all(|part| matches!(part, Component::Normal(_)));
    match is_inside && !path.is_empty() {
        true => Ok(folder.join(relative)),
        false => Err(ApiError::bad_request(format!(
            "field `lora_path` is not in the folder of adapters, {}; send a path relative to it",
            folder.display()
        ))),
    }
}
