//! An MCP server that is a child process: each line of its input and output is a message.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::client::McpTransport;
use crate::interrupt;

/// Maximum time of a request.
const PATIENCE: Duration = Duration::from_secs(600);
/// Time between two looks at Ctrl-C.
const POLL: Duration = Duration::from_millis(50);
/// Time after which a server whose input has ended is killed.
const GRACE: Duration = Duration::from_secs(2);
/// Maximum bytes of a message.
const MAX_MESSAGE_BYTES: u64 = 32 << 20;

/// A server process, which ends on drop.
pub(super) struct StdioTransport {
    child: Child,
    /// `None` when the server is to end.
    input: Option<ChildStdin>,
    messages: Receiver<Result<Value, String>>,
}

impl StdioTransport {
    /// Starts the process of a command line. Its standard error is that of this process.
    ///
    /// # Errors
    /// A text that says why it cannot be started.
    pub(super) fn start(line: &str) -> Result<StdioTransport, String> {
        let words = split_words(line)?;
        let Some((program, args)) = words.split_first() else {
            return Err("is an empty command".into());
        };
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::piped());
        command.stdout(Stdio::piped());
        let child = command.spawn();
        let mut child = child.map_err(|e| format!("cannot be started: {e}"))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("has no standard input and output".into());
        };
        let (send, messages) = sync_channel(64);
        let read = move || {
            let mut output = BufReader::new(output);
            loop {
                let message = next_message(&mut output);
                let is_last = message.as_ref().is_none_or(Result::is_err);
                if let Some(message) = message
                    && send.send(message).is_err()
                {
                    return;
                }
                if is_last {
                    return;
                }
            }
        };
        let reader = std::thread::Builder::new().name("tercet-mcp".into());
        let started = reader.spawn(read);
        started.map_err(|e| format!("cannot be read: {e}"))?;
        Ok(StdioTransport {
            child,
            input: Some(input),
            messages,
        })
    }

    fn send(&mut self, message: &Value) -> Result<(), String> {
        let Some(input) = &mut self.input else {
            return Err("has ended".into());
        };
        let sent = writeln!(input, "{message}").and_then(|()| input.flush());
        sent.map_err(|e| match e.kind() {
            std::io::ErrorKind::BrokenPipe => "has ended".to_string(),
            _ => format!("does not read: {e}"),
        })
    }
}

/// The next message of a server; `None` at the end.
fn next_message(output: &mut impl BufRead) -> Option<Result<Value, String>> {
    loop {
        let mut line = Vec::new();
        let read = output.take(MAX_MESSAGE_BYTES).read_until(b'\n', &mut line);
        match read {
            Ok(0) => return None,
            Ok(_) if line.trim_ascii().is_empty() => {}
            Ok(n) if n as u64 == MAX_MESSAGE_BYTES => {
                return Some(Err(format!("sent a line above {MAX_MESSAGE_BYTES} bytes")));
            }
            Ok(_) => {
                let message = serde_json::from_slice(&line);
                return Some(message.map_err(|e| format!("sent a line that is no JSON: {e}")));
            }
            Err(e) => return Some(Err(format!("cannot be read: {e}"))),
        }
    }
}

impl McpTransport for StdioTransport {
    fn request(&mut self, message: &Value) -> Result<Value, String> {
        self.send(message)?;
        let until = Instant::now() + PATIENCE;
        loop {
            let next = match self.messages.recv_timeout(POLL) {
                Ok(next) => next?,
                Err(RecvTimeoutError::Disconnected) => return Err("has ended".into()),
                Err(RecvTimeoutError::Timeout) if interrupt::interrupted() => {
                    let params = json!({"requestId": message["id"], "reason": "interrupted"});
                    self.notify(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}))?;
                    return Err("was interrupted".into());
                }
                Err(RecvTimeoutError::Timeout) if Instant::now() < until => continue,
                Err(RecvTimeoutError::Timeout) => {
                    return Err(format!("did not answer within {} s", PATIENCE.as_secs()));
                }
            };
            if next.get("method").is_none() && next.get("id") == message.get("id") {
                return Ok(next);
            }
            // The server may ask this client, which can do nothing but answer.
            if let (Some(method), Some(id)) = (next.get("method"), next.get("id")) {
                let answer = match method.as_str() {
                    Some("ping") => json!({"jsonrpc": "2.0", "id": id, "result": {}}),
                    _ => {
                        let error = json!({"code": -32601, "message": "unknown method"});
                        json!({"jsonrpc": "2.0", "id": id, "error": error})
                    }
                };
                self.send(&answer)?;
            }
        }
    }

    fn notify(&mut self, message: &Value) -> Result<(), String> {
        self.send(message)
    }
}

impl Drop for StdioTransport {
    /// Ends the input, waits shortly, and kills the process if it goes on.
    fn drop(&mut self) {
        drop(self.input.take());
        let until = Instant::now() + GRACE;
        while Instant::now() < until {
            if matches!(self.child.try_wait(), Ok(Some(_)) | Err(_)) {
                return;
            }
            std::thread::sleep(POLL);
        }
        // The process may have ended meanwhile.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The words of a command line. Quotes keep spaces; a backslash before a space or a quote keeps it.
pub fn split_words(line: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        match (c, quote) {
            ('\\', None) => {
                let kept = chars.next_if(|next| next.is_whitespace() || "'\"\\".contains(*next));
                word.get_or_insert_default().push(kept.unwrap_or('\\'));
            }
            ('"' | '\'', None) => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (c, Some(open)) if c == open => quote = None,
            (c, None) if c.is_whitespace() => words.extend(word.take()),
            (c, _) => word.get_or_insert_default().push(c),
        }
    }
    match quote {
        Some(open) => Err(format!("is a command with an open quote {open}")),
        None => {
            words.extend(word);
            Ok(words)
        }
    }
}
