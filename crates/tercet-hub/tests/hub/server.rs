//! A server that behaves as the hub does: lists of files, redirects of large files to a second
//! server, ranges, tokens, and the errors that happen.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use sha2::Digest;

/// The token that the server accepts.
pub(crate) const TOKEN: &str = "hf_good";

/// Who may read a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Public,
    /// With the token; without it, the answer is that of a missing repository.
    Private,
    /// The conditions are not accepted yet.
    Gated,
}

struct ServedFile {
    path: String,
    bytes: Vec<u8>,
    is_lfs: bool,
}

impl ServedFile {
    fn sha256(&self) -> String {
        hex(&sha2::Sha256::digest(&self.bytes))
    }

    fn git(&self) -> String {
        let header = format!("blob {}\0", self.bytes.len());
        hex(&sha1::Sha1::digest(
            [header.as_bytes(), &self.bytes].concat(),
        ))
    }
}

struct ServedRepo {
    commit: String,
    access: Access,
    files: Vec<ServedFile>,
}

/// What goes wrong. Counts go down with each request that they affect.
#[derive(Default)]
pub(crate) struct Faults {
    /// Requests to the hub that are refused with 429, and the header `Retry-After`.
    pub(crate) limited: usize,
    pub(crate) retry_after: Option<String>,
    /// Requests to the hub that fail with 503.
    pub(crate) unavailable: usize,
    /// Answers of the second server that end after some bytes.
    pub(crate) cuts: usize,
    pub(crate) cut_after: usize,
    /// Requests to the second server that fail because their address has expired.
    pub(crate) expired: usize,
    /// The second server changes a byte.
    pub(crate) lies: bool,
    /// The hub changes a byte of small files.
    pub(crate) lies_small: bool,
    /// The hub announces another digest than it lists.
    pub(crate) lies_in_headers: bool,
    /// Ranges are ignored.
    pub(crate) no_ranges: bool,
    /// The list of files has neither sizes nor digests, as on simple mirrors.
    pub(crate) bare_lists: bool,
    /// Size that the list gives for every large file.
    pub(crate) listed_size: Option<u64>,
    /// Time before each answer of the second server.
    pub(crate) delay: Duration,
}

/// A request that the servers have received.
#[derive(Clone, Debug)]
pub(crate) struct Logged {
    pub(crate) is_hub: bool,
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) token: Option<String>,
    /// Bytes of the body that were sent.
    pub(crate) sent: usize,
}

#[derive(Default)]
pub(crate) struct HubState {
    repos: BTreeMap<String, ServedRepo>,
    pub(crate) faults: Faults,
    pub(crate) log: Vec<Logged>,
    /// Open connections to both servers.
    connections: usize,
}

/// The running servers. Their threads end with the process.
pub(crate) struct LocalHub {
    pub(crate) endpoint: String,
    storage: String,
    state: Arc<Mutex<HubState>>,
}

struct Request {
    method: String,
    path: String,
    headers: BTreeMap<String, String>,
}

struct Reply {
    status: &'static str,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
    /// Bytes after which the connection is closed.
    cut: Option<usize>,
}

impl Reply {
    fn new(status: &'static str, headers: Vec<(&'static str, String)>, body: Vec<u8>) -> Reply {
        Reply {
            status,
            headers,
            body,
            cut: None,
        }
    }

    fn error(status: &'static str, code: &str, message: &str) -> Reply {
        let headers = vec![
            ("X-Error-Code", code.to_string()),
            ("X-Error-Message", message.to_string()),
        ];
        Reply::new(
            status,
            headers,
            format!("{{\"error\":\"{message}\"}}").into_bytes(),
        )
    }
}

