//! Server options.

use std::time::Duration;

use tercet_models::config::RopeOverrides;
use tercet_models::{PoolingMode, PrefixStore};

use crate::request_log::RequestLog;
use crate::tls::TlsIdentity;

/// Limits and settings of a server.
///
/// ```
/// use std::time::Duration;
/// use tercet_serve::ServeOptions;
/// let options = ServeOptions {
///     slots: 8,
///     deadline: Duration::from_secs(60),
///     api_keys: vec!["secret".to_string()],
///     ..ServeOptions::default()
/// };
/// assert_eq!(options.queue, ServeOptions::default().queue);
/// ```
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// Sequences that each language model generates in one batch, at least 1; also parallel runs of
    /// each graph.
    pub slots: usize,
    /// Maximum requests waiting for a slot of a model. Further requests are rejected with status
    /// 503.
    pub queue: usize,
    /// Maximum time that a request waits for a slot. A request that waits longer is rejected with status
    /// 503. `None` means that it waits until its deadline.
    pub queue_time: Option<Duration>,
    /// Maximum time of a request, queueing included. A request that takes longer fails with status
    /// 504.
    pub deadline: Duration,
    /// Maximum size of a request body in bytes. Larger bodies are rejected with status 413.
    pub body_bytes: usize,
    /// Maximum time for receiving a request body. Slower requests are rejected with status 408.
    pub body_time: Duration,
    /// Maximum time for receiving the headers of a request; also the time after which a connection
    /// without a request is closed.
    pub header_time: Duration,
    /// Maximum time for which a client may stop reading a response; the connection is then closed.
    pub write_time: Duration,
    /// Maximum number of open connections. Further connections wait until one is closed.
    pub connections: usize,
    /// API keys. A request must send one of them as `Authorization: Bearer KEY` or `x-api-key: KEY`.
    /// Without keys, all requests are accepted.
    pub api_keys: Vec<String>,
    /// Whether cached prefixes are reused only for requests of the same API key.
    pub isolate: bool,
    /// Store of cached prefixes whose slots other requests have taken, for all language models. With a
    /// folder, the prefixes of the slots are saved when a model is unloaded and when the server stops.
    /// `None` caches prefixes in the slots only.
    pub prefix_store: Option<PrefixStore>,
    /// Origins of other web pages, such as `https://app.example`, whose scripts may call the server;
    /// `*` means all.
    pub allowed_origins: Vec<String>,
    /// Certificate and private key for HTTPS; `None` serves HTTP.
    pub tls: Option<TlsIdentity>,
    /// The source of a chat template, or `chatml`, instead of that of each language model.
    pub chat_template: Option<String>,
    /// Changes of the rotary positions of language models.
    pub rope: RopeOverrides,
    /// Pooling of embeddings, instead of that of each model. With it, decoders and rerankers embed
    /// texts too.
    pub pooling: Option<PoolingMode>,
    /// Folder of the adapters that requests may load while the server runs; `None` for none.
    pub adapter_folder: Option<std::path::PathBuf>,
    /// Log of the requests; `None` logs nothing.
    pub log: Option<RequestLog>,
}

impl Default for ServeOptions {
    /// Four slots, 1024 queued requests, ten minutes per request, bodies of 16 MiB in 30 seconds,
    /// headers in 30 seconds, a minute for clients that stop reading, 1024 connections. HTTP without API keys,
    /// other origins and a log.
    fn default() -> ServeOptions {
        ServeOptions {
            slots: 4,
            queue: 1024,
            queue_time: None,
            deadline: Duration::from_secs(600),
            body_bytes: 16 << 20,
            body_time: Duration::from_secs(30),
            header_time: Duration::from_secs(30),
            write_time: Duration::from_secs(60),
            connections: 1024,
            api_keys: Vec::new(),
            isolate: false,
            prefix_store: None,
            allowed_origins: Vec::new(),
            tls: None,
            chat_template: None,
            rope: RopeOverrides::default(),
            pooling: None,
            adapter_folder: None,
            log: None,
        }
    }
}
