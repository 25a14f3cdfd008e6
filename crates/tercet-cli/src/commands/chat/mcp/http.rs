//! An MCP server with a URL: Streamable HTTP.

use std::io::{BufRead, BufReader};
use std::time::Duration;

use serde_json::Value;

use super::client::McpTransport;

/// Maximum time of a request.
const PATIENCE: Duration = Duration::from_secs(600);
/// Maximum bytes of an answer.
const MAX_ANSWER_BYTES: u64 = 32 << 20;
const SESSION: &str = "mcp-session-id";
const VERSION: &str = "mcp-protocol-version";

/// A connection to a server.
pub(super) struct HttpTransport {
    agent: ureq::Agent,
    url: String,
    key: Option<String>,
    session: Option<String>,
    version: Option<String>,
}

impl HttpTransport {
    pub(super) fn new(url: &str, key: Option<&str>) -> HttpTransport {
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(PATIENCE))
            // A key must not go to another server.
            .max_redirects(0)
            .http_status_as_error(false);
        HttpTransport {
            agent: config.build().into(),
            url: url.to_string(),
            key: key.map(str::to_string),
            session: None,
            version: None,
        }
    }

    fn post(&mut self, message: &Value) -> Result<ureq::http::Response<ureq::Body>, String> {
        let mut request = self
            .agent
            .post(&self.url)
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream");
        let bearer = self.key.as_ref().map(|key| format!("Bearer {key}"));
        for (name, value) in [
            ("authorization", &bearer),
            (SESSION, &self.session),
            (VERSION, &self.version),
        ] {
            if let Some(value) = value {
                request = request.header(name, value);
            }
        }
        let response = request.send(message.to_string());
        let response = response.map_err(|e| format!("does not answer: {e}"))?;
        let session = response.headers().get(SESSION);
        if let Some(session) = session.and_then(|value| value.to_str().ok()) {
            self.session = Some(session.to_string());
        }
        Ok(response)
    }
}

impl McpTransport for HttpTransport {
    fn request(&mut self, message: &Value) -> Result<Value, String> {
        let response = self.post(message)?;
        let status = response.status().as_u16();
        let kind = response.headers().get("content-type");
        let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let is_stream = kind.starts_with("text/event-stream");
        let mut body = response.into_body();
        let reader = body.with_config().limit(MAX_ANSWER_BYTES).reader();
        if is_stream && status < 400 {
            return event(BufReader::new(reader), message);
        }
        let answer: Result<Value, _> = serde_json::from_reader(reader);
        match answer {
            Ok(answer) if answer.get("jsonrpc").is_some() => Ok(answer),
            _ if status >= 400 => Err(format!("answered with the status {status}")),
            Ok(_) => Err("answered with another document".into()),
            Err(e) => Err(format!("answered with no JSON: {e}")),
        }
    }

    fn notify(&mut self, message: &Value) -> Result<(), String> {
        let status = self.post(message)?.status().as_u16();
        match status < 400 {
            true => Ok(()),
            false => Err(format!("answered with the status {status}")),
        }
    }

    fn set_version(&mut self, version: &str) {
        self.version = Some(version.to_string());
    }
}

/// The answer to a request among the events of a stream.
pub fn event(stream: impl BufRead, request: &Value) -> Result<Value, String> {
    let mut data = String::new();
    for line in stream.lines() {
        let line = line.map_err(|e| format!("cannot be read: {e}"))?;
        if let Some(part) = line.strip_prefix("data:") {
            if !data.is_empty() {
                data.push('\n');
            }
            data += part.strip_prefix(' ').unwrap_or(part);
            continue;
        }
        if !line.is_empty() {
            continue;
        }
        let message: Option<Value> = serde_json::from_str(&data).ok();
        data.clear();
        let is_answer = |message: &Value| {
            message.get("method").is_none() && message.get("id") == request.get("id")
        };
        if let Some(message) = message.filter(is_answer) {
            return Ok(message);
        }
    }
    Err("ended the stream without an answer".into())
}
