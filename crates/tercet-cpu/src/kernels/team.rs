//! A team of threads that help callers with their jobs, one kernel after the other.
//!
//! Kernels are often shorter than a sleeping thread takes to wake. So a worker that runs out of work
//! spins for [`SPIN`] before it sleeps, and a caller never waits for one that has not come: it posts
//! a job in a free [`Slot`], works on it itself, closes it, and waits for those inside only.
//!
//! Jobs of several callers share the workers. A job may post jobs of its own: a caller waits for
//! work that has begun, which never waits for the caller, so that no cycle can form. Nothing is
//! allocated for a job.
//!
//! A panic in a job reaches its caller when all have left; the team stays whole.

use std::any::Any;
use std::cell::{Cell, RefCell, UnsafeCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// How long a worker without work stays awake: longer than most serial steps between two kernels.
const SPIN: Duration = Duration::from_micros(200);
/// Jobs that run at once; more are run by their callers alone.
const SLOTS: usize = 8;
/// Threads of a team at most.
const MOST_THREADS: usize = u16::MAX as usize;

/// What each who takes part in a job calls, with a number of its own.
type Job<'a> = &'a (dyn Fn(usize) + Sync + 'a);

/// A team. Its threads end when it is dropped, after the jobs they are in.
#[derive(Debug)]
pub(crate) struct Team(Arc<Shared>);

/// What callers and workers of a team share; where nobody holds the [`Team`] any more, callers work
/// alone.
pub(crate) struct Shared {
    slots: [Slot; SLOTS],
    /// How many jobs were posted: who has seen this number has seen all jobs.
    posted: AtomicUsize,
    /// Callers outside of any job that have posted one.
    callers: AtomicUsize,
    sleepers: AtomicUsize,
    workers: Box<[Worker]>,
    stop: AtomicBool,
}

/// A thread of a team.
#[derive(Debug, Default)]
struct Worker {
    asleep: AtomicBool,
    thread: OnceLock<Thread>,
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
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// A place for another thread in a job.
const PLACE: u64 = 1 << 32;

// SAFETY: `job` is written only by the one caller who took the slot and while `state` is 0, and read
// only by those whose entering the state has counted; the reference it holds can be shared.
unsafe impl Sync for Slot {}

thread_local! {
    /// The team that kernels on this thread use, if not the one of the process.
    static CURRENT: RefCell<Option<Arc<Shared>>> = const { RefCell::new(None) };
    /// Whether the thread is inside a job.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

impl Team {
    /// A team of `threads` (0: as many as there are cores), of which the caller of a job is one.
    ///
    /// # Errors
    /// When the system gives no threads.
    pub(crate) fn new(threads: usize) -> std::io::Result<Team> {
        let threads = match threads {
            0 => cores(),
            n => n.min(MOST_THREADS),
        };
        let team = Team(Arc::new(Shared::new(threads - 1)));
        for me in 0..threads - 1 {
            let shared = team.0.clone();
            let thread = thread::Builder::new().name(format!("tercet-cpu-{me}"));
            thread.spawn(move || shared.work(me))?;
        }
        Ok(team)
    }

    /// Runs `f` so that its kernels use this team.
    pub(crate) fn install<R>(&self, f: impl FnOnce() -> R) -> R {
        install(self.0.clone(), f)
    }

    pub(crate) fn threads(&self) -> usize {
        self.0.threads()
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.0.stop.store(true, SeqCst);
        self.0.posted.fetch_add(1, SeqCst);
        self.0.wake(usize::MAX);
    }
}

/// The team of the process, made at first use, of as many threads as there are cores or as
/// `RAYON_NUM_THREADS` says (the name by which libraries are told); of one where the system gives none.
pub(crate) fn of_process() -> &'static Team {
    static TEAM: OnceLock<Team> = OnceLock::new();
    TEAM.get_or_init(|| {
        let said = std::env::var("RAYON_NUM_THREADS").ok();
        let threads = said.and_then(|n| n.trim().parse().ok()).unwrap_or(0);
        Team::new(threads).unwrap_or_else(|_| Team(Arc::new(Shared::new(0))))
    })
}

/// The team that kernels on this thread use.
pub(crate) fn current() -> Arc<Shared> {
    let own = CURRENT.with(|current| current.borrow().clone());
    own.unwrap_or_else(|| of_process().0.clone())
}

fn install<R>(shared: Arc<Shared>, f: impl FnOnce() -> R) -> R {
    /// Puts back what was there, after a panic too.
    struct Restore(Option<Arc<Shared>>);
    impl Drop for Restore {
        fn drop(&mut self) {
            CURRENT.with(|current| current.replace(self.0.take()));
        }
    }
    let _restore = Restore(CURRENT.with(|current| current.replace(Some(shared))));
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

impl Shared {
    fn new(workers: usize) -> Shared {
        Shared {
            slots: std::array::from_fn(|_| Slot {
                taken: AtomicBool::new(false),
                state: AtomicU64::new(0),
                job: UnsafeCell::new(None),
                panic: Mutex::new(None),
            }),
            posted: AtomicUsize::new(0),
            callers: AtomicUsize::new(0),
            sleepers: AtomicUsize::new(0),
            workers: (0..workers).map(|_| Worker::default()).collect(),
            stop: AtomicBool::new(false),
        }
    }

    /// How many work on a job at most, its caller among them.
    pub(crate) fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `job(0)` on this thread, and `job(i)` for some or none of `1..most` on others, each once;
    /// returns when all have returned.
    ///
    /// # Panics
    /// When one of them does.
    pub(crate) fn run(&self, most: usize, job: Job<'_>) {
        let nested = INSIDE.get();
        // Callers at once each get their part of the workers: more would only take cores from each other.
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
            Some(slot) => self.share(slot, helpers, job),
        };
        INSIDE.set(nested);
        if !nested {
            self.callers.fetch_sub(1, Relaxed);
        }
        own.unwrap_or_else(|payload| resume_unwind(payload));
    }

    /// Runs a job with up to `helpers` workers; the slot is free again afterwards.
    fn share(&self, slot: &Slot, helpers: usize, job: Job<'_>) -> thread::Result<()> {
        // SAFETY: the lifetime alone is changed. This function returns only when the slot has no
        // places and nobody is inside, neither by a panic before: those of jobs are caught.
        let lasting: Job<'static> = unsafe { std::mem::transmute::<Job<'_>, Job<'static>>(job) };
        // SAFETY: this caller took the slot, whose state is 0.
        unsafe { *slot.job.get() = Some(lasting) };
        slot.state.store(helpers as u64 * PLACE, SeqCst);
        self.posted.fetch_add(1, SeqCst);
        if self.sleepers.load(SeqCst) > 0 {
            self.wake(helpers);
        }
        let own = catch_unwind(AssertUnwindSafe(|| job(0)));
        slot.close();
        // SAFETY: as above.
        unsafe { *slot.job.get() = None };
        let helpers = lock(&slot.panic).take();
        slot.taken.store(false, Release);
        own.and(helpers.map_or(Ok(()), Err))
    }

    /// Wakes sleeping workers, so many at most.
    fn wake(&self, most: usize) {
        let asleep = self
            .workers
            .iter()
            .filter(|worker| worker.asleep.load(Relaxed) && worker.asleep.swap(false, SeqCst));
        for worker in asleep.take(most) {
            self.sleepers.fetch_sub(1, SeqCst);
            // Known before a worker first sleeps.
            worker.thread.get().into_iter().for_each(Thread::unpark);
            if self.sleepers.load(SeqCst) == 0 {
                return;
            }
        }
    }

    /// The life of a worker.
    fn work(self: Arc<Shared>, me: usize) {
        let _ = self.workers[me].thread.set(thread::current());
        INSIDE.set(true);
        install(self.clone(), || {
            loop {
                let seen = self.posted.load(SeqCst);
                while self.slots.iter().any(Slot::help) {}
                if self.stop.load(SeqCst) {
                    return;
                }
                if !self.spin(seen) {
                    self.sleep(me, seen);
                }
            }
        });
    }

    /// Waits for another job for a while; whether one came.
    fn spin(&self, seen: usize) -> bool {
        let start = Instant::now();
        loop {
            for _ in 0..16 {
                for _ in 0..32 {
                    if self.posted.load(Acquire) != seen {
                        return true;
                    }
                    std::hint::spin_loop();
                }
                if start.elapsed() > SPIN {
                    return false;
                }
            }
            // Where there are more threads than cores, others may need this one.
            thread::yield_now();
        }
    }

    /// Sleeps until there is another job.
    fn sleep(&self, me: usize, seen: usize) {
        let asleep = &self.workers[me].asleep;
        asleep.store(true, SeqCst);
        self.sleepers.fetch_add(1, SeqCst);
        // A caller counts its job before it looks for sleepers.
        if self.posted.load(SeqCst) != seen {
            if asleep.swap(false, SeqCst) {
                self.sleepers.fetch_sub(1, SeqCst);
            }
            return;
        }
        while asleep.load(Acquire) {
            thread::park();
        }
    }
}

impl Slot {
    fn take(&self) -> bool {
        !self.taken.load(Relaxed) && !self.taken.swap(true, Acquire)
    }

    /// Takes part in the job, if there is a place.
    fn help(&self) -> bool {
        let enter = |state: u64| (state >= PLACE).then(|| state - PLACE + 1);
        let Ok(before) = self.state.fetch_update(Acquire, Relaxed, enter) else {
            return false;
        };
        // SAFETY: the caller wrote the job before it opened places, and lets it be until this thread
        // has left.
        let job = unsafe { *self.job.get() };
        let place = (before / PLACE) as usize;
        if let Some(Err(payload)) = job.map(|job| catch_unwind(AssertUnwindSafe(|| job(place)))) {
            let mut first = lock(&self.panic);
            match *first {
                None => *first = Some(payload),
                // Dropping it might panic once more.
                Some(_) => std::mem::forget(payload),
            }
        }
        self.state.fetch_sub(1, Release);
        true
    }

    /// Takes the places away and waits until nobody is inside.
    fn close(&self) {
        /// Turns of waiting awake, and until which others may have the core: about 100 us each.
        const SPINS: usize = 1 << 12;
        const YIELDS: usize = SPINS + (1 << 8);
        const NAP: Duration = Duration::from_micros(50);
        self.state.fetch_and(PLACE - 1, AcqRel);
        let mut turns = 0;
        while self.state.load(Acquire) != 0 {
            turns += 1;
            match turns {
                ..SPINS => std::hint::spin_loop(),
                SPINS..YIELDS => thread::yield_now(),
                _ => thread::sleep(NAP),
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
