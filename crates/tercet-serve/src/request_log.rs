//! The log of the server: one line for each request, written when its response ends.

use std::fmt::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};

use crate::request_terms::RequestTerms;

/// Maximum characters of a path, a model name or an error in a line.
const MAX_SHOWN: usize = 200;

/// Format of the lines of a [`RequestLog`].
///
/// ```
/// use tercet_serve::LogFormat;
/// assert_ne!(LogFormat::Text, LogFormat::Json);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Time, client, method, path, status and seconds, then `NAME=VALUE` pairs.
    Text,
    /// A JSON object.
    Json,
}

/// Receives a line for each request.
///
/// ```
/// use tercet_serve::{LogFormat, RequestLog, ServeOptions};
/// let log = RequestLog::new(LogFormat::Json, |line| eprintln!("{line}"));
/// let options = ServeOptions { log: Some(log), ..ServeOptions::default() };
/// assert_eq!(options.log.map(|log| log.format()), Some(LogFormat::Json));
/// ```
#[derive(Clone)]
pub struct RequestLog {
    format: LogFormat,
    sink: Arc<dyn Fn(&str) + Send + Sync>,
}

impl RequestLog {
    /// A log that calls `sink` with each line, without a line end. The calls come from the threads
    /// of the server, which wait for them.
    pub fn new(format: LogFormat, sink: impl Fn(&str) + Send + Sync + 'static) -> RequestLog {
        let sink = Arc::new(sink);
        RequestLog { format, sink }
    }

    /// Format of the lines.
    pub fn format(&self) -> LogFormat {
        self.format
    }
}

impl fmt::Debug for RequestLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("RequestLog");
        shown.field("format", &self.format).finish_non_exhaustive()
    }
}

/// Address of the client of a connection.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct ClientAddress(pub(crate) std::net::SocketAddr);

/// Code and message of an error response.
#[derive(Clone, Debug)]
pub(crate) struct LoggedError {
    pub(crate) code: &'static str,
    pub(crate) message: String,
}

/// Maximum number of ignored fields that a line names.
const MAX_IGNORED: usize = 64;

/// Facts about a request that its handler adds to the line.
#[doc(hidden)]
#[derive(Debug)]
pub struct RequestRecord {
    began: Instant,
    facts: Mutex<RecordedFacts>,
}

#[derive(Debug, Default)]
struct RecordedFacts {
    /// The id that the client gave the request.
    id: Option<String>,
    terms: RequestTerms,
    model: Option<String>,
    /// The name of the request, if the model has another one.
    asked_model: Option<String>,
    prompt_tokens: Option<usize>,
    generated_tokens: Option<usize>,
    cached_tokens: usize,
    ignored: Vec<String>,
    error: Option<LoggedError>,
    is_streaming: bool,
    is_stream_complete: bool,
}

impl Default for RequestRecord {
    /// The record of a request that begins now.
    fn default() -> RequestRecord {
        RequestRecord {
            began: Instant::now(),
            facts: Mutex::default(),
        }
    }
}

impl RequestRecord {
    fn lock(&self) -> MutexGuard<'_, RecordedFacts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_id(&self, id: &str) {
        self.lock().id = Some(id.to_string());
    }

    /// Time at which the request arrived.
    pub(crate) fn began(&self) -> Instant {
        self.began
    }

    /// Sets the index of the API key; `None` without keys.
    pub(crate) fn set_key(&self, index: Option<usize>) {
        self.lock().terms.order.key = index;
    }

    /// Sets the terms under which the request waits and runs.
    pub fn set_terms(&self, terms: RequestTerms) {
        self.lock().terms = terms;
    }

    /// The terms under which the request waits and runs.
    pub(crate) fn terms(&self) -> RequestTerms {
        self.lock().terms.clone()
    }

    /// Sets the model of the response; `asked` is its name in the request.
    pub fn set_model(&self, asked: Option<&str>, served: &str) {
        let mut facts = self.lock();
        facts.model = Some(served.to_string());
        facts.asked_model = asked.filter(|name| *name != served).map(str::to_string);
    }

    pub(crate) fn set_prompt_tokens(&self, tokens: usize) {
        self.lock().prompt_tokens = Some(tokens);
    }

    pub(crate) fn set_generated_tokens(&self, tokens: usize) {
        self.lock().generated_tokens = Some(tokens);
    }

    pub(crate) fn add_cached_tokens(&self, tokens: usize) {
        self.lock().cached_tokens += tokens;
    }

    /// Notes a field that was accepted and has no effect.
    pub fn add_ignored(&self, field: &str) {
        let mut facts = self.lock();
        let is_new = !facts.ignored.iter().any(|known| known == field);
        if is_new && facts.ignored.len() < MAX_IGNORED {
            facts.ignored.push(field.to_string());
        }
    }

    pub(crate) fn set_error(&self, error: LoggedError) {
        self.lock().error = Some(error);
    }

    /// Notes that the response is a stream. It was interrupted unless it is completed.
    pub(crate) fn begin_stream(&self) {
        self.lock().is_streaming = true;
    }

    pub(crate) fn complete_stream(&self) {
        self.lock().is_stream_complete = true;
    }

    pub(crate) fn is_streaming(&self) -> bool {
        self.lock().is_streaming
    }
}

