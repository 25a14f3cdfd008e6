//! Worker pool on top of rayon: threads that help callers with jobs, kernel after kernel.
//!
//! Kernels are often shorter than the time to wake a sleeping thread, and a rayon job costs an
//! allocation and a wake-up. So the pool requests threads from rayon (helpers) once, and keeps them
//! for many kernels. A helper executes posted jobs one after the other. A helper without a job
//! spins for a while ([`SpinPolicy`]), and then returns its thread to rayon.
//!
//! A caller never waits for a helper that has not started. A caller posts a job in a free
//! [`WorkerJobSlot`] and works on it itself. Then the caller closes the job to further helpers, and
//! waits only for helpers that are working on it. If all rayon threads are busy, the caller does
//! the whole job alone.
//!
//! If other processes need the cores, spinning consumes CPU time that this process needs later. A
//! thread detects this when a yield returns late ([`CpuContention`]); no thread then spins for a while.
//!
//! Jobs of several callers share the helpers. A job may post nested jobs. A caller only waits for
//! work that has started, and that work never waits for the caller, so there is no deadlock.
//! Posting a job allocates nothing; only a request for a helper allocates, inside rayon.
//!
//! A panic in a job is propagated to its caller after all helpers have left it. Helpers survive it.

use std::any::Any;
use std::cell::{Cell, RefCell, UnsafeCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use rayon::{ThreadPool, ThreadPoolBuilder};

mod contention;

pub use contention::{CpuContention, SpinPolicy};

/// Maximum number of concurrent jobs; callers of further jobs run them alone.
const SLOTS: usize = 8;
/// Maximum number of threads of a pool.
const MAX_THREADS: usize = u16::MAX as usize;

/// Function of a job, called by each participating thread with a unique index.
pub type WorkerJobFn<'a> = &'a (dyn Fn(usize) + Sync + 'a);

/// A private pool of threads. On drop its threads end after their current jobs.
#[derive(Debug)]
pub struct WorkerPool(pub Arc<WorkerPoolShared>);

/// State that callers and helpers share.
pub struct WorkerPoolShared {
    slots: [WorkerJobSlot; SLOTS],
    /// Number of jobs that callers have posted so far. A helper compares this number with the last
    /// one that it saw, to detect new jobs.
    posted: AtomicUsize,
    /// Number of outermost callers (not inside another job) with a posted job.
    callers: AtomicUsize,
    /// Number of program runs that are using the pool.
    runs: AtomicUsize,
    /// Number of helpers that were requested from rayon and have not returned their thread.
    pub around: AtomicUsize,
    /// Maximum number of helpers.
    helpers: usize,
    /// Whether other processes need the cores.
    pub contention: CpuContention,
    patience: SpinPolicy,
    /// The private rayon pool. `None` if helpers come from the rayon pool of the calling thread or
    /// from the global rayon pool.
    pool: Option<ThreadPool>,
}

/// Slot for one job.
#[repr(align(128))]
struct WorkerJobSlot {
    /// True while a caller uses the slot.
    is_claimed: AtomicBool,
    /// [`PLACE`] times the number of helpers that may still join the job, plus the number of
    /// helpers working on it.
    state: AtomicU64,
    /// The job. The caller that owns the slot writes the job while `state` is 0.
    job: UnsafeCell<Option<WorkerJobFn<'static>>>,
    /// Maximum threads for kernels inside the job; written under the same conditions as `job`.
    max_threads: AtomicUsize,
    /// The caller's thread while it sleeps until all helpers have left.
    sleeper: Mutex<Option<Thread>>,
    is_awaited: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// Unit of [`WorkerJobSlot::state`] that lets one more helper join the job.
const PLACE: u64 = 1 << 32;

// SAFETY: only the caller that owns the slot writes `job`, while `state` is 0. Only helpers that
// joined the job by changing `state` read `job`. The reference in `job` may be shared between
// threads.
unsafe impl Sync for WorkerJobSlot {}

/// Worker pool for the kernels on a thread.
#[derive(Clone)]
pub struct CurrentWorkerPool {
    /// The pool.
    pub shared: Arc<WorkerPoolShared>,
    /// Maximum number of threads; the program's scratch memory is sized for it.
    pub max_threads: usize,
}

thread_local! {
    static CURRENT: RefCell<Option<CurrentWorkerPool>> = const { RefCell::new(None) };
    /// Worker pool for callers on this rayon thread.
    static OF_WORKER: RefCell<Option<Arc<WorkerPoolShared>>> = const { RefCell::new(None) };
    /// True if the thread is inside a job.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Number of times that worker pools have asked rayon for a helper thread; see [`helpers_called`].
static CALLED: AtomicUsize = AtomicUsize::new(0);

/// Returns the number of times that worker pools of this process have asked rayon for a helper
/// thread. Asking makes rayon allocate a job; nothing else in a run makes rayon allocate.
#[doc(hidden)]
pub fn helpers_called() -> usize {
    CALLED.load(Relaxed)
}

impl WorkerPool {
    /// A pool of `threads` threads including the caller of a job; 0 means one per core.
    ///
    /// # Errors
    /// If the system cannot create the threads.
    pub fn new(threads: usize) -> std::io::Result<WorkerPool> {
        WorkerPool::with_patience(threads, SpinPolicy::USUAL)
    }

    /// As [`WorkerPool::new`], with another policy of waiting.
    ///
    /// # Errors
    /// If the system cannot create the threads.
    pub fn with_patience(threads: usize, patience: SpinPolicy) -> std::io::Result<WorkerPool> {
        let threads = match threads {
            0 => cores(),
            n => n.min(MAX_THREADS),
        };
        let pool = match threads {
            1 => None,
            _ => {
                let named = ThreadPoolBuilder::new().thread_name(|i| format!("tercet-cpu-{i}"));
                let made = named.num_threads(threads - 1).build();
                Some(made.map_err(std::io::Error::other)?)
            }
        };
        let shared = WorkerPoolShared::new(threads - 1, pool);
        Ok(WorkerPool(Arc::new(WorkerPoolShared {
            patience,
            ..shared
        })))
    }

    /// The state of the pool.
    pub fn shared(&self) -> Arc<WorkerPoolShared> {
        self.0.clone()
    }
}

/// Pool for callers outside of rayon: helpers from the global rayon pool, or no helpers if the
/// system cannot create threads.
fn process_pool() -> &'static Arc<WorkerPoolShared> {
    static SHARED: OnceLock<Arc<WorkerPoolShared>> = OnceLock::new();
    SHARED.get_or_init(|| {
        // An error with a source comes from the system; one without a source means that the global
        // pool already exists.
        let made = ThreadPoolBuilder::new().build_global();
        let has_none = made.is_err_and(|e| std::error::Error::source(&e).is_some());
        let threads = match has_none {
            true => 1,
            false => rayon::current_num_threads().min(MAX_THREADS),
        };
        Arc::new(WorkerPoolShared::new(threads - 1, None))
    })
}

/// Pool for callers on this thread, with helpers from the rayon pool that the thread belongs to.
pub(crate) fn caller_pool() -> Arc<WorkerPoolShared> {
    if rayon::current_thread_index().is_none() {
        return process_pool().clone();
    }
    OF_WORKER.with_borrow_mut(|own| {
        let shared = own.get_or_insert_with(|| {
            let threads = rayon::current_num_threads().min(MAX_THREADS);
            Arc::new(WorkerPoolShared::new(threads - 1, None))
        });
        shared.clone()
    })
}

/// Pool for the kernels on this thread.
pub fn current() -> CurrentWorkerPool {
    let own = CURRENT.with_borrow(Clone::clone);
    own.unwrap_or_else(|| CurrentWorkerPool {
        shared: caller_pool(),
        max_threads: usize::MAX,
    })
}

/// Runs `f` with this pool as the current one, limited to `most` threads.
pub fn install<R>(shared: Arc<WorkerPoolShared>, most: usize, f: impl FnOnce() -> R) -> R {
    struct WorkerRunGuard(Arc<WorkerPoolShared>);
    impl Drop for WorkerRunGuard {
        fn drop(&mut self) {
            self.0.runs.fetch_sub(1, SeqCst);
        }
    }
    shared.runs.fetch_add(1, SeqCst);
    let run = WorkerRunGuard(shared.clone());
    let result = with(
        CurrentWorkerPool {
            shared,
            max_threads: most,
        },
        f,
    );
    drop(run);
    result
}

fn with<R>(current: CurrentWorkerPool, f: impl FnOnce() -> R) -> R {
    /// Restores the previous pool, even after a panic.
    struct RestorePoolGuard(Option<CurrentWorkerPool>);
    impl Drop for RestorePoolGuard {
        fn drop(&mut self) {
            CURRENT.with(|current| current.replace(self.0.take()));
        }
    }
    let _restore = RestorePoolGuard(CURRENT.with(|own| own.replace(Some(current))));
    f()
}

fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

impl std::fmt::Debug for WorkerPoolShared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("threads", &self.threads())
            .finish_non_exhaustive()
    }
}

impl CurrentWorkerPool {
    /// Maximum number of threads of a job, including its caller.
    pub(crate) fn threads(&self) -> usize {
        self.shared.threads().min(self.max_threads)
    }

    /// Calls `job(0)` on this thread, and `job(i)` on other threads for some (or none) of
    /// `1..most`, each at most once. Returns after all calls have returned.
    ///
    /// # Panics
    /// If one of the calls panics.
    pub fn run(&self, most: usize, job: WorkerJobFn<'_>) {
        self.shared
            .run(most.min(self.threads()), self.max_threads, job);
    }
}

impl WorkerPoolShared {
    fn new(helpers: usize, pool: Option<ThreadPool>) -> WorkerPoolShared {
        WorkerPoolShared {
            patience: SpinPolicy::USUAL,
            slots: std::array::from_fn(|_| WorkerJobSlot {
                is_claimed: AtomicBool::new(false),
                state: AtomicU64::new(0),
                job: UnsafeCell::new(None),
                max_threads: AtomicUsize::new(0),
                sleeper: Mutex::new(None),
                is_awaited: AtomicBool::new(false),
                panic: Mutex::new(None),
            }),
            posted: AtomicUsize::new(0),
            callers: AtomicUsize::new(0),
            runs: AtomicUsize::new(0),
            around: AtomicUsize::new(0),
            helpers,
            contention: CpuContention::new(),
            pool,
        }
    }

    /// Maximum number of threads of a job, including its caller.
    pub(crate) fn threads(&self) -> usize {
        self.helpers + 1
    }

    /// Same as [`CurrentWorkerPool::run`]; kernels inside the job use at most `limit` threads.
    pub fn run(self: &Arc<WorkerPoolShared>, most: usize, limit: usize, job: WorkerJobFn<'_>) {
        let nested = INSIDE.get();
        // Concurrent callers share the helpers equally; more threads would only compete for the
        // cores.
        let callers = match nested {
            true => 1,
            false => self.callers.fetch_add(1, Relaxed) + 1,
        };
        let helpers = (most - 1).min((self.threads() / callers).saturating_sub(1));
        let slot = match helpers {
            0 => None,
            _ => self.slots.iter().find(|slot| slot.take()),
        };
        INSIDE.set(true);
        let own = match slot {
            None => catch_unwind(AssertUnwindSafe(|| job(0))),
            Some(slot) => {
                slot.max_threads.store(limit, Relaxed);
                self.share(slot, [helpers, callers], job)
            }
        };
        INSIDE.set(nested);
        if !nested {
            self.callers.fetch_sub(1, Relaxed);
        }
        own.unwrap_or_else(|payload| resume_unwind(payload));
    }

    /// Runs a job with up to `helpers` helpers while `callers` callers are active. When this
    /// returns, the slot is free for another job.
    fn share(
        self: &Arc<WorkerPoolShared>,
        slot: &WorkerJobSlot,
        [helpers, callers]: [usize; 2],
        job: WorkerJobFn<'_>,
    ) -> thread::Result<()> {
        // SAFETY: only the lifetime changes. This function returns only when no helper can join the
        // job and none works on it. A panic cannot return earlier, because panics of jobs are
        // caught.
        let lasting: WorkerJobFn<'static> =
            unsafe { std::mem::transmute::<WorkerJobFn<'_>, WorkerJobFn<'static>>(job) };
        // SAFETY: this caller owns the slot, whose state is 0.
        unsafe { *slot.job.get() = Some(lasting) };
        slot.state.store(helpers as u64 * PLACE, SeqCst);
        self.posted.fetch_add(1, SeqCst);
        let called = self.call(helpers.saturating_mul(callers).min(self.helpers));
        let own = called.and_then(|()| catch_unwind(AssertUnwindSafe(|| job(0))));
        slot.close(&self.contention, self.patience.preemption_threshold);
        // SAFETY: this caller owns the slot, whose state is 0.
        unsafe { *slot.job.get() = None };
        let helpers = lock(&slot.panic).take();
        slot.is_claimed.store(false, Release);
        own.and(helpers.map_or(Ok(()), Err))
    }

    /// Requests helpers from rayon until `wanted` of them are active or requested.
    ///
    /// # Errors
    /// The payload of a panic in rayon, after which no further helpers are requested.
    fn call(self: &Arc<WorkerPoolShared>, wanted: usize) -> thread::Result<()> {
        while self.arrive(wanted) {
            CALLED.fetch_add(1, Relaxed);
            let shared = self.clone();
            let help = move || shared.help();
            let spawned = catch_unwind(AssertUnwindSafe(|| match &self.pool {
                Some(pool) => pool.spawn(help),
                None => rayon::spawn(help),
            }));
            if let Err(payload) = spawned {
                self.around.fetch_sub(1, SeqCst);
                return Err(payload);
            }
        }
        Ok(())
    }

    /// Counts one more helper in `around` and returns true, unless `around` has reached `wanted`.
    fn arrive(&self, wanted: usize) -> bool {
        let more = |around: usize| (around < wanted).then_some(around + 1);
        self.around.fetch_update(SeqCst, SeqCst, more).is_ok()
    }

    /// Main loop of a helper on a thread of the rayon pool.
    fn help(self: Arc<WorkerPoolShared>) {
        let was_inside = INSIDE.replace(true);
        // A helper that starts after the last run has ended does not spin.
        let mut may_stay = self.runs.load(SeqCst) > 0;
        loop {
            let seen = self.posted.load(SeqCst);
            while self.slots.iter().any(|slot| slot.help(&self)) {
                may_stay = true;
            }
            if may_stay && self.spin(seen) {
                continue;
            }
            self.around.fetch_sub(1, SeqCst);
            // A caller increments `posted` before it counts the active helpers, so a job posted in
            // the meantime is visible here.
            if self.posted.load(SeqCst) == seen || !self.arrive(self.helpers) {
                break;
            }
        }
        INSIDE.set(was_inside);
    }

    /// Spins for another job. Returns true if a job was posted.
    fn spin(&self, seen: usize) -> bool {
        let start = Instant::now();
        while !self.contention.is_contended() {
            for _ in 0..16 {
                for _ in 0..32 {
                    if self.posted.load(Acquire) != seen {
                        return true;
                    }
                    std::hint::spin_loop();
                }
                if start.elapsed() > self.patience.spin_time {
                    return false;
                }
            }
            self.contention.yields(self.patience.preemption_threshold);
        }
        self.posted.load(Acquire) != seen
    }
}

impl WorkerJobSlot {
    fn take(&self) -> bool {
        !self.is_claimed.load(Relaxed) && !self.is_claimed.swap(true, Acquire)
    }

    /// Joins the job and works on it, if another helper may join.
    fn help(&self, shared: &Arc<WorkerPoolShared>) -> bool {
        let enter = |state: u64| (state >= PLACE).then(|| state - PLACE + 1);
        let Ok(before) = self.state.fetch_update(Acquire, Relaxed, enter) else {
            return false;
        };
        // SAFETY: the caller wrote the job before it allowed helpers to join, and does not change
        // it until this thread has left.
        let job = unsafe { *self.job.get() };
        let place = (before / PLACE) as usize;
        let current = CurrentWorkerPool {
            shared: shared.clone(),
            max_threads: self.max_threads.load(Relaxed),
        };
        let run = |job: WorkerJobFn<'static>| {
            with(current, || catch_unwind(AssertUnwindSafe(|| job(place))))
        };
        if let Some(Err(payload)) = job.map(run) {
            let mut first = lock(&self.panic);
            match *first {
                None => *first = Some(payload),
                // The payload is forgotten, because dropping it might panic again.
                Some(_) => std::mem::forget(payload),
            }
        }
        self.state.fetch_sub(1, SeqCst);
        // A woken caller checks `state` again: the slot may already belong to another caller, so a
        // wake-up may be late.
        if self.is_awaited.load(SeqCst)
            && let Some(caller) = &*lock(&self.sleeper)
        {
            caller.unpark();
        }
        true
    }

    /// Stops further helpers from joining the job, and waits until none works on it.
    fn close(&self, crowd: &CpuContention, late: Duration) {
        /// The wait spins this many times, then yields, then sleeps; spinning and yielding take
        /// about 100 us each.
        const SPINS: usize = 1 << 12;
        const YIELDS: usize = SPINS + (1 << 8);
        self.state.fetch_and(PLACE - 1, SeqCst);
        let is_crowded = crowd.is_contended();
        let mut turns = if is_crowded { YIELDS } else { 0 };
        while self.state.load(Acquire) != 0 {
            turns += 1;
            match turns {
                ..SPINS => std::hint::spin_loop(),
                SPINS..YIELDS if crowd.yields(late) => {}
                _ => return self.sleep(),
            }
        }
    }

    /// Sleeps until no helper works on the job.
    fn sleep(&self) {
        *lock(&self.sleeper) = Some(thread::current());
        self.is_awaited.store(true, SeqCst);
        while self.state.load(SeqCst) != 0 {
            thread::park();
        }
        self.is_awaited.store(false, SeqCst);
        *lock(&self.sleeper) = None;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
