//! Errors of downloads, of the cache and of names.

use std::io;
use std::path::{Path, PathBuf};

/// The reason why a model cannot be downloaded, found or removed.
///
/// ```
/// use tercet_hub::{HubError, HubName};
/// let error = "model.gguf".parse::<HubName>().unwrap_err();
/// assert!(matches!(error, HubError::BadName { .. }));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(
    missing_docs,
    reason = "the fields are named by the messages above them"
)]
pub enum HubError {
    /// A text is not the name of a model.
    #[error("`{name}` is not the name of a model: {reason}")]
    BadName { name: String, reason: String },
    /// A setting of the environment is invalid.
    #[error("{variable} is `{value}`: {reason}")]
    BadSetting {
        variable: &'static str,
        value: String,
        reason: String,
    },
    /// The folder of the cache is unknown.
    #[error("the folder of the cache is unknown: set HF_HUB_CACHE, HF_HOME or HOME")]
    NoCache,
    /// The model is not in the cache, and nothing may be downloaded.
    #[error(
        "{name} is not in the cache {cache}, and offline mode is on; \
         leave out --offline, unset HF_HUB_OFFLINE, or copy the model into the cache",
        cache = cache.display()
    )]
    Offline { name: String, cache: PathBuf },
    /// The model is not in the cache.
    #[error(
        "{name} is not in the cache {cache}; download it with `tercet pull {name}`",
        cache = cache.display()
    )]
    NotCached { name: String, cache: PathBuf },
    /// Several repositories of the cache have this short name.
    #[error("the short name {name} could be {repos}; give the name with its organization")]
    AmbiguousShortName { name: String, repos: String },
    /// The repository is missing on the hub, or it is private.
    #[error("{endpoint} has no repository {repo}, or it is private; {remedy}")]
    NoRepo {
        repo: String,
        endpoint: String,
        remedy: &'static str,
    },
    /// The revision is missing in the repository.
    #[error(
        "the repository {repo} has no revision {revision}; use a branch, a tag or a commit of it"
    )]
    NoRevision { repo: String, revision: String },
    /// The file is missing in the repository.
    #[error("the repository {repo} has no file {file}{near}")]
    NoFile {
        repo: String,
        file: String,
        /// Similar files, as the end of the message.
        near: String,
    },
    /// The authors of a repository require that their conditions are accepted.
    #[error("the repository {repo} is gated: {remedy}")]
    Gated { repo: String, remedy: String },
    /// The hub rejects the token.
    #[error("{endpoint} rejects the token of HF_TOKEN; create a new one, or unset HF_TOKEN")]
    BadToken { endpoint: String },
    /// The hub limits the rate of requests, and the wait is too long.
    #[error(
        "{host} limits the rate of requests and asks to wait {seconds} s; \
         try again later, or set HF_TOKEN: the limits of accounts are higher"
    )]
    RateLimited { host: String, seconds: u64 },
    /// The server fails, or answers in an unexpected way.
    #[error("{url}: the server answered {status}{reason}")]
    Status {
        url: String,
        status: u16,
        /// The message of the server, as the end of the message.
        reason: String,
    },
    /// The server cannot be reached, or the connection breaks again and again.
    #[error(
        "cannot download {url}: {reason}; check the network, HTTPS_PROXY and HF_ENDPOINT. \
         What has arrived is kept, and the next attempt continues there"
    )]
    Network { url: String, reason: String },
    /// The answer of a server violates the protocol.
    #[error("{url}: {reason}; is HF_ENDPOINT a hub?")]
    Protocol { url: String, reason: String },
    /// The contents of a file are not those that the hub announces.
    #[error(
        "{file}: the {what} is {found}, not {expected}; {url} served a wrong or damaged file, \
         which was deleted; try again, or choose another HF_ENDPOINT"
    )]
    Digest {
        file: String,
        url: String,
        what: &'static str,
        expected: String,
        found: String,
    },
    /// The repository has no model that can be opened.
    #[error("the repository {repo} has no model in GGUF, safetensors or ONNX{found}")]
    NoModel {
        repo: String,
        /// The files that it has, as the end of the message.
        found: String,
    },
    /// The quantization is missing in the repository.
    #[error("the repository {repo} has no quantization {quant}; it has: {quants}")]
    NoQuant {
        repo: String,
        quant: String,
        quants: String,
    },
    /// The repository has several models.
    #[error("the repository {repo} has several models: {names}; name one as {repo}/FILE")]
    SeveralModels { repo: String, names: String },
    /// Parts of a split model are missing in the repository.
    #[error("the repository {repo} has {found} of the {expected} parts of {file}")]
    MissingParts {
        repo: String,
        file: String,
        found: usize,
        expected: usize,
    },
    /// No quantization fits the memory of the device.
    #[error(
        "no quantization of {repo} fits: the smallest, {quant}, needs about {needed}, and the device \
         has {free} free; choose a smaller model, or name a quantization as {repo}:{quant}",
        needed = size(*needed),
        free = size(*free)
    )]
    Memory {
        repo: String,
        quant: String,
        needed: u64,
        free: u64,
    },
    /// The disk is full.
    #[error(
        "the disk of {path} is full: {needed} more are needed{free}; \
         free some space (`tercet rm NAME`), or set HF_HUB_CACHE to another disk",
        needed = size(*needed),
        path = path.display()
    )]
    DiskFull {
        path: PathBuf,
        needed: u64,
        /// The free space, as a part of the message.
        free: String,
    },
    /// A file or folder of the cache cannot be written.
    #[error(
        "cannot {action} {path}: {source}; set HF_HUB_CACHE to a folder that can be written",
        path = path.display()
    )]
    Write {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// A file or folder of the cache cannot be read.
    #[error("cannot read {path}: {source}", path = path.display())]
    Read { path: PathBuf, source: io::Error },
    /// A file of the cache is damaged.
    #[error("{path}: {reason}; remove the model with `tercet rm {repo}` and download it again",
        path = path.display())]
    DamagedCache {
        path: PathBuf,
        repo: String,
        reason: String,
    },
    /// Another process downloads the model.
    #[error("another process downloads {repo}; wait until it is done, then try again")]
    Busy { repo: String },
}

impl HubError {
    pub(crate) fn read(path: &Path) -> impl FnOnce(io::Error) -> HubError {
        let path = path.to_path_buf();
        move |source| HubError::Read { path, source }
    }

    /// An error of writing; a full disk has its own variant. `needed` counts the bytes that are not
    /// written yet.
    pub(crate) fn write(
        action: &'static str,
        path: &Path,
        needed: u64,
    ) -> impl FnOnce(io::Error) -> HubError {
        let path = path.to_path_buf();
        move |source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => HubError::DiskFull {
                path,
                needed,
                free: String::new(),
            },
            _ => HubError::Write {
                action,
                path,
                source,
            },
        }
    }

    /// Whether a cached copy of the model is the better answer: the network or the server fails.
    pub fn is_of_network(&self) -> bool {
        match self {
            HubError::Network { .. } | HubError::RateLimited { .. } => true,
            HubError::Status { status, .. } => *status >= 500,
            _ => false,
        }
    }
}

/// Bytes with a binary unit: `1.5 GiB`.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => format!("{bytes} B"),
        _ => format!("{value:.1} {}", UNITS[unit]),
    }
}
