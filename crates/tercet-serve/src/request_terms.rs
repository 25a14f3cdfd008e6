//! The terms under which a request waits and runs.

use std::time::Duration;

/// The key and the priority of a request, which decide the order of waiting requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RequestOrder {
    /// Index of the API key; `None` without keys.
    pub(crate) key: Option<usize>,
    /// Requests with a lower number go before others.
    pub(crate) priority: i64,
}

/// What a request asks for itself. The limits of the server hold as well.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RequestTerms {
    pub(crate) order: RequestOrder,
    /// Maximum time in a queue.
    pub(crate) queue_time: Option<Duration>,
    /// Maximum time in total.
    pub(crate) deadline: Option<Duration>,
    /// Requests share cached prefixes only with requests of the same salt.
    pub(crate) cache_salt: String,
}
