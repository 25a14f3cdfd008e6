//! Threads of a rayon pool that help callers with their jobs, one kernel after the other.
//!
//! Kernels are often shorter than a sleeping thread takes to wake, and a job for rayon costs an allocation and a wake-up. So a
//! pool is asked for helpers once, not for each kernel: a helper takes the jobs that are posted, one after the other, and
//! when there is none it looks for one for a while ([`Patience`]) before it gives its thread back to the pool. A caller never waits for a
//! helper that has not come: it posts a job in a free [`Slot`], works on it itself, closes it, and waits for those inside
//! only. So it works alone where the pool has other things to do.
//!
//! Where another process wants the cores, spinning takes from this one the time that it needs later. A thread that gave its
//! core away for a moment and got it back late says so ([`Crowd`]); for a while then nobody waits awake.
//!
//! Jobs of several callers share the helpers. A job may post jobs of its own: a caller waits for
//! work that has begun, which never waits for the caller, so that no cycle can form. Nothing is
//! allocated for a job; calling a helper allocates what rayon needs for it.
//!
//! A panic in a job reaches its caller when all have left; helpers stay whole.

use std::any::Any;
use std::cell::{Cell, RefCell, UnsafeCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use rayon::{ThreadPool, ThreadPoolBuilder};

mod crowd;

use crowd::{Crowd, Patience};

/// Jobs that run at once; more are run by their callers alone.
const SLOTS: usize = 8;
/// Threads of a team at most.
const MOST_THREADS: usize = u16::MAX as usize;

/// What each who takes part in a job calls, with a number of its own.
type Job<'a> = &'a (dyn Fn(usize) + Sync + 'a);

/// A pool of threads that nobody else uses. They end when it is dropped, after the jobs they are in.
#[derive(Debug)]
pub(crate) struct Team(Arc<Shared>);

/// What callers and helpers share.
pub(crate) struct Shared {
    slots: [Slot; SLOTS],
    /// How many jobs were posted: who has seen this number has seen all jobs.
    posted: AtomicUsize,
    /// Callers outside of any job that have posted one.
    callers: AtomicUsize,
    /// Runs that use it now.
    runs: AtomicUsize,
    /// Helpers that were called and have not left.
    around: AtomicUsize,
    /// Helpers at most.
    helpers: usize,
    crowd: Crowd,
    patience: Patience,
    /// Where helpers come from: the pool that the caller's thread belongs to, the global one for others, or this one.
    pool: Option<ThreadPool>,
}

/// Room for a job.
#[repr(align(128))]
struct Slot {
    /// Whether a caller has it.
    taken: AtomicBool,
    /// [`PLACE`] for each place left, plus how many are inside.
    state: AtomicU64,
    /// Written by the caller who took the slot, while there are no places and nobody is inside.
    job: UnsafeCell<Option<Job<'static>>>,
    /// The most threads that kernels of the job may count on; written as `job` is.
    most: AtomicUsize,
    /// The caller, while it sleeps until nobody is inside.
    sleeper: Mutex<Option<Thread>>,
    is_awaited: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// A place for another thread in a job.
const PLACE: u64 = 1 << 32;

// SAFETY: `job` is written only by the one caller who took the slot and while `state` is 0, and read
// only by those whose entering the state has counted; the reference it holds can be shared.
unsafe impl Sync for Slot {}

/// What kernels on a thread use.
#[derive(Clone)]
pub(crate) struct Current {
    shared: Arc<Shared>,
    /// Of so many threads at most: a program has scratch memory for no more.
    most: usize,
}

thread_local! {
    static CURRENT: RefCell<Option<Current>> = const { RefCell::new(None) };
    /// What callers on this thread of a rayon pool use.
    static OF_WORKER: RefCell<Option<Arc<Shared>>> = const { RefCell::new(None) };
    /// Whether the thread is inside a job.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// How often a helper was called.
static CALLED: AtomicUsize = AtomicUsize::new(0);

/// How often pools were asked for a helper so far: each time allocates a job for rayon, which nothing else in a run does.
#[doc(hidden)]
pub fn helpers_called() -> usize {
    CALLED.load(Relaxed)
}

impl Team {
    /// A team of `threads` (0: as many as there are cores), of which the caller of a job is one.
    ///
    /// # Errors
    /// When the system gives no threads.
    pub(crate) fn new(threads: usize) -> std::io::Result<Team> {
        Team::with_patience(threads, Patience::USUAL)
    }

    fn with_patience(threads: usize, patience: Patience) -> std::io::Result<Team> {
        let threads = match threads {
            0 => cores(),
            n => n.min(MOST_THREADS),
        };
        let pool = match threads {
            1 => None,
            _ => {
                let named = ThreadPoolBuilder::new().thread_name(|i| format!("tercet-cpu-{i}"));
                let made = named.num_threads(threads - 1).build();
                Some(made.map_err(std::io::Error::other)?)
            }
        };
        let shared = Shared::new(threads - 1, pool);
        Ok(Team(Arc::new(Shared { patience, ..shared })))
    }

    pub(crate) fn shared(&self) -> Arc<Shared> {
        self.0.clone()
    }
}

/// What callers outside of rayon's threads use: helpers from the global pool, of none if the system gives no threads.
fn of_process() -> &'static Arc<Shared> {
    static SHARED: OnceLock<Arc<Shared>> = OnceLock::new();
    SHARED.get_or_init(|| {
        // An error with a source is one of the system; without, the pool is there already.
        let made = ThreadPoolBuilder::new().build_global();
        let has_none = made.is_err_and(|e| std::error::Error::source(&e).is_some());
        let threads = match has_none {
            true => 1,
            false => rayon::current_num_threads().min(MOST_THREADS),
        };
        Arc::new(Shared::new(threads - 1, None))
    })
}

/// What callers on this thread use: helpers from the pool that it belongs to.
pub(crate) fn of_caller() -> Arc<Shared> {
    if rayon::current_thread_index().is_none() {
        return of_process().clone();
    }
    OF_WORKER.with_borrow_mut(|own| {
        let shared = own.get_or_insert_with(|| {
            let threads = rayon::current_num_threads().min(MOST_THREADS);
            Arc::new(Shared::new(threads - 1, None))
        });
        shared.clone()
    })
}

/// What kernels on this thread use.
pub(crate) fn current() -> Current {
    let own = CURRENT.with_borrow(Clone::clone);
    own.unwrap_or_else(|| Current {
        shared: of_caller(),
        most: usize::MAX,
    })
}

/// Runs `f` so that its kernels use this, of so many threads at most.
pub(crate) fn install<R>(shared: Arc<Shared>, most: usize, f: impl FnOnce() -> R) -> R {
    struct Run(Arc<Shared>);
    impl Drop for Run {
        fn drop(&mut self) {
            self.0.runs.fetch_sub(1, SeqCst);
        }
    }
    shared.runs.fetch_add(1, SeqCst);
    let run = Run(shared.clone());
    let result = with(Current { shared, most }, f);
    drop(run);
    result
}

fn with<R>(current: Current, f: impl FnOnce() -> R) -> R {
    /// Puts back what was there, after a panic too.
    struct Restore(Option<Current>);
    impl Drop for Restore {
        fn drop(&mut self) {
            CURRENT.with(|current| current.replace(self.0.take()));
        }
    }
    let _restore = Restore(CURRENT.with(|own| own.replace(Some(current))));
    f()
}

fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("threads", &self.threads())
            .finish_non_exhaustive()
    }
}

impl Current {
    /// How many work on a job at most, its caller among them.
    pub(crate) fn threads(&self) -> usize {
        self.shared.threads().min(self.most)
    }

    /// Calls `job(0)` on this thread, and `job(i)` for some or none of `1..most` on others, each once;
    /// returns when all have returned.
    ///
    /// # Panics
    /// When one of them does.
    pub(crate) fn run(&self, most: usize, job: Job<'_>) {
        self.shared.run(most.min(self.threads()), self.most, job);
    }
}

impl Shared {
    fn new(helpers: usize, pool: Option<ThreadPool>) -> Shared {
        Shared {
            patience: Patience::USUAL,
            slots: std::array::from_fn(|_| Slot {
                taken: AtomicBool::new(false),
                state: AtomicU64::new(0),
                job: UnsafeCell::new(None),
                most: AtomicUsize::new(0),
                sleeper: Mutex::new(None),
                is_awaited: AtomicBool::new(false),
                panic: Mutex::new(None),
            }),
            posted: AtomicUsize::new(0),
            callers: AtomicUsize::new(0),
            runs: AtomicUsize::new(0),
            around: AtomicUsize::new(0),
            helpers,
            crowd: Crowd::new(),
            pool,
        }
    }

    /// How many work on a job at most, its caller among them.
    pub(crate) fn threads(&self) -> usize {
        self.helpers + 1
    }

    /// As [`Current::run`]; kernels in the job count on `limit` threads at most.
    fn run(self: &Arc<Shared>, most: usize, limit: usize, job: Job<'_>) {
        let nested = INSIDE.get();
        // Callers at once each get their part of the helpers: more would only take cores from each other.
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
                slot.most.store(limit, Relaxed);
                self.share(slot, [helpers, callers], job)
            }
        };
        INSIDE.set(nested);
        if !nested {
            self.callers.fetch_sub(1, Relaxed);
        }
        own.unwrap_or_else(|payload| resume_unwind(payload));
    }

    /// Runs a job with up to so many helpers, of one of so many callers; the slot is free again afterwards.
    fn share(
        self: &Arc<Shared>,
        slot: &Slot,
        [helpers, callers]: [usize; 2],
        job: Job<'_>,
    ) -> thread::Result<()> {
        // SAFETY: the lifetime alone is changed. This function returns only when the slot has no
        // places and nobody is inside, neither by a panic before: those of jobs are caught.
        let lasting: Job<'static> = unsafe { std::mem::transmute::<Job<'_>, Job<'static>>(job) };
        // SAFETY: this caller took the slot, whose state is 0.
        unsafe { *slot.job.get() = Some(lasting) };
        slot.state.store(helpers as u64 * PLACE, SeqCst);
        self.posted.fetch_add(1, SeqCst);
        let called = self.call(helpers.saturating_mul(callers).min(self.helpers));
        let own = called.and_then(|()| catch_unwind(AssertUnwindSafe(|| job(0))));
        slot.close(&self.crowd, self.patience.late);
        // SAFETY: as above.
        unsafe { *slot.job.get() = None };
        let helpers = lock(&slot.panic).take();
        slot.taken.store(false, Release);
        own.and(helpers.map_or(Ok(()), Err))
    }

    /// Calls helpers until so many are around or on their way.
    ///
    /// # Errors
    /// The payload of a panic in rayon, which leaves helpers uncalled.
    fn call(self: &Arc<Shared>, wanted: usize) -> thread::Result<()> {
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

    /// Counts another helper, if there are fewer than so many.
    fn arrive(&self, wanted: usize) -> bool {
        let more = |around: usize| (around < wanted).then_some(around + 1);
        self.around.fetch_update(SeqCst, SeqCst, more).is_ok()
    }

    /// What a helper does on a thread of the pool.
    fn help(self: Arc<Shared>) {
        let was_inside = INSIDE.replace(true);
        // One that comes when all is done does not wait for more.
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
            // A caller counts its job before it looks who is around.
            if self.posted.load(SeqCst) == seen || !self.arrive(self.helpers) {
                break;
            }
        }
        INSIDE.set(was_inside);
    }

    /// Waits for another job for a while; whether one came.
    fn spin(&self, seen: usize) -> bool {
        let start = Instant::now();
        while !self.crowd.is_there() {
            for _ in 0..16 {
                for _ in 0..32 {
                    if self.posted.load(Acquire) != seen {
                        return true;
                    }
                    std::hint::spin_loop();
                }
                if start.elapsed() > self.patience.stay {
                    return false;
                }
            }
            self.crowd.yields(self.patience.late);
        }
        self.posted.load(Acquire) != seen
    }
}

