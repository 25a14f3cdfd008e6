//! How a server runs.

use std::time::Duration;

/// Limits and choices of a server.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// Texts that are written side by side in one run of each language model, at least one; and runs of each graph.
    pub slots: usize,
    /// Requests that wait for a slot of a model; more are refused with 503.
    pub queue: usize,
    /// The most time for a request, waiting included; then it ends with 504.
    pub deadline: Duration,
    /// The most bytes of a body; more are refused with 413.
    pub body_bytes: usize,
    /// The most time in which a body has to arrive; then it is refused with 408.
    pub body_time: Duration,
    /// The key that requests have to carry as `Authorization: Bearer KEY`; anybody is served without one.
    pub api_key: Option<String>,
}

impl Default for ServeOptions {
    /// Four slots, 64 waiting, ten minutes, 16 MiB in 30 seconds, no key.
    fn default() -> ServeOptions {
        ServeOptions {
            slots: 4,
            queue: 64,
            deadline: Duration::from_secs(600),
            body_bytes: 16 << 20,
            body_time: Duration::from_secs(30),
            api_key: None,
        }
    }
}
