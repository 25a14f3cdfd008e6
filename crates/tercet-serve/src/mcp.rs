//! The server as an MCP server, whose tools generate, embed, search and transcribe: Streamable HTTP at `/mcp`, and
//! lines on a pair of streams. <https://modelcontextprotocol.io/specification>
//!
//! Requests are independent of each other, so there are no sessions, and each answer is a JSON document.

mod stdio;
mod tools;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::error::{ApiError, json_response};
use crate::fields::check_containers;
use crate::http::AppState;
use crate::request_log::RequestRecord;

pub use self::stdio::serve_mcp;

/// Versions of the protocol that begin with `initialize`, from old to new.
const VERSIONS: [&str; 4] = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"];
const VERSION_HEADER: HeaderName = HeaderName::from_static("mcp-protocol-version");

/// Codes of JSON-RPC errors.
const PARSE_ERROR: i32 = -32700;
const INVALID_REQUEST: i32 = -32600;
const METHOD_NOT_FOUND: i32 = -32601;
const INVALID_PARAMS: i32 = -32602;

/// An error of JSON-RPC.
struct RpcError {
    code: i32,
    message: String,
}

impl RpcError {
    fn new(code: i32, message: impl Into<String>) -> RpcError {
        RpcError {
            code,
            message: message.into(),
        }
    }

    /// The answer to the request `id`.
    fn answer(self, id: Value) -> Value {
        let RpcError { code, message } = self;
        json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}})
    }
}

/// A message of a client.
enum RpcMessage {
    Request {
        id: Value,
        method: String,
        params: Value,
    },
    /// A notification or a response, which has no answer. The value is the id of a request that the client
    /// cancels.
    Other { cancelled: Option<Value> },
}

impl RpcMessage {
    /// Parses a message.
    ///
    /// # Errors
    /// The answer to a message that is none.
    fn parse(text: &[u8]) -> Result<RpcMessage, Value> {
        let refused = |code, message: String| Err(RpcError::new(code, message).answer(Value::Null));
        if let Err(e) = check_containers(text) {
            return refused(INVALID_REQUEST, e.message);
        }
        let mut message: Value = match serde_json::from_slice(text) {
            Ok(message) => message,
            Err(e) => return refused(PARSE_ERROR, format!("the message is no JSON: {e}")),
        };
        if message.get("jsonrpc").and_then(Value::as_str) != Some("2.0") {
            let text = "expected a JSON-RPC 2.0 message; batches are not supported";
            return refused(INVALID_REQUEST, text.to_string());
        }
        let params = message.get_mut("params").map(Value::take);
        let params = params.unwrap_or_default();
        let method = message.get("method").and_then(Value::as_str);
        let id = message.get("id").filter(|id| !id.is_null());
        match (method, id) {
            (Some(method), Some(id)) if id.is_string() || id.is_number() => {
                Ok(RpcMessage::Request {
                    id: id.clone(),
                    method: method.to_string(),
                    params,
                })
            }
            (Some(_), Some(_)) => refused(
                INVALID_REQUEST,
                "the id of a request must be a text or a number".into(),
            ),
            (Some(method), None) => {
                let cancelled = params.get("requestId").cloned();
                let cancelled = cancelled.filter(|_| method == "notifications/cancelled");
                Ok(RpcMessage::Other { cancelled })
            }
            (None, _) => Ok(RpcMessage::Other { cancelled: None }),
        }
    }
}

/// Answers a request.
async fn answer(
    app: &Arc<AppState>,
    record: &Arc<RequestRecord>,
    (id, method, params): (Value, &str, Value),
) -> Value {
    let done = match method {
        "initialize" => Ok(initialized(&params)),
        "ping" => Ok(json!({})),
        "tools/list" => Ok(json!({"tools": tools::listed(app)})),
        "tools/call" => tools::call(app, record, params).await,
        _ => {
            let text = format!("unknown method `{method}`");
            Err(RpcError::new(METHOD_NOT_FOUND, text))
        }
    };
    match done {
        Ok(result) => json!({"jsonrpc": "2.0", "id": id, "result": result}),
        Err(e) => e.answer(id),
    }
}

/// The answer to `initialize`: the client's version if it is known, or else the newest one.
fn initialized(params: &Value) -> Value {
    let asked = params.get("protocolVersion").and_then(Value::as_str);
    let known = VERSIONS.iter().find(|version| Some(**version) == asked);
    json!({
        "protocolVersion": known.unwrap_or(&VERSIONS[VERSIONS.len() - 1]),
        "capabilities": {"tools": {"listChanged": false}},
        "serverInfo": {"name": "tercet", "title": "Tercet", "version": env!("CARGO_PKG_VERSION")},
        "instructions": "Tools that run the models of a local server: text generation, embeddings, search and transcription.",
    })
}

/// `POST /mcp`: a message.
pub(crate) async fn handle(
    State(app): State<Arc<AppState>>,
    Extension(record): Extension<Arc<RequestRecord>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    app.check_origin(&headers)?;
    let version = headers
        .get(VERSION_HEADER)
        .map(|v| v.to_str().unwrap_or(""));
    let body = app.body(&headers, body, &["application/json"]).await?;
    match RpcMessage::parse(&body) {
        Ok(RpcMessage::Request { id, method, params }) => {
            // A newer client asks for another version, which `initialize` negotiates.
            let is_known = version.is_none_or(|version| VERSIONS.contains(&version));
            if !is_known && method != "initialize" {
                let text = format!(
                    "unsupported version of the protocol in the header {VERSION_HEADER}; expected one of {}",
                    VERSIONS.join(", ")
                );
                let mut response = json_response(&RpcError::new(INVALID_REQUEST, text).answer(id));
                *response.status_mut() = StatusCode::BAD_REQUEST;
                return Ok(response);
            }
            let answer = answer(&app, &record, (id, &method, params)).await;
            Ok(json_response(&answer))
        }
        Ok(RpcMessage::Other { .. }) => Ok(StatusCode::ACCEPTED.into_response()),
        Err(refusal) => {
            let mut response = json_response(&refusal);
            *response.status_mut() = StatusCode::BAD_REQUEST;
            Ok(response)
        }
    }
}
