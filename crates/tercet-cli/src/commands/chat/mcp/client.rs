//! A client of an MCP server.

use serde_json::{Value, json};

#[cfg(any(feature = "hub", feature = "serve"))]
use super::http::HttpTransport;
use super::stdio::StdioTransport;
use crate::error::CliError;
use crate::output;

/// Newest version of the protocol that begins with `initialize`.
pub(super) const VERSION: &str = "2025-11-25";
/// Versions that the client understands.
const VERSIONS: [&str; 4] = ["2024-11-05", "2025-03-26", "2025-06-18", VERSION];
/// Maximum tools of a server; their descriptions are part of each prompt.
const MAX_TOOLS: usize = 128;
/// Maximum pages of a list of tools.
const MAX_PAGES: usize = 64;

/// A connection to a server.
pub(super) trait McpTransport {
    /// Sends a request and waits for its answer.
    ///
    /// # Errors
    /// A text that says why there is no answer.
    fn request(&mut self, message: &Value) -> Result<Value, String>;

    /// Sends a notification.
    ///
    /// # Errors
    /// A text that says why it was not sent.
    fn notify(&mut self, message: &Value) -> Result<(), String>;

    /// Sets the version of the protocol.
    fn set_version(&mut self, _version: &str) {}
}

/// A client of one server.
pub(super) struct McpClient {
    /// The server as the user names it.
    name: String,
    transport: Box<dyn McpTransport>,
    next_id: u64,
}

impl McpClient {
    /// Starts a command or opens a URL, and agrees on a version of the protocol.
    ///
    /// # Errors
    /// [`CliError::Mcp`] if the server does not answer as the protocol says.
    pub(super) fn open(server: &str, key: Option<&str>) -> Result<McpClient, CliError> {
        let transport = transport(server, key).map_err(|reason| failed(server, reason))?;
        let mut client = McpClient {
            name: server.to_string(),
            transport,
            next_id: 0,
        };
        let params = json!({
            "protocolVersion": VERSION, "capabilities": {},
            "clientInfo": {"name": "tercet", "version": env!("CARGO_PKG_VERSION")},
        });
        let result = client.request("initialize", params)?;
        let version = result.get("protocolVersion").and_then(Value::as_str);
        let version = version.unwrap_or_default();
        if !VERSIONS.contains(&version) {
            let known = VERSIONS.join(", ");
            let reason = format!("speaks version `{version}` of the protocol; expected {known}");
            return Err(failed(server, reason));
        }
        client.transport.set_version(version);
        let note = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        let sent = client.transport.notify(&note);
        sent.map_err(|reason| failed(server, reason))?;
        Ok(client)
    }

    /// Lists the tools.
    ///
    /// # Errors
    /// [`CliError::Mcp`] if the server has no list, or one of too many tools.
    pub(super) fn tools(&mut self) -> Result<Vec<Value>, CliError> {
        let mut all = Vec::new();
        let mut params = json!({});
        for _ in 0..MAX_PAGES {
            let mut page = self.request("tools/list", params)?;
            let Some(Value::Array(tools)) = page.get_mut("tools").map(Value::take) else {
                return Err(failed(&self.name, "returned no list of tools".into()));
            };
            all.extend(tools);
            if all.len() > MAX_TOOLS {
                let reason = format!("has more than {MAX_TOOLS} tools");
                return Err(failed(&self.name, reason));
            }
            match page.get("nextCursor") {
                Some(Value::String(cursor)) => params = json!({"cursor": cursor}),
                _ => return Ok(all),
            }
        }
        let reason = format!("has more than {MAX_PAGES} pages of tools");
        Err(failed(&self.name, reason))
    }

    /// Calls a tool and returns its result as text.
    ///
    /// # Errors
    /// [`CliError::Mcp`] if the call fails.
    pub(super) fn call(&mut self, tool: &str, arguments: Value) -> Result<String, CliError> {
        let params = json!({"name": tool, "arguments": arguments});
        let result = self.request("tools/call", params)?;
        let text = text_of(&result);
        match result.get("isError").and_then(Value::as_bool) {
            Some(true) => Err(failed(&self.name, format!("failed: {text}"))),
            _ => Ok(text),
        }
    }

    fn request(&mut self, method: &str, params: Value) -> Result<Value, CliError> {
        self.next_id += 1;
        let message =
            json!({"jsonrpc": "2.0", "id": self.next_id, "method": method, "params": params});
        let answer = self.transport.request(&message);
        let mut answer = answer.map_err(|reason| failed(&self.name, reason))?;
        if let Some(error) = answer.get("error") {
            let text = error.get("message").and_then(Value::as_str);
            let reason = format!("refused `{method}`: {}", text.unwrap_or_default());
            return Err(failed(&self.name, reason));
        }
        Ok(answer
            .get_mut("result")
            .map(Value::take)
            .unwrap_or_default())
    }
}

fn failed(server: &str, reason: String) -> CliError {
    CliError::Mcp {
        server: output::escape_line(server),
        reason: output::escape_line(&reason),
    }
}

/// The connection to a server: a URL, or a command line.
fn transport(server: &str, key: Option<&str>) -> Result<Box<dyn McpTransport>, String> {
    let is_url = server.starts_with("http://") || server.starts_with("https://");
    if !is_url {
        return Ok(Box::new(StdioTransport::start(server)?));
    }
    #[cfg(any(feature = "hub", feature = "serve"))]
    return Ok(Box::new(HttpTransport::new(server, key)));
    #[cfg(not(any(feature = "hub", feature = "serve")))]
    {
        let _ = key;
        Err("needs a build with the feature `hub` or `serve`".into())
    }
}

/// The content of a result as text.
pub fn text_of(result: &Value) -> String {
    let content = result.get("content").and_then(Value::as_array);
    let part = |part: &Value| match part.get("type").and_then(Value::as_str) {
        Some("text") => part.get("text").and_then(Value::as_str).map(str::to_string),
        Some("resource") => {
            let text = part.pointer("/resource/text").and_then(Value::as_str);
            text.map(str::to_string)
        }
        Some(other) => Some(format!("[{other}]")),
        None => None,
    };
    let texts: Vec<String> = content.into_iter().flatten().filter_map(part).collect();
    match (texts.is_empty(), result.get("structuredContent")) {
        (true, Some(structured)) => structured.to_string(),
        _ => texts.join("\n"),
    }
}