impl LocalHub {
    pub(crate) fn start() -> LocalHub {
        let state = Arc::new(Mutex::new(HubState::default()));
        let listen = || TcpListener::bind("127.0.0.1:0").unwrap();
        let (hub, storage) = (listen(), listen());
        let address = |of: &TcpListener| format!("http://{}", of.local_addr().unwrap());
        let server = LocalHub {
            endpoint: address(&hub),
            storage: address(&storage),
            state: state.clone(),
        };
        for (listener, is_hub) in [(hub, true), (storage, false)] {
            let (state, storage) = (state.clone(), server.storage.clone());
            std::thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let (state, storage) = (state.clone(), storage.clone());
                    state.lock().unwrap().connections += 1;
                    std::thread::spawn(move || {
                        serve(stream, is_hub, &state, &storage);
                        state.lock().unwrap().connections -= 1;
                    });
                }
            });
        }
        server
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, HubState> {
        self.state.lock().unwrap()
    }

    /// Adds a repository or replaces it by a new commit.
    pub(crate) fn add(&self, repo: &str, files: &[(&str, &[u8])]) {
        let file = |(path, bytes): &(&str, &[u8])| ServedFile {
            path: path.to_string(),
            bytes: bytes.to_vec(),
            is_lfs: [".gguf", ".safetensors", ".onnx", ".onnx_data"]
                .iter()
                .any(|end| path.ends_with(end)),
        };
        let files: Vec<ServedFile> = files.iter().map(file).collect();
        let all: String = files
            .iter()
            .map(|file| file.path.clone() + &file.git())
            .collect();
        let served = ServedRepo {
            commit: hex(&sha1::Sha1::digest(all)),
            access: Access::Public,
            files,
        };
        self.state().repos.insert(repo.to_string(), served);
    }

    pub(crate) fn set_access(&self, repo: &str, access: Access) {
        self.state().repos.get_mut(repo).unwrap().access = access;
    }

    pub(crate) fn commit(&self, repo: &str) -> String {
        self.state().repos[repo].commit.clone()
    }

    /// The digest of a file, which is its name in the cache.
    pub(crate) fn digest(&self, repo: &str, path: &str) -> String {
        let state = self.state();
        let files = &state.repos[repo].files;
        let file = files.iter().find(|file| file.path == path).unwrap();
        if file.is_lfs {
            file.sha256()
        } else {
            file.git()
        }
    }

    /// Bytes that the second server has sent, and clears the log.
    pub(crate) fn sent(&self) -> usize {
        let log = std::mem::take(&mut self.state().log);
        log.iter()
            .filter(|logged| !logged.is_hub)
            .map(|logged| logged.sent)
            .sum()
    }

    /// Waits until no connection is open. Answers to a client that left count until then.
    #[allow(dead_code, reason = "tests of the command kill a client")]
    pub(crate) fn wait_for_clients_to_leave(&self) {
        let start = Instant::now();
        while self.state().connections > 0 {
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "a client stays connected"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn requests(&self) -> Vec<Logged> {
        std::mem::take(&mut self.state().log)
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn serve(stream: TcpStream, is_hub: bool, state: &Mutex<HubState>, storage: &str) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut stream = stream;
    while let Some(request) = read(&mut reader) {
        let reply = match is_hub {
            true => hub(&request, &mut state.lock().unwrap(), storage),
            false => {
                let delay = state.lock().unwrap().faults.delay;
                std::thread::sleep(delay);
                stored(&request, &mut state.lock().unwrap())
            }
        };
        let is_head = request.method == "HEAD";
        let mut head = format!("HTTP/1.1 {}\r\n", reply.status);
        for (name, value) in &reply.headers {
            head += &format!("{name}: {value}\r\n");
        }
        head += &format!("Content-Length: {}\r\n\r\n", reply.body.len());
        let end = reply.cut.unwrap_or(reply.body.len()).min(reply.body.len());
        let body = if is_head { &[][..] } else { &reply.body[..end] };
        let logged = Logged {
            is_hub,
            method: request.method,
            path: request.path,
            token: request.headers.get("authorization").cloned(),
            sent: body.len(),
        };
        state.lock().unwrap().log.push(logged);
        let sent = stream
            .write_all(head.as_bytes())
            .and_then(|()| stream.write_all(body));
        if sent.is_err() || reply.cut.is_some() {
            return;
        }
    }
}

fn read(reader: &mut BufReader<TcpStream>) -> Option<Request> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if reader.by_ref().take(1 << 16).read_line(&mut line).ok()? == 0 {
            return None;
        }
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_string()),
        }
    }
    let mut first = lines.first()?.split(' ');
    let header = |line: &String| {
        let (name, value) = line.split_once(':')?;
        Some((name.to_ascii_lowercase(), value.trim().to_string()))
    };
    Some(Request {
        method: first.next()?.to_string(),
        path: first.next()?.to_string(),
        headers: lines.iter().skip(1).filter_map(header).collect(),
    })
}

fn count_down(count: &mut usize) -> bool {
    let is_due = *count > 0;
    *count -= usize::from(is_due);
    is_due
}

