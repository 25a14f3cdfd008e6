//! Requests to the hub: redirects, repeated attempts, and the errors behind status codes.

use std::io::Read;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ureq::http::{HeaderMap, Response};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body};

use crate::error::HubError;
use crate::listing::{FileDigest, RepoFile, RepoListing};
use crate::name::HubName;
use crate::progress::{PullEvent, PullProgress};
use crate::settings::HubSettings;

/// Maximum number of redirects of one request.
const MAX_REDIRECTS: usize = 8;
/// Maximum size of a list of files, in bytes.
const MAX_LISTING_BYTES: u64 = 32 << 20;
/// Maximum size of the message of a failed request, in bytes.
const MAX_MESSAGE_BYTES: u64 = 4096;
/// Time to wait before the first repeated attempt; it doubles with each.
const FIRST_WAIT: Duration = Duration::from_millis(200);
const MAX_BACKOFF: Duration = Duration::from_secs(10);
const CONNECT: Duration = Duration::from_secs(15);

/// A failed attempt.
pub(crate) struct Failure {
    pub(crate) error: HubError,
    /// Whether another attempt may succeed.
    pub(crate) is_transient: bool,
    /// The time that the server asks to wait.
    pub(crate) wait: Option<Duration>,
}

impl From<HubError> for Failure {
    fn from(error: HubError) -> Failure {
        Failure {
            error,
            is_transient: false,
            wait: None,
        }
    }
}

/// The answer to a request after its redirects.
pub(crate) struct Answer {
    /// Address of the server that answered.
    pub(crate) url: String,
    pub(crate) response: Response<Body>,
    /// Digest and size that the hub announces.
    pub(crate) digest: Option<FileDigest>,
    pub(crate) bytes: Option<u64>,
}

/// What a request asks for.
#[derive(Clone, Copy)]
pub(crate) enum Ask {
    Headers,
    Whole,
    /// Bytes from the first number to the second, which is not included.
    Range(u64, u64),
}

/// A client of one hub.
pub(crate) struct HubClient {
    agent: Agent,
    pub(crate) settings: HubSettings,
}