/// Writes the line of one request when it is dropped: after its response, or when the client has
/// disconnected.
#[doc(hidden)]
pub struct RequestLogGuard {
    log: RequestLog,
    record: Arc<RequestRecord>,
    client: Option<ClientAddress>,
    method: String,
    path: String,
    began: Instant,
    /// Status, and the time until the response started.
    answered: Option<(u16, Duration)>,
}

impl RequestLogGuard {
    /// The guard of a request that begins now.
    pub fn new(
        log: RequestLog,
        record: Arc<RequestRecord>,
        client: Option<ClientAddress>,
        (method, path): (&str, &str),
    ) -> RequestLogGuard {
        RequestLogGuard {
            log,
            record,
            client,
            method: shown(method),
            path: shown(path),
            began: Instant::now(),
            answered: None,
        }
    }

    /// Sets the status of the response, which starts now.
    pub fn set_status(&mut self, status: u16) {
        self.answered = Some((status, self.began.elapsed()));
    }

    fn entries(&self) -> Map<String, Value> {
        let facts = self.record.lock();
        let mut entries = Map::new();
        let mut add = |name: &str, value: Value| {
            if !value.is_null() {
                entries.insert(name.to_string(), value);
            }
        };
        let seconds = |time: Duration| json!((time.as_secs_f64() * 1e4).round() / 1e4);
        add("time", json!(current_timestamp()));
        add(
            "client",
            json!(self.client.map(|client| client.0.to_string())),
        );
        add("method", json!(self.method));
        add("path", json!(self.path));
        add("status", json!(self.answered.map(|(status, _)| status)));
        add("seconds", seconds(self.began.elapsed()));
        if facts.is_streaming {
            let first = self.answered.map(|(_, first)| seconds(first));
            add("first_byte_seconds", json!(first));
        }
        add("request_id", json!(facts.id));
        add("model", json!(facts.model.as_deref().map(shown)));
        add(
            "asked_model",
            json!(facts.asked_model.as_deref().map(shown)),
        );
        add("prompt_tokens", json!(facts.prompt_tokens));
        add("generated_tokens", json!(facts.generated_tokens));
        if facts.cached_tokens > 0 {
            add("cached_tokens", json!(facts.cached_tokens));
        }
        if !facts.ignored.is_empty() {
            add("ignored", json!(facts.ignored));
        }
        if let Some(error) = &facts.error {
            add("error", json!(error.code));
            add("message", json!(shown(&error.message)));
        }
        let is_cut = facts.is_streaming && !facts.is_stream_complete;
        if self.answered.is_none() || is_cut {
            add("disconnected", json!(true));
        }
        entries
    }
}

impl Drop for RequestLogGuard {
    fn drop(&mut self) {
        let entries = self.entries();
        let line = match self.log.format {
            LogFormat::Json => Value::Object(entries).to_string(),
            LogFormat::Text => text_line(&entries),
        };
        (self.log.sink)(&line);
    }
}

/// The line of a request as text.
fn text_line(entries: &Map<String, Value>) -> String {
    const UNNAMED: [&str; 5] = ["time", "client", "method", "path", "status"];
    let mut line = String::new();
    for (name, value) in entries {
        let text = match value {
            Value::String(text) => quoted_if_needed(text),
            Value::Array(items) => {
                let items: Vec<&str> = items.iter().filter_map(Value::as_str).collect();
                quoted_if_needed(&items.join(","))
            }
            other => other.to_string(),
        };
        let space = if line.is_empty() { "" } else { " " };
        // Writing to a string does not fail.
        let _ = match name.as_str() {
            name if UNNAMED.contains(&name) => write!(line, "{space}{text}"),
            "seconds" => write!(line, "{space}{text}s"),
            name => write!(line, "{space}{name}={text}"),
        };
    }
    line
}

/// A text of a line: in quotes if it contains white space, quotes or nothing.
fn quoted_if_needed(text: &str) -> String {
    match text.is_empty() || text.contains(|c: char| c.is_whitespace() || c == '"') {
        true => Value::String(text.to_string()).to_string(),
        false => text.to_string(),
    }
}

/// The start of a text from a client, without characters that act on terminals.
fn shown(text: &str) -> String {
    let is_plain = |c: char| {
        !c.is_control()
            && !matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let chars = text.chars().take(MAX_SHOWN);
    let escaped = chars.flat_map(|c| match is_plain(c) {
        true => vec![c],
        false => c.escape_default().collect(),
    });
    escaped.collect()
}

/// The time now as in RFC 3339.
pub(crate) fn current_timestamp() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    timestamp(since.unwrap_or_default())
}

/// A time since 1970 as in RFC 3339, in UTC with milliseconds.
pub fn timestamp(since: Duration) -> String {
    let (days, seconds) = (since.as_secs() / 86400, since.as_secs() % 86400);
    // Eras of 400 years, in years that start in March (proleptic Gregorian calendar).
    let shifted = days + 719_468;
    let (era, day) = (shifted / 146_097, shifted % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let date = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    let (seconds, millis) = (seconds % 60, since.subsec_millis());
    format!("{year:04}-{month:02}-{date:02}T{hours:02}:{minutes:02}:{seconds:02}.{millis:03}Z")
}
