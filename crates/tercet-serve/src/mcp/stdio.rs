//! MCP on a pair of streams: each line is a message.

use std::collections::HashMap;
use std::io::{BufRead, Read, Write};
use std::sync::Arc;

use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};

use super::{INVALID_REQUEST, RpcError, RpcMessage, answer};
use crate::error::ServeError;
use crate::http::AppState;
use crate::models::ModelRegistry;
use crate::options::ServeOptions;
use crate::request_log::RequestRecord;

/// Serves the tools of the models to one client: reads messages from `input` until it ends, and writes answers to
/// `output`, each on its line.
///
/// ```
/// use tercet_serve::{ModelRegistry, ServeOptions, serve_mcp};
/// let input = r#"{"jsonrpc": "2.0", "id": 1, "method": "ping"}"#;
/// let mut output = Vec::new();
/// serve_mcp(ModelRegistry::new(), ServeOptions::default(), input.as_bytes(), &mut output)?;
/// assert_eq!(output, b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n");
/// # Ok::<(), tercet_serve::ServeError>(())
/// ```
///
/// # Errors
/// [`ServeError::Io`] if a stream fails or the system cannot create threads.
pub fn serve_mcp(
    models: ModelRegistry,
    options: ServeOptions,
    input: impl BufRead + Send + 'static,
    output: &mut dyn Write,
) -> Result<(), ServeError> {
    let failed = |source| ServeError::Io {
        what: "cannot serve MCP".into(),
        source,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let runtime = runtime.map_err(failed)?;
    let most = options.body_bytes;
    let app = Arc::new(AppState::new(models, options));
    let (send, lines) = mpsc::channel(1);
    // A blocked read cannot be interrupted, so it has a thread that is never joined.
    let reader = std::thread::Builder::new().name("tercet-mcp".into());
    let read = move || read_lines(input, most, &send);
    reader.spawn(read).map_err(failed)?;
    let sweep = app.models.sweep();
    let done = runtime.block_on(async {
        tokio::select! {
            done = serve_lines(&app, lines, output) => done,
            () = sweep => Ok(()),
        }
    });
    drop(app);
    runtime.shutdown_background();
    done.map_err(failed)
}

/// A line, or `None` if it is too long.
type LineRead = std::io::Result<Option<Vec<u8>>>;

fn read_lines(mut input: impl BufRead, most: usize, lines: &mpsc::Sender<LineRead>) {
    loop {
        let mut line = Vec::new();
        let limit = (most as u64).saturating_add(1);
        let read = input.by_ref().take(limit).read_until(b'\n', &mut line);
        let next = match read {
            Ok(0) => return,
            Ok(n) if n > most => {
                let rest = skip_line(&mut input, &line);
                rest.map(|()| None)
            }
            Ok(_) => Ok(Some(line)),
            Err(e) => Err(e),
        };
        let is_last = next.is_err();
        if lines.blocking_send(next).is_err() || is_last {
            return;
        }
    }
}

/// Reads to the end of a line that begins with `begun`.
fn skip_line(input: &mut impl BufRead, begun: &[u8]) -> std::io::Result<()> {
    if begun.ends_with(b"\n") {
        return Ok(());
    }
    loop {
        let buffer = input.fill_buf()?;
        let end = buffer.iter().position(|byte| *byte == b'\n');
        let (used, is_end) = match end {
            Some(at) => (at + 1, true),
            None => (buffer.len(), buffer.is_empty()),
        };
        input.consume(used);
        if is_end {
            return Ok(());
        }
    }
}

async fn serve_lines(
    app: &Arc<AppState>,
    mut lines: mpsc::Receiver<LineRead>,
    output: &mut dyn Write,
) -> std::io::Result<()> {
    let mut running: JoinSet<(String, Value)> = JoinSet::new();
    // Requests by the text of their id, so that the client can cancel them.
    let mut by_id: HashMap<String, AbortHandle> = HashMap::new();
    let mut is_open = true;
    while is_open || !running.is_empty() {
        tokio::select! {
            line = lines.recv(), if is_open => match line {
                None => is_open = false,
                Some(Err(e)) => return Err(e),
                Some(Ok(None)) => {
                    let text = format!("the message exceeds {} bytes", app.options.body_bytes);
                    write_line(output, &RpcError::new(INVALID_REQUEST, text).answer(Value::Null))?;
                }
                Some(Ok(Some(line))) if line.trim_ascii().is_empty() => {}
                Some(Ok(Some(line))) => match RpcMessage::parse(&line) {
                    Err(refusal) => write_line(output, &refusal)?,
                    Ok(RpcMessage::Other { cancelled }) => {
                        let handle = cancelled.and_then(|id| by_id.remove(&id.to_string()));
                        if let Some(handle) = handle {
                            handle.abort();
                        }
                    }
                    Ok(RpcMessage::Request { id, method, params }) => {
                        let (app, key) = (Arc::clone(app), id.to_string());
                        let own = key.clone();
                        let handle = running.spawn(async move {
                            let record = Arc::new(RequestRecord::default());
                            (own, answer(&app, &record, (id, &method, params)).await)
                        });
                        by_id.insert(key, handle);
                    }
                },
            },
            Some(done) = running.join_next() => {
                // A cancelled request has no answer.
                if let Ok((key, answer)) = done {
                    by_id.remove(&key);
                    write_line(output, &answer)?;
                }
            }
        }
    }
    Ok(())
}

fn write_line(output: &mut dyn Write, message: &Value) -> std::io::Result<()> {
    writeln!(output, "{message}")?;
    output.flush()
}