impl Slot {
    fn take(&self) -> bool {
        !self.taken.load(Relaxed) && !self.taken.swap(true, Acquire)
    }

    /// Takes part in the job, if there is a place.
    fn help(&self, shared: &Arc<Shared>) -> bool {
        let enter = |state: u64| (state >= PLACE).then(|| state - PLACE + 1);
        let Ok(before) = self.state.fetch_update(Acquire, Relaxed, enter) else {
            return false;
        };
        // SAFETY: the caller wrote the job before it opened places, and lets it be until this thread
        // has left.
        let job = unsafe { *self.job.get() };
        let place = (before / PLACE) as usize;
        let current = Current {
            shared: shared.clone(),
            most: self.most.load(Relaxed),
        };
        let run =
            |job: Job<'static>| with(current, || catch_unwind(AssertUnwindSafe(|| job(place))));
        if let Some(Err(payload)) = job.map(run) {
            let mut first = lock(&self.panic);
            match *first {
                None => *first = Some(payload),
                // Dropping it might panic once more.
                Some(_) => std::mem::forget(payload),
            }
        }
        self.state.fetch_sub(1, SeqCst);
        // Whoever sleeps there now looks again: it may be another caller already.
        if self.is_awaited.load(SeqCst)
            && let Some(caller) = &*lock(&self.sleeper)
        {
            caller.unpark();
        }
        true
    }

    /// Takes the places away and waits until nobody is inside.
    fn close(&self, crowd: &Crowd, late: Duration) {
        /// Turns of waiting awake, and until which others may have the core: about 100 us each.
        const SPINS: usize = 1 << 12;
        const YIELDS: usize = SPINS + (1 << 8);
        self.state.fetch_and(PLACE - 1, SeqCst);
        let is_crowded = crowd.is_there();
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

    /// Sleeps until nobody is inside.
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

#[cfg(test)]
mod tests;
