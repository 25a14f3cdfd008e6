//! How long a part of writing took.

use std::time::Duration;

use serde::Serialize;

/// The tokens of a part, and their time.
#[derive(Serialize)]
pub(crate) struct Phase {
    pub(crate) tokens: usize,
    seconds: f64,
    pub(crate) tokens_per_second: f64,
}

impl Phase {
    pub(super) fn new(tokens: usize, time: Duration) -> Phase {
        let seconds = time.as_secs_f64();
        Phase {
            tokens,
            seconds,
            tokens_per_second: tokens as f64 / seconds.max(1e-9),
        }
    }
}