impl HubClient {
    pub(crate) fn new(settings: HubSettings) -> Result<HubClient, HubError> {
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("tercet/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(CONNECT))
            .timeout_recv_response(Some(settings.stall))
            .timeout_per_read(Some(settings.stall))
            .max_idle_connections_per_host(settings.connections.max(1));
        if let Some(path) = &settings.root_certificates {
            let bad = |reason: String| HubError::BadSetting {
                variable: "SSL_CERT_FILE",
                value: path.display().to_string(),
                reason,
            };
            let pem = std::fs::read(path).map_err(|e| bad(e.to_string()))?;
            let certificates: Vec<Certificate<'static>> = parse_pem(&pem)
                .filter_map(|item| match item {
                    Ok(PemItem::Certificate(certificate)) => Some(certificate),
                    _ => None,
                })
                .collect();
            if certificates.is_empty() {
                return Err(bad("it has no certificate in PEM".to_string()));
            }
            let roots = RootCerts::Specific(Arc::new(certificates));
            config = config.tls_config(TlsConfig::builder().root_certs(roots).build());
        }
        Ok(HubClient {
            agent: config.build().new_agent(),
            settings,
        })
    }

    /// Address of a file of a commit.
    pub(crate) fn file_url(&self, listing: &RepoListing, path: &str) -> String {
        let (endpoint, repo, commit) = (&self.settings.endpoint, &listing.repo, &listing.commit);
        format!("{endpoint}/{repo}/resolve/{commit}/{}", encoded(path))
    }

    /// The files of a repository.
    pub(crate) fn listing(
        &self,
        name: &HubName,
        progress: &dyn PullProgress,
    ) -> Result<RepoListing, HubError> {
        let (repo, revision) = (name.repo(), name.revision());
        let endpoint = &self.settings.endpoint;
        let url = format!("{endpoint}/api/models/{repo}/revision/{revision}?blobs=true");
        let of = RequestTarget {
            repo,
            revision,
            file: None,
        };
        self.repeat(progress, || {
            let answer = self.follow(Ask::Whole, &url, &of)?;
            let mut json = Vec::new();
            let reader = answer.response.into_body().into_reader();
            reader
                .take(MAX_LISTING_BYTES + 1)
                .read_to_end(&mut json)
                .map_err(|e| network(&url, &e))?;
            if json.len() as u64 > MAX_LISTING_BYTES {
                let reason = format!("the list of files exceeds {MAX_LISTING_BYTES} bytes");
                return Err(HubError::Protocol {
                    url: url.clone(),
                    reason,
                }
                .into());
            }
            Ok(RepoListing::from_json(repo, &url, &json)?)
        })
    }

    /// A file with the size and the digest that the hub announces in headers, if the list of files
    /// lacks them.
    pub(crate) fn described(
        &self,
        listing: &RepoListing,
        file: &RepoFile,
        progress: &dyn PullProgress,
    ) -> Result<(FileDigest, u64), HubError> {
        if let (Some(digest), Some(bytes)) = (&file.digest, file.bytes) {
            return Ok((digest.clone(), bytes));
        }
        let url = self.file_url(listing, &file.path);
        let of = RequestTarget::of(listing, &file.path);
        let answer = self.repeat(progress, || self.follow(Ask::Headers, &url, &of))?;
        let missing = |what: &str| HubError::Protocol {
            url: url.clone(),
            reason: format!("the server announces no {what} of the file"),
        };
        let digest = answer.digest.ok_or_else(|| missing("digest"))?;
        let bytes = answer.bytes.ok_or_else(|| missing("size"))?;
        Ok((digest, bytes))
    }

    /// Repeats an attempt while its failures are transient.
    pub(crate) fn repeat<T>(
        &self,
        progress: &dyn PullProgress,
        mut attempt: impl FnMut() -> Result<T, Failure>,
    ) -> Result<T, HubError> {
        let mut failed = 0;
        loop {
            match attempt() {
                Ok(value) => return Ok(value),
                Err(failure) => {
                    failed += 1;
                    std::thread::sleep(self.pause(failure, failed, progress)?);
                }
            }
        }
    }

    /// The time until the next attempt, or the error if there is none. `failed` counts the failures
    /// in a row.
    pub(crate) fn pause(
        &self,
        failure: Failure,
        failed: u32,
        progress: &dyn PullProgress,
    ) -> Result<Duration, HubError> {
        if !failure.is_transient || failed >= self.settings.attempts {
            return Err(failure.error);
        }
        let backoff = FIRST_WAIT.saturating_mul(1 << (failed - 1).min(10));
        let wait = failure.wait.unwrap_or(backoff.min(MAX_BACKOFF));
        if wait > self.settings.max_wait {
            return Err(failure.error);
        }
        progress.event(PullEvent::Retrying {
            reason: &failure.error,
            wait,
        });
        Ok(wait)
    }

    /// Sends a request and follows its redirects.
    pub(crate) fn follow(
        &self,
        ask: Ask,
        url: &str,
        of: &RequestTarget<'_>,
    ) -> Result<Answer, Failure> {
        let (mut digest, mut bytes) = (None, None);
        let mut url = url.to_string();
        for _ in 0..=MAX_REDIRECTS {
            let is_hub = origin(&url) == origin(&self.settings.endpoint);
            let response = self.send(ask, &url, is_hub)?;
            let headers = response.headers();
            if is_hub {
                let etag = header(headers, "x-linked-etag").or_else(|| header(headers, "etag"));
                digest = etag.and_then(FileDigest::from_etag).or(digest);
                let linked = header(headers, "x-linked-size");
                bytes = linked.and_then(|n| n.parse().ok()).or(bytes);
            }
            let status = response.status().as_u16();
            if matches!(status, 301 | 302 | 303 | 307 | 308) {
                let to = header(headers, "location").unwrap_or_default();
                let to = joined(&url, to).ok_or_else(|| HubError::Protocol {
                    url: url.clone(),
                    reason: "a redirect without a valid address".to_string(),
                })?;
                if url.starts_with("https://") && !to.starts_with("https://") {
                    let reason = "a redirect from https to an unencrypted address".to_string();
                    return Err(HubError::Protocol { url, reason }.into());
                }
                // The headers of the hub describe the file; only a request within the hub has to go on.
                let leaves = origin(&to) != origin(&self.settings.endpoint);
                if matches!(ask, Ask::Headers) && leaves && digest.is_some() && bytes.is_some() {
                    return Ok(Answer {
                        url: to,
                        response,
                        digest,
                        bytes,
                    });
                }
                url = to;
                continue;
            }
            if !(200..300).contains(&status) {
                return Err(self.failure(&url, response, of));
            }
            if matches!(ask, Ask::Headers) && bytes.is_none() {
                bytes = header(headers, "content-length").and_then(|n| n.parse().ok());
            }
            return Ok(Answer {
                url,
                response,
                digest,
                bytes,
            });
        }
        let reason = format!("more than {MAX_REDIRECTS} redirects");
        Err(HubError::Protocol { url, reason }.into())
    }

    /// Sends one request. Only the hub receives the token.
    fn send(&self, ask: Ask, url: &str, is_hub: bool) -> Result<Response<Body>, Failure> {
        let request = match ask {
            Ask::Headers => self.agent.head(url),
            Ask::Whole | Ask::Range(..) => self.agent.get(url),
        };
        let mut request = request.header("accept-encoding", "identity");
        if let Ask::Range(start, end) = ask {
            request = request.header("range", format!("bytes={start}-{}", end - 1));
        }
        if let Some(token) = self.settings.token.as_ref().filter(|_| is_hub) {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        request.call().map_err(|e| match e {
            ureq::Error::BadUri(_) | ureq::Error::Http(_) => HubError::Protocol {
                url: shown(url),
                reason: format!("an invalid address: {e}"),
            }
            .into(),
            e => network(url, &e),
        })
    }

    /// The failure behind a status.
    fn failure(&self, url: &str, response: Response<Body>, of: &RequestTarget<'_>) -> Failure {
        let status = response.status().as_u16();
        let headers = response.headers();
        let code = header(headers, "x-error-code")
            .unwrap_or_default()
            .to_string();
        let wait = retry_after(headers);
        let said = header(headers, "x-error-message").map(str::to_string);
        let said = said.or_else(|| message(response)).unwrap_or_default();
        let is_hub = origin(url) == origin(&self.settings.endpoint);
        let reason = match said.is_empty() {
            true => String::new(),
            false => format!(": {}", said.trim_end_matches('.')),
        };
        let of_status = || HubError::Status {
            url: shown(url),
            status,
            reason,
        };
        let mut failure = Failure {
            error: match status {
                429 => HubError::RateLimited {
                    host: origin(url).to_string(),
                    seconds: wait.map_or(0, |wait| wait.as_secs()),
                },
                401 | 403 | 404 if is_hub => self
                    .refusal(status, &code, &said, of)
                    .unwrap_or_else(of_status),
                _ => of_status(),
            },
            is_transient: matches!(status, 408 | 429) || status >= 500,
            wait,
        };
        // Addresses of files outside of the hub expire; the next attempt asks the hub again.
        failure.is_transient |= !is_hub && matches!(status, 401 | 403 | 404 | 410);
        failure
    }

    /// The error of a repository that the hub does not give.
    fn refusal(
        &self,
        status: u16,
        code: &str,
        said: &str,
        of: &RequestTarget<'_>,
    ) -> Option<HubError> {
        let repo = of.repo.to_string();
        let endpoint = self.settings.endpoint.clone();
        let has_token = self.settings.token.is_some();
        let lower = said.to_ascii_lowercase();
        let is_gated = code == "GatedRepo"
            || ["gated", "restricted", "authorized list", "awaiting"]
                .iter()
                .any(|word| lower.contains(word));
        let no_repo = || HubError::NoRepo {
            repo: repo.clone(),
            endpoint: endpoint.clone(),
            remedy: match has_token {
                true => "check the name, and whether the token of HF_TOKEN may read it",
                false => "check the name; a private repository needs HF_TOKEN",
            },
        };
        match (status, code) {
            (401 | 403, _) if is_gated => {
                let page = format!("accept its conditions at {endpoint}/{repo}");
                let remedy = match has_token {
                    true => format!("{page}; the token of HF_TOKEN has no access yet"),
                    false => format!("{page}, and set HF_TOKEN to a token of your account"),
                };
                Some(HubError::Gated { repo, remedy })
            }
            (401, "RepoNotFound") => Some(no_repo()),
            (401, _) if has_token => Some(HubError::BadToken { endpoint }),
            (401, _) => Some(no_repo()),
            (403, _) => None,
            (_, "RevisionNotFound") => Some(HubError::NoRevision {
                repo,
                revision: of.revision.to_string(),
            }),
            (_, "EntryNotFound") => of.file.map(|file| HubError::NoFile {
                repo,
                file: file.to_string(),
                near: String::new(),
            }),
            (_, "RepoNotFound") => Some(no_repo()),
            (_, _) => match of.file {
                None => Some(no_repo()),
                Some(file) => Some(HubError::NoFile {
                    repo,
                    file: file.to_string(),
                    near: String::new(),
                }),
            },
        }
    }
}

/// The repository, revision and file of a request, for its errors.
pub(crate) struct RequestTarget<'a> {
    pub(crate) repo: &'a str,
    pub(crate) revision: &'a str,
    pub(crate) file: Option<&'a str>,
}

impl<'a> RequestTarget<'a> {
    pub(crate) fn of(listing: &'a RepoListing, path: &'a str) -> RequestTarget<'a> {
        RequestTarget {
            repo: &listing.repo,
            revision: &listing.commit,
            file: Some(path),
        }
    }
}

