//! Duration of prefill or decode.

use std::time::Duration;

use serde::Serialize;

/// Tokens and duration of prefill or decode.
#[derive(Serialize)]
pub(crate) struct PhaseTiming {
    pub(crate) tokens: usize,
    seconds: f64,
    pub(crate) tokens_per_second: f64,
}

impl PhaseTiming {
    pub(super) fn new(tokens: usize, time: Duration) -> PhaseTiming {
        let seconds = time.as_secs_f64();
        PhaseTiming {
            tokens,
            seconds,
            tokens_per_second: tokens as f64 / seconds.max(1e-9),
        }
    }
}
