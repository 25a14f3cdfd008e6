//! Anthropic's Messages API: `POST /v1/messages` and `POST /v1/messages/count_tokens`.
//! <https://docs.anthropic.com/en/api/messages>

mod blocks;
mod renderer;
mod request;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use self::renderer::MessageRenderer;
use crate::answer_stream::stream_response;
use crate::conversation::select_language;
use crate::encoder::off_the_event_loop;
use crate::error::{ApiError, json_response};
use crate::fields::JsonFields;
use crate::http::AppState;
use crate::request_log::RequestRecord;

/// An error in the form of this API.
pub(crate) struct AnthropicError(pub(crate) ApiError);

impl From<ApiError> for AnthropicError {
    fn from(error: ApiError) -> AnthropicError {
        AnthropicError(error)
    }
}

impl AnthropicError {
    fn body(error: &ApiError) -> Value {
        let kind = match error.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
            StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
            StatusCode::GATEWAY_TIMEOUT => "timeout_error",
            status if status.is_client_error() => "invalid_request_error",
            _ => "api_error",
        };
        json!({"type": "error", "error": {"type": kind, "message": error.message}})
    }
}

impl IntoResponse for AnthropicError {
    fn into_response(self) -> Response {
        self.0.with(&AnthropicError::body(&self.0))
    }
}

/// `POST /v1/messages`
pub(crate) async fn messages(
    State(app): State<Arc<AppState>>,
    Extension(record): Extension<Arc<RequestRecord>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, AnthropicError> {
    let body = app.body(&headers, body, &["application/json"]).await?;
    let mut fields = JsonFields::parse(&body)?;
    let selected = select_language(&app, &mut fields, &record).await?;
    let request = request::parse(fields, &selected.model, &record)?;
    let request = request.decoded().await?;
    let prepared = request.prepare(&selected.model)?;
    let renderer = MessageRenderer::new(&selected.name, prepared.prompt.len());
    let of = (&selected.model, selected.adapter);
    let mut answers = prepared.start(&app, of, &record).await?;
    match prepared.params.stream {
        true => Ok(stream_response(answers, renderer).await?),
        false => {
            let answer = answers.collect_one().await?;
            Ok(json_response(&renderer.whole(answer)))
        }
    }
}

/// `POST /v1/messages/count_tokens`
pub(crate) async fn count_tokens(
    State(app): State<Arc<AppState>>,
    Extension(record): Extension<Arc<RequestRecord>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, AnthropicError> {
    let body = app.body(&headers, body, &["application/json"]).await?;
    let mut fields = JsonFields::parse(&body)?;
    let language = select_language(&app, &mut fields, &record).await?.model;
    let request = request::parse(fields, &language, &record)?;
    let request = request.decoded().await?;
    let rendered = request.render(&language)?;
    let bytes = rendered.text.len();
    let encode = move || request.tokens(&rendered, &language);
    let tokens = off_the_event_loop(bytes, encode).await??;
    record.set_prompt_tokens(tokens.len());
    Ok(json_response(&json!({"input_tokens": tokens.len()})))
}