/// The failure of a connection.
pub(crate) fn network(url: &str, e: &dyn std::error::Error) -> Failure {
    Failure {
        error: HubError::Network {
            url: shown(url),
            reason: e.to_string(),
        },
        is_transient: true,
        wait: None,
    }
}

/// An address without its query, which may have a signature.
pub(crate) fn shown(url: &str) -> String {
    url.split('?').next().unwrap_or_default().to_string()
}

pub(crate) fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// The message in the JSON body of a failed request.
fn message(response: Response<Body>) -> Option<String> {
    let mut text = Vec::new();
    let reader = response.into_body().into_reader();
    reader.take(MAX_MESSAGE_BYTES).read_to_end(&mut text).ok()?;
    let json: serde_json::Value = serde_json::from_slice(&text).ok()?;
    let said = json.get("error")?.as_str()?;
    Some(said.chars().filter(|c| !c.is_control()).take(300).collect())
}

/// The wait of `Retry-After`, which is in seconds or a date, or else of `RateLimit`.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    if let Some(text) = header(headers, "retry-after") {
        let text = text.trim();
        if let Ok(seconds) = text.parse() {
            return Some(Duration::from_secs(seconds));
        }
        let date = httpdate::parse_http_date(text).ok()?;
        let wait = date.duration_since(SystemTime::now());
        return Some(wait.unwrap_or_default());
    }
    // `"api";r=0;t=57`: the limit is renewed in 57 seconds.
    let limit = header(headers, "ratelimit")?;
    let seconds = limit
        .split(';')
        .find_map(|part| part.trim().strip_prefix("t="))?;
    Some(Duration::from_secs(seconds.parse().ok()?))
}

