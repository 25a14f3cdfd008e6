//! Serves a folder over HTTP on this machine, and receives the results that a page posts.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Component, Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::error::XtaskError;

/// Maximum length of a request line, and maximum number of lines.
const MAX_LINE_BYTES: u64 = 8 << 10;
const MAX_LINES: usize = 100;
/// Maximum length of a page's result.
const MAX_RESULT_BYTES: u64 = 64 << 20;

/// A server that runs until the process ends.
pub(crate) struct PageServer {
    port: u16,
    shared: Arc<PageServerState>,
    results: Receiver<String>,
    thread: JoinHandle<()>,
}

struct PageServerState {
    folder: PathBuf,
    /// The contents of `cases.json`, if there is such a file.
    cases: Mutex<Option<String>>,
    results: Sender<String>,
}

impl PageServer {
    /// Starts a server for a folder; port 0 selects a free port.
    pub(crate) fn start(folder: &Path, port: u16) -> Result<PageServer, XtaskError> {
        let listen = || {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
            Ok((listener.local_addr()?.port(), listener))
        };
        let (port, listener) = listen().map_err(|source| XtaskError::Listen { port, source })?;
        let (sender, results) = channel();
        let shared = Arc::new(PageServerState {
            folder: folder.to_path_buf(),
            cases: Mutex::new(None),
            results: sender,
        });
        let own = Arc::clone(&shared);
        let thread = thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&own);
                // Ignore errors: the browser may close the connection.
                thread::spawn(move || drop(shared.answer(stream)));
            }
        });
        Ok(PageServer {
            port,
            shared,
            results,
            thread,
        })
    }

    /// Sets the contents of `cases.json`.
    pub(crate) fn with_cases(self, cases: String) -> PageServer {
        let mut own = self
            .shared
            .cases
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *own = Some(cases);
        drop(own);
        self
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// The body that a page posts to `result`; `None` after `patience`.
    pub(crate) fn result(&self, patience: Duration) -> Option<String> {
        self.results.recv_timeout(patience).ok()
    }

    /// Serves until the process is interrupted.
    pub(crate) fn wait(self) -> Result<(), XtaskError> {
        let port = self.port;
        self.thread.join().map_err(|_| XtaskError::Listen {
            port,
            source: io::Error::other("the server ended"),
        })
    }
}

impl PageServerState {
    fn answer(&self, stream: TcpStream) -> io::Result<()> {
        let mut reader = BufReader::new(&stream);
        let first = line(&mut reader)?;
        let mut words = first.split(' ');
        let (method, path) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        let path = path.split('?').next().unwrap_or("");
        let mut body_bytes = 0;
        for _ in 0..MAX_LINES {
            let header = line(&mut reader)?;
            if header.is_empty() {
                break;
            }
            if let Some((name, value)) = header.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                body_bytes = value.trim().parse().unwrap_or(0);
            }
        }
        match (method, path) {
            ("POST", "/result") if body_bytes <= MAX_RESULT_BYTES => {
                let mut body = String::new();
                reader.take(body_bytes).read_to_string(&mut body)?;
                // Ignore errors: the receiver may be gone.
                let _ = self.results.send(body);
                respond(&stream, "204 No Content", "text/plain", 0, &mut io::empty())
            }
            ("GET", "/cases.json") => {
                let cases = self.cases.lock().unwrap_or_else(PoisonError::into_inner);
                match &*cases {
                    Some(cases) => {
                        let bytes = cases.len() as u64;
                        let kind = "application/json";
                        respond(&stream, "200 OK", kind, bytes, &mut cases.as_bytes())
                    }
                    None => not_found(&stream),
                }
            }
            ("GET", path) => self.file(&stream, path),
            _ => respond(
                &stream,
                "405 Method Not Allowed",
                "text/plain",
                0,
                &mut io::empty(),
            ),
        }
    }

    fn file(&self, stream: &TcpStream, path: &str) -> io::Result<()> {
        let path = Path::new(match path {
            "/" => "index.html",
            other => other.trim_start_matches('/'),
        });
        let mut parts = path.components();
        let inside = parts.all(|part| matches!(part, Component::Normal(_)));
        let file = self.folder.join(path);
        if !inside || !file.is_file() {
            return not_found(stream);
        }
        let kind = match path.extension().and_then(|e| e.to_str()) {
            Some("html") => "text/html",
            Some("js") => "text/javascript",
            Some("css") => "text/css",
            Some("json") => "application/json",
            Some("wasm") => "application/wasm",
            Some(_) | None => "application/octet-stream",
        };
        let mut file = File::open(file)?;
        let bytes = file.metadata()?.len();
        respond(stream, "200 OK", kind, bytes, &mut file)
    }
}

fn line(reader: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    reader.take(MAX_LINE_BYTES).read_line(&mut line)?;
    Ok(line.trim_end().to_string())
}

fn not_found(stream: &TcpStream) -> io::Result<()> {
    respond(stream, "404 Not Found", "text/plain", 0, &mut io::empty())
}

fn respond(
    mut stream: &TcpStream,
    status: &str,
    kind: &str,
    bytes: u64,
    body: &mut dyn Read,
) -> io::Result<()> {
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {bytes}\r\n\
         Cache-Control: no-store\r\nConnection: close\r\n\r\n"
    )?;
    io::copy(body, &mut stream)?;
    stream.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(port: u16, request: &str) -> io::Result<String> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.write_all(request.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    #[test]
    fn files_and_results() -> Result<(), Box<dyn std::error::Error>> {
        let folder = crate::process::root().join("examples/web/page");
        let server = PageServer::start(&folder, 0)?.with_cases("[1]".to_string());
        let get = |path: &str| ask(server.port(), &format!("GET {path} HTTP/1.1\r\n\r\n"));
        assert!(get("/?test")?.contains("<!doctype html>"));
        assert!(get("/page.js")?.contains("Content-Type: text/javascript"));
        assert!(get("/cases.json")?.ends_with("[1]"));
        for outside in ["/../src/lib.rs", "//etc/hosts", "/none", "/../page/page.js"] {
            assert!(get(outside)?.starts_with("HTTP/1.1 404"), "{outside}");
        }
        let post = "POST /result HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}";
        assert!(ask(server.port(), post)?.starts_with("HTTP/1.1 204"));
        assert_eq!(server.result(Duration::from_secs(5)).as_deref(), Some("{}"));
        Ok(())
    }
}
