//! Whether other processes want the cores, as threads that gave theirs away notice.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

/// How long threads wait awake.
#[derive(Clone, Copy)]
pub(super) struct Patience {
    /// A helper without work.
    pub(super) stay: Duration,
    /// A thread that gave its core away and got it back so late says that others want it.
    pub(super) late: Duration,
}

impl Patience {
    /// Helpers stay longer than most serial steps between two kernels; who is late waited while somebody else had a whole turn.
    pub(super) const USUAL: Patience = Patience {
        stay: Duration::from_micros(200),
        late: Duration::from_micros(100),
    };
}

/// Whether others want the cores.
pub(super) struct Crowd {
    /// None in browsers, which have no clock for us, and no threads that would wait.
    start: Option<Instant>,
    /// Until when, in microseconds from the start.
    pub(super) until: AtomicU64,
}

impl Crowd {
    /// For so long nobody waits awake after a thread was late.
    const LASTS: Duration = Duration::from_millis(20);

    pub(super) fn new() -> Crowd {
        Crowd {
            start: (!cfg!(target_arch = "wasm32")).then(Instant::now),
            until: AtomicU64::new(0),
        }
    }

    pub(super) fn now(&self) -> u64 {
        (self.start).map_or(0, |start| start.elapsed().as_micros() as u64)
    }

    pub(super) fn is_there(&self) -> bool {
        let until = self.until.load(Relaxed);
        until > 0 && self.now() < until
    }

    /// Offers the core to others; false if somebody took it and gave it back late.
    pub(super) fn yields(&self, late: Duration) -> bool {
        let before = Instant::now();
        thread::yield_now();
        let is_late = before.elapsed() > late;
        if is_late {
            let until = self.now() + Self::LASTS.as_micros() as u64;
            self.until.store(until, Relaxed);
        }
        !is_late
    }
}
