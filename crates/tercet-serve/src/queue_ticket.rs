//! The place of a request in the queue of a model: its order, its time limits, and its counts.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::sync::oneshot;

use crate::error::ApiError;
use crate::fields::JsonFields;
use crate::metrics::{ServerMetrics, count};
use crate::options::ServeOptions;
use crate::request_log::RequestRecord;
use crate::request_terms::{RequestOrder, RequestTerms};

/// Maximum seconds that a request may state.
const MAX_SECONDS: f64 = 1e6;
/// Time in which a worker becomes free after its answer.
const GRACE: Duration = Duration::from_millis(50);
/// Maximum bytes of a cache salt.
const MAX_SALT: usize = 256;

/// The order and the limits of a request that waits for a model.
#[doc(hidden)]
#[derive(Clone)]
pub struct QueueTicket {
    pub(crate) order: RequestOrder,
    /// Sequences share cached prefixes only within a scope.
    pub cache_scope: String,
    /// Time from which the request waits.
    queued: Instant,
    /// Time until which it waits, and the limit of which this is the end.
    pub queue_end: Option<(Instant, Duration)>,
    /// End of the deadline.
    pub(crate) until: Instant,
    pub(crate) metrics: Arc<ServerMetrics>,
}

impl QueueTicket {
    /// The ticket of a request that waits from now on.
    pub fn new(
        record: &RequestRecord,
        options: &ServeOptions,
        metrics: &Arc<ServerMetrics>,
    ) -> QueueTicket {
        let RequestTerms {
            order,
            queue_time,
            deadline,
            cache_salt,
        } = record.terms();
        let now = Instant::now();
        let queue_time = shorter(queue_time, options.queue_time);
        let deadline = deadline.map_or(options.deadline, |own| own.min(options.deadline));
        let cache_scope = match order.key.filter(|_| options.isolate) {
            // The digest ends at the first `/`, so scopes of keys differ for all salts.
            Some(key) => format!("{}/{cache_salt}", key_scope(options, key)),
            None => cache_salt,
        };
        QueueTicket {
            order,
            cache_scope,
            queued: now,
            queue_end: queue_time.map(|time| (later(now, time), time)),
            until: later(record.began(), deadline),
            metrics: Arc::clone(metrics),
        }
    }

    /// Counts the start of the request.
    pub(crate) fn count_start(&self) {
        count(&self.metrics.started, 1);
        let waited = self.queued.elapsed().as_micros();
        count(
            &self.metrics.queue_micros,
            usize::try_from(waited).unwrap_or(usize::MAX),
        );
    }

    /// Counts a request whose client has left.
    pub(crate) fn count_cancelled(&self) {
        count(&self.metrics.cancelled, 1);
    }

    /// Whether the deadline has passed.
    pub(crate) fn is_late(&self) -> bool {
        Instant::now() >= self.until
    }

    /// The error of a deadline that has passed, which is counted.
    pub(crate) fn late(&self) -> ApiError {
        count(&self.metrics.deadline_exceeded, 1);
        ApiError::deadline_exceeded()
    }

    /// The error of a request that still waits, which is counted, if it has waited too long.
    pub fn overdue(&self) -> Option<ApiError> {
        if self.is_late() {
            return Some(self.late());
        }
        let (end, limit) = self.queue_end?;
        if Instant::now() < end {
            return None;
        }
        count(&self.metrics.queue_timeouts, 1);
        Some(ApiError::queue_timeout(limit))
    }

    /// The error of a request that finds no place in the queue, or loses it; it is counted.
    pub(crate) fn refused(&self) -> ApiError {
        count(&self.metrics.queue_refusals, 1);
        ApiError::overloaded()
    }

    /// Waits for the result of a queued job. If the job still waits when the client leaves or the time
    /// is over, `leave` takes it out of the queue and returns true. `waits` is false if a worker was free
    /// for it.
    ///
    /// # Errors
    /// Those of the job; the queue timeout; the deadline, if it passes before the job starts.
    pub(crate) async fn result<T>(
        &self,
        mut receive: oneshot::Receiver<Result<T, ApiError>>,
        waits: bool,
        leave: impl Fn() -> bool,
    ) -> Result<T, ApiError> {
        let place = QueuePlace(leave);
        let end = match self.queue_end.filter(|_| waits) {
            Some((end, _)) => end.max(self.queued + GRACE).min(self.until),
            None => self.until,
        };
        let done = match tokio::time::timeout_at(end.into(), &mut receive).await {
            Ok(done) => done,
            Err(_) => {
                if (place.0)() {
                    return Err(self.overdue().unwrap_or_else(|| self.late()));
                }
                receive.await
            }
        };
        done.map_err(|_| ApiError::worker_lost())?
    }
}

/// The part of a scope that belongs to an API key. It stays the same when the order of the keys changes,
/// because stored prefixes outlive the server.
fn key_scope(options: &ServeOptions, key: usize) -> String {
    let digest = match options.api_keys.get(key) {
        Some(key) => Sha256::digest(key.as_bytes()),
        None => Sha256::digest(key.to_le_bytes()),
    };
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Leaves the queue when it is dropped.
struct QueuePlace<F: Fn() -> bool>(F);

impl<F: Fn() -> bool> Drop for QueuePlace<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// The shorter of two times.
fn shorter(a: Option<Duration>, b: Option<Duration>) -> Option<Duration> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// An instant after another; a time that no clock reaches is years.
fn later(from: Instant, time: Duration) -> Instant {
    const YEARS: Duration = Duration::from_secs(1 << 30);
    from.checked_add(time).unwrap_or_else(|| from + YEARS)
}

/// Names of the terms of a request that are numbers.
#[cfg(feature = "audio")]
pub(crate) const TERM_FIELDS: [&str; 3] = ["priority", "queue_seconds", "deadline_seconds"];

/// Takes `priority`, `queue_seconds`, `deadline_seconds` and `cache_salt` of a request.
///
/// # Errors
/// 400 with the name of a field that has a wrong value.
pub(crate) fn take_terms(fields: &mut JsonFields, record: &RequestRecord) -> Result<(), ApiError> {
    let priority = match fields.take("priority") {
        None => 0,
        Some(value) => {
            let number = value.as_i64().and_then(|n| i32::try_from(n).ok());
            let expected = "a whole number of 32 bits; lower numbers go first";
            number.ok_or_else(|| fields.wrong("priority", &value, expected))?
        }
    };
    let mut seconds = |name| {
        let seconds = fields.number(name, 0.0, MAX_SECONDS)?;
        Ok::<_, ApiError>(seconds.map(Duration::from_secs_f64))
    };
    let (queue_time, deadline) = (seconds("queue_seconds")?, seconds("deadline_seconds")?);
    let cache_salt = fields.text("cache_salt")?.unwrap_or_default();
    if cache_salt.len() > MAX_SALT {
        let expected = format!("a text of at most {MAX_SALT} bytes");
        return Err(fields.wrong("cache_salt", &Value::String(cache_salt), &expected));
    }
    record.set_terms(RequestTerms {
        order: RequestOrder {
            key: record.terms().order.key,
            priority: i64::from(priority),
        },
        queue_time,
        deadline,
        cache_salt,
    });
    Ok(())
}