/// Scheme, host and port of an address.
pub(crate) fn origin(url: &str) -> &str {
    let host = url.find("://").map_or(0, |at| at + 3);
    let end = url[host..].find(['/', '?', '#']);
    end.map_or(url, |end| &url[..host + end])
}

/// The address that a redirect of `url` names.
fn joined(url: &str, to: &str) -> Option<String> {
    if to.starts_with("https://") || to.starts_with("http://") {
        return Some(to.to_string());
    }
    if to.starts_with("//") || to.is_empty() || to.contains("://") {
        return None;
    }
    match to.starts_with('/') {
        true => Some(format!("{}{to}", origin(url))),
        false => {
            let base = shown(url);
            let (folder, _) = base.rsplit_once('/')?;
            Some(format!("{folder}/{to}"))
        }
    }
}

/// A path in an address: every byte that is not plain is escaped.
fn encoded(path: &str) -> String {
    let mut text = String::with_capacity(path.len());
    for byte in path.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' => {
                text.push(char::from(byte));
            }
            byte => text += &format!("%{byte:02X}"),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_joined_and_escaped() {
        assert_eq!(origin("http://h:1/a?b"), "http://h:1");
        assert_eq!(origin("https://h"), "https://h");
        let join = |to| joined("http://h:1/a/b?c=1", to);
        assert_eq!(join("/x?y").as_deref(), Some("http://h:1/x?y"));
        assert_eq!(join("x").as_deref(), Some("http://h:1/a/x"));
        assert_eq!(join("https://o/z").as_deref(), Some("https://o/z"));
        assert_eq!(
            (join(""), join("file:///x"), join("//o/z")),
            (None, None, None)
        );
        assert_eq!(encoded("a b/ü#?.gguf"), "a%20b/%C3%BC%23%3F.gguf");
    }

    #[test]
    fn waits_are_seconds_dates_or_limits() {
        let of = |name: &'static str, value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().unwrap());
            retry_after(&headers).map(|wait| wait.as_secs())
        };
        assert_eq!(of("retry-after", "7"), Some(7));
        assert_eq!(of("retry-after", "Mon, 01 Jan 2001 00:00:00 GMT"), Some(0));
        assert!(of("retry-after", "Fri, 01 Jan 2100 00:00:00 GMT") > Some(1_000_000));
        assert_eq!(of("retry-after", "soon"), None);
        assert_eq!(of("ratelimit", "\"api\";r=0;t=57"), Some(57));
    }
}
