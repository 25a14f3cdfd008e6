//! Ollama's API: `/api/chat`, `/api/generate`, `/api/embed`, `/api/embeddings`, `/api/tags`,
//! `/api/show`, `/api/ps` and `/api/version`. <https://github.com/ollama/ollama/blob/main/docs/api.md>

mod catalog;
mod embed;
mod keep_alive;
mod renderer;
mod request;

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::extract::{Extension, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

pub(crate) use self::catalog::{ps, show, tags, version};
pub(crate) use self::embed::{embed, embeddings};
use self::keep_alive::take_keep_alive;
use self::renderer::{OllamaForm, OllamaRenderer};
use crate::answer_stream::{AnswerStream, stream_response};
use crate::error::{ApiError, json_response};
use crate::fields::JsonFields;
use crate::http::AppState;
use crate::models::{KeepAlive, SelectedLanguage};
use crate::queue_ticket::take_terms;
use crate::request_log::RequestRecord;

/// An error in the form of this API.
pub(crate) struct OllamaError(pub(crate) ApiError);

impl From<ApiError> for OllamaError {
    fn from(error: ApiError) -> OllamaError {
        OllamaError(error)
    }
}

impl IntoResponse for OllamaError {
    fn into_response(self) -> Response {
        self.0.with(&json!({"error": self.0.message}))
    }
}

/// Reads a body. The examples of this API set no media type, and curl then sends that of a form, which
/// web pages of other origins could send too: these are refused by their origin.
async fn read_body(app: &AppState, headers: &HeaderMap, body: Body) -> Result<Bytes, ApiError> {
    let media_type = headers.get(header::CONTENT_TYPE);
    let media_type = media_type.and_then(|value| value.to_str().ok());
    if !media_type.is_some_and(|text| text.starts_with("application/json")) {
        app.check_origin(headers)?;
    }
    app.read(headers, body).await
}

/// Sets how long the model stays loaded. A model that is not loaded on demand ignores it.
fn keep(app: &AppState, name: &str, (keep_alive, record): (Option<KeepAlive>, &RequestRecord)) {
    if let Some(time) = keep_alive
        && !app.models.set_keep_alive(name, time)
    {
        record.add_ignored("keep_alive");
    }
}

/// A duration as this API writes it.
fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The name of a model without the tag that this API's clients add.
fn model_name(app: &AppState, asked: Option<String>) -> Option<String> {
    let asked = asked?;
    let is_served = app
        .models
        .listed_models()
        .iter()
        .any(|model| model.name == asked);
    match asked.strip_suffix(":latest") {
        Some(name) if !is_served => Some(name.to_string()),
        _ => Some(asked),
    }
}

/// The model that a request selects.
enum OllamaSelection {
    /// The model, and the time that loading took.
    Model(SelectedLanguage, Duration),
    /// The response of a request that only unloads it.
    Unloaded(Response),
}

async fn select(
    app: &AppState,
    (fields, form): (&mut JsonFields, OllamaForm),
    record: &RequestRecord,
) -> Result<OllamaSelection, ApiError> {
    take_terms(fields, record)?;
    let keep_alive = take_keep_alive(fields)?;
    let asked = model_name(app, fields.text("model")?);
    let inputs = ["messages", "prompt", "suffix", "images"];
    if keep_alive == Some(KeepAlive::For(Duration::ZERO))
        && inputs.iter().all(|name| fields.is_blank(name))
        && let Some(name) = &asked
        && app.models.unload(name).await.is_ok()
    {
        record.set_model(Some(name), name);
        let response = renderer::without_text(name, form, "unload");
        return Ok(OllamaSelection::Unloaded(json_response(&response)));
    }
    let began = Instant::now();
    let selected = app.in_time(record, app.models.language(asked.as_deref()));
    let selected = selected.await?;
    record.set_model(asked.as_deref(), &selected.name);
    keep(app, &selected.name, (keep_alive, record));
    Ok(OllamaSelection::Model(selected, began.elapsed()))
}

/// `POST /api/chat`
pub(crate) async fn chat(
    State(app): State<Arc<AppState>>,
    Extension(record): Extension<Arc<RequestRecord>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, OllamaError> {
    let began = Instant::now();
    let body = read_body(&app, &headers, body).await?;
    let mut fields = JsonFields::parse(&body)?;
    let selection = select(&app, (&mut fields, OllamaForm::Chat), &record);
    let (selected, load_time) = match selection.await? {
        OllamaSelection::Model(selected, load_time) => (selected, load_time),
        OllamaSelection::Unloaded(response) => return Ok(response),
    };
    let Some(request) = request::chat(fields, &selected.model, &record)? else {
        return Ok(json_response(&renderer::without_text(
            &selected.name,
            OllamaForm::Chat,
            "load",
        )));
    };
    let request = request.decoded().await?;
    let prepared = request.prepare(&selected.model)?;
    let of = (&selected.model, selected.adapter);
    let answers = prepared.start(&app, of, &record).await?;
    let prompt = prepared.prompt.len();
    let logprobs = prepared.params.top_logprobs.is_some();
    let times = (began, load_time);
    let renderer = OllamaRenderer::new(&selected.name, OllamaForm::Chat, (prompt, logprobs), times);
    respond(answers, renderer, prepared.params.stream).await
}

/// `POST /api/generate`
pub(crate) async fn generate(
    State(app): State<Arc<AppState>>,
    Extension(record): Extension<Arc<RequestRecord>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, OllamaError> {
    let began = Instant::now();
    let body = read_body(&app, &headers, body).await?;
    let mut fields = JsonFields::parse(&body)?;
    let selection = select(&app, (&mut fields, OllamaForm::Generate), &record);
    let (selected, load_time) = match selection.await? {
        OllamaSelection::Model(selected, load_time) => (selected, load_time),
        OllamaSelection::Unloaded(response) => return Ok(response),
    };
    let language = &selected.model;
    let of = (language, selected.adapter);
    let (answers, prompt, params) = match request::generate(fields, language, &record)? {
        request::GenerateInput::Nothing => {
            return Ok(json_response(&renderer::without_text(
                &selected.name,
                OllamaForm::Generate,
                "load",
            )));
        }
        request::GenerateInput::Conversation(request) => {
            let request = request.decoded().await?;
            let prepared = request.prepare(language)?;
            let answers = prepared.start(&app, of, &record).await?;
            (answers, prepared.prompt.len(), prepared.params)
        }
        request::GenerateInput::Tokens(prompt, params) => {
            record.set_prompt_tokens(prompt.len());
            let room = language.context.saturating_sub(prompt.len());
            let requests = params.requests(&prompt, room);
            let responses = language
                .start(requests, selected.adapter, app.ticket(&record))
                .await?;
            (
                AnswerStream::new(responses, (1, None), (language, &record)),
                prompt.len(),
                *params,
            )
        }
    };
    let shown = (prompt, params.top_logprobs.is_some());
    let renderer = OllamaRenderer::new(
        &selected.name,
        OllamaForm::Generate,
        shown,
        (began, load_time),
    );
    respond(answers, renderer, params.stream).await
}

async fn respond(
    mut answers: AnswerStream,
    renderer: OllamaRenderer,
    streams: bool,
) -> Result<Response, OllamaError> {
    match streams {
        true => Ok(stream_response(answers, renderer).await?),
        false => {
            let answer = answers.collect_one().await?;
            Ok(json_response(&renderer.whole(answer)))
        }
    }
}
