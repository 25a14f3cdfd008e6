//! Detects CPU contention with other processes, from the duration of `yield_now`.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

/// Spin-wait policy.
#[derive(Clone, Copy)]
pub struct SpinPolicy {
    /// Time that an idle helper spins.
    pub spin_time: Duration,
    /// A yield that takes longer than this means that the thread was preempted by another process.
    pub preemption_threshold: Duration,
}

impl SpinPolicy {
    /// Default policy. Workers spin longer than a typical serial gap between kernels. A yield
    /// longer than `preemption_threshold` means that another process ran for a full time slice.
    pub(super) const USUAL: SpinPolicy = SpinPolicy {
        spin_time: Duration::from_micros(200),
        preemption_threshold: Duration::from_micros(100),
    };
}

/// Whether other processes compete for the cores.
pub struct CpuContention {
    /// Start of the clock. `None` in browsers, which provide no clock here and have no spinning
    /// threads.
    start: Option<Instant>,
    /// Time until which no thread spins, in microseconds since `start`.
    pub until: AtomicU64,
}

impl CpuContention {
    /// After a detected preemption, no thread spins for this time.
    const LASTS: Duration = Duration::from_millis(20);

    pub(super) fn new() -> CpuContention {
        CpuContention {
            start: (!cfg!(target_arch = "wasm32")).then(Instant::now),
            until: AtomicU64::new(0),
        }
    }

    /// Microseconds since the start of the clock.
    pub fn now_micros(&self) -> u64 {
        (self.start).map_or(0, |start| start.elapsed().as_micros() as u64)
    }

    /// True while no thread may spin.
    pub fn is_contended(&self) -> bool {
        let until = self.until.load(Relaxed);
        until > 0 && self.now_micros() < until
    }

    /// Yields the core. Returns false if the yield took so long that the thread was preempted.
    pub(super) fn yields(&self, late: Duration) -> bool {
        let before = Instant::now();
        thread::yield_now();
        let is_late = before.elapsed() > late;
        if is_late {
            let until = self.now_micros() + Self::LASTS.as_micros() as u64;
            self.until.store(until, Relaxed);
        }
        !is_late
    }
}
