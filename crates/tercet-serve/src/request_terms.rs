//! The terms under which a request waits and runs.

use std::time::Duration;

/// The key and the priority of a request, which decide the order of waiting requests.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestOrder {
    /// Index of the API key; `None` without keys.
    pub key: Option<usize>,
    /// Requests with a lower number go before others.
    pub priority: i64,
}

/// What a request asks for itself. The limits of the server hold as well.
#[doc(hidden)]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestTerms {
    /// The key and the priority.
    pub order: RequestOrder,
    /// Maximum time in a queue.
    pub queue_time: Option<Duration>,
    /// Maximum time in total.
    pub deadline: Option<Duration>,
    /// Requests share cached prefixes only with requests of the same salt.
    pub cache_salt: String,
}
