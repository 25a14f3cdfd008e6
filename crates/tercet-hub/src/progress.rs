//! Progress of a download.

use std::path::Path;
use std::time::Duration;

use crate::error::HubError;

/// A step of a download.
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use tercet_hub::{PullEvent, PullProgress};
/// let loaded = AtomicU64::new(0);
/// let progress = |event: PullEvent<'_>| {
///     if let PullEvent::Bytes(n) = event {
///         loaded.fetch_add(n, Ordering::Relaxed);
///     }
/// };
/// progress.event(PullEvent::Bytes(8));
/// assert_eq!(loaded.into_inner(), 8);
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum PullEvent<'a> {
    /// The download begins: number of missing files, and their size in bytes.
    Started {
        /// Missing files.
        files: usize,
        /// Bytes of these files.
        bytes: u64,
    },
    /// A file begins.
    File {
        /// Path in the repository.
        path: &'a str,
        /// Size in bytes.
        bytes: u64,
        /// Bytes that an earlier attempt has loaded.
        resumed: u64,
    },
    /// Bytes have been written.
    Bytes(u64),
    /// Bytes that [`PullEvent::Bytes`] or `resumed` counted were wrong, and are loaded again.
    Again(u64),
    /// A request failed, and is sent again after a wait.
    Retrying {
        /// The failure.
        reason: &'a HubError,
        /// Time until the next attempt.
        wait: Duration,
    },
    /// Another process downloads the file; its lock is awaited.
    Waiting {
        /// File of the lock.
        lock: &'a Path,
    },
}

/// A receiver of [`PullEvent`]s. Several threads call it.
///
/// ```
/// use tercet_hub::{PullEvent, PullProgress};
/// fn quiet() -> impl PullProgress {
///     |_: PullEvent<'_>| {}
/// }
/// quiet().event(PullEvent::Bytes(1));
/// ```
pub trait PullProgress: Sync {
    /// Receives an event.
    fn event(&self, event: PullEvent<'_>);
}

impl<F: Fn(PullEvent<'_>) + Sync> PullProgress for F {
    fn event(&self, event: PullEvent<'_>) {
        self(event);
    }
}