fn hub(request: &Request, state: &mut HubState, storage: &str) -> Reply {
    if count_down(&mut state.faults.limited) {
        let mut reply = Reply::error("429 Too Many Requests", "", "slow down");
        let wait = state.faults.retry_after.clone();
        reply.headers.extend(wait.map(|wait| ("Retry-After", wait)));
        return reply;
    }
    if count_down(&mut state.faults.unavailable) {
        return Reply::error("503 Service Unavailable", "", "maintenance");
    }
    let authorization = request.headers.get("authorization");
    let is_known = authorization.is_some_and(|text| *text == format!("Bearer {TOKEN}"));
    if authorization.is_some() && !is_known {
        return Reply::error(
            "401 Unauthorized",
            "",
            "Invalid credentials in Authorization header",
        );
    }
    let path = request.path.split('?').next().unwrap();
    let (repo, rest) = match path.strip_prefix("/api/models/") {
        Some(rest) => rest.split_once("/revision/").unwrap_or((rest, "main")),
        None => path[1..].split_once("/resolve/").unwrap_or((path, "")),
    };
    let missing = match is_known {
        true => "404 Not Found",
        false => "401 Unauthorized",
    };
    let missing = || Reply::error(missing, "RepoNotFound", "Repository not found");
    let Some(served) = state.repos.get(repo) else {
        return missing();
    };
    if served.access == Access::Private && !is_known {
        return missing();
    }
    let (revision, file) = rest.split_once('/').unwrap_or((rest, ""));
    if revision != "main" && revision != served.commit {
        return Reply::error("404 Not Found", "RevisionNotFound", "Invalid rev id");
    }
    if path.starts_with("/api/") {
        return Reply::new(
            "200 OK",
            Vec::new(),
            list(served, &state.faults).into_bytes(),
        );
    }
    if served.access == Access::Gated {
        let status = if is_known {
            "403 Forbidden"
        } else {
            "401 Unauthorized"
        };
        return Reply::error(status, "GatedRepo", "Access to this model is restricted");
    }
    let file = file.replace("%20", " ");
    let Some(file) = served.files.iter().find(|own| own.path == file) else {
        return Reply::error("404 Not Found", "EntryNotFound", "Entry not found");
    };
    let commit = ("X-Repo-Commit", served.commit.clone());
    if file.is_lfs {
        let mut digest = file.sha256();
        if state.faults.lies_in_headers {
            digest = digest.chars().rev().collect();
        }
        let headers = vec![
            commit,
            ("X-Linked-Etag", format!("\"{digest}\"")),
            ("X-Linked-Size", file.bytes.len().to_string()),
            ("ETag", "\"not-the-digest\"".to_string()),
            (
                "Location",
                format!(
                    "{storage}/{repo}/{}?signature=1",
                    file.path.replace(' ', "%20")
                ),
            ),
        ];
        return Reply::new("302 Found", headers, b"Found".to_vec());
    }
    let mut body = file.bytes.clone();
    if state.faults.lies_small && !body.is_empty() {
        body[0] ^= 1;
    }
    let headers = vec![commit, ("ETag", format!("\"{}\"", file.git()))];
    ranged(request, headers, body, state.faults.no_ranges)
}

fn list(served: &ServedRepo, faults: &Faults) -> String {
    let file = |file: &ServedFile| {
        let path = &file.path;
        let size = match faults.listed_size {
            Some(size) if file.is_lfs => size,
            _ => file.bytes.len() as u64,
        };
        let (git, sha) = (file.git(), file.sha256());
        match (faults.bare_lists, file.is_lfs) {
            (true, _) => format!(r#"{{"rfilename":"{path}"}}"#),
            (_, false) => format!(r#"{{"rfilename":"{path}","size":{size},"blobId":"{git}"}}"#),
            (_, true) => format!(
                r#"{{"rfilename":"{path}","size":{size},"blobId":"{git}","lfs":{{"sha256":"{sha}","size":{size},"pointerSize":134}}}}"#
            ),
        }
    };
    let files: Vec<String> = served.files.iter().map(file).collect();
    let (commit, files) = (&served.commit, files.join(","));
    format!(r#"{{"id":"x","sha":"{commit}","siblings":[{files}]}}"#)
}

/// The server of large files.
fn stored(request: &Request, state: &mut HubState) -> Reply {
    if count_down(&mut state.faults.expired) {
        return Reply::new(
            "403 Forbidden",
            Vec::new(),
            b"<Error>expired</Error>".to_vec(),
        );
    }
    let path = request.path.split('?').next().unwrap()[1..].replace("%20", " ");
    let of = |(repo, served): (&String, &ServedRepo)| {
        let file = path.strip_prefix(&format!("{repo}/"))?;
        let file = served.files.iter().find(|own| own.path == file)?;
        Some(file.bytes.clone())
    };
    let Some(mut body) = state.repos.iter().find_map(of) else {
        return Reply::new("404 Not Found", Vec::new(), Vec::new());
    };
    if state.faults.lies {
        let middle = body.len() / 2;
        body[middle] ^= 1;
    }
    let mut reply = ranged(request, Vec::new(), body, state.faults.no_ranges);
    if count_down(&mut state.faults.cuts) {
        reply.cut = Some(state.faults.cut_after);
    }
    reply
}

fn ranged(
    request: &Request,
    mut headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
    no_ranges: bool,
) -> Reply {
    let range = request.headers.get("range").filter(|_| !no_ranges);
    let range = range.and_then(|range| range.strip_prefix("bytes=")?.split_once('-'));
    let Some((start, end)) = range else {
        return Reply::new("200 OK", headers, body);
    };
    let (start, end): (usize, usize) = (start.parse().unwrap(), end.parse().unwrap());
    if start >= body.len() {
        return Reply::new("416 Range Not Satisfiable", headers, Vec::new());
    }
    let end = end.min(body.len() - 1);
    headers.push((
        "Content-Range",
        format!("bytes {start}-{end}/{}", body.len()),
    ));
    Reply::new("206 Partial Content", headers, body[start..=end].to_vec())
}
