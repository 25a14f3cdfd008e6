//! Worker threads with a bounded queue. Each job has exclusive access to the state of one worker; a
//! job that finds the queue full is rejected.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::error::ApiError;

type PoolJob<W> = Box<dyn FnOnce(&mut W) + Send>;

/// The queue is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueFull;

/// Worker threads that each own a `W`.
pub(crate) struct WorkerThreads<W> {
    shared: Arc<PoolShared<W>>,
    threads: Vec<JoinHandle<()>>,
}

struct PoolShared<W> {
    state: Mutex<PoolState<W>>,
    changed: Condvar,
    max_waiting: usize,
}

struct PoolState<W> {
    jobs: VecDeque<PoolJob<W>>,
    idle: usize,
    closed: bool,
}

/// Current usage of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PoolStatus {
    pub(crate) workers: usize,
    pub(crate) busy: usize,
    pub(crate) waiting: usize,
}

impl<W> PoolShared<W> {
    fn lock(&self) -> MutexGuard<'_, PoolState<W>> {
        // No code that can panic runs while this lock is locked, so a poisoned state is valid.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<W: Send + 'static> WorkerThreads<W> {
    /// Starts a thread for each of `workers`. At most `max_waiting` jobs wait for a worker.
    ///
    /// # Errors
    /// Returns an error if the system cannot start a thread.
    pub(crate) fn start(
        name: &str,
        workers: Vec<W>,
        max_waiting: usize,
    ) -> std::io::Result<WorkerThreads<W>> {
        let state = PoolState {
            jobs: VecDeque::new(),
            idle: workers.len(),
            closed: false,
        };
        let shared = Arc::new(PoolShared {
            state: Mutex::new(state),
            changed: Condvar::new(),
            max_waiting,
        });
        let mut threads = Vec::new();
        for worker in workers {
            let shared = Arc::clone(&shared);
            let thread = std::thread::Builder::new().name(format!("tercet-{name}"));
            threads.push(thread.spawn(move || run_worker(&shared, worker))?);
        }
        Ok(WorkerThreads { shared, threads })
    }

    /// Queues a job, or returns an error if the queue is full.
    pub(crate) fn submit(
        &self,
        job: impl FnOnce(&mut W) + Send + 'static,
    ) -> Result<(), QueueFull> {
        let mut state = self.shared.lock();
        if state.jobs.len() >= self.shared.max_waiting + state.idle {
            return Err(QueueFull);
        }
        state.jobs.push_back(Box::new(job));
        self.shared.changed.notify_one();
        Ok(())
    }

    /// Runs a job on a worker and waits for its result. The job can call its second argument to
    /// learn whether to continue: it returns false after the deadline or after the client has
    /// disconnected.
    ///
    /// # Errors
    /// Returns an error if the queue is full, the deadline is exceeded or the job fails.
    #[cfg_attr(
        not(feature = "audio"),
        allow(dead_code, reason = "only speech recognition waits so")
    )]
    pub(crate) async fn run_job<T: Send + 'static>(
        &self,
        deadline: Duration,
        job: impl FnOnce(&mut W, &dyn Fn() -> bool) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let (send, receive) = oneshot::channel();
        let until = Instant::now() + deadline;
        let queued = self.submit(move |worker| {
            let go_on = || !send.is_closed() && Instant::now() < until;
            let done = match go_on() {
                true => job(worker, &go_on),
                false => Err(ApiError::deadline_exceeded()),
            };
            // A job that stopped early returns an incomplete result.
            let done = if go_on() {
                done
            } else {
                Err(ApiError::deadline_exceeded())
            };
            // Sending fails if the client has disconnected.
            let _ = send.send(done);
        });
        queued.map_err(|_| ApiError::overloaded())?;
        receive.await.map_err(|_| ApiError::worker_lost())?
    }

    pub(crate) fn load(&self) -> PoolStatus {
        let state = self.shared.lock();
        let workers = self.threads.len();
        let waiting = state.jobs.len().saturating_sub(state.idle);
        PoolStatus {
            workers,
            busy: workers - state.idle,
            waiting,
        }
    }
}

fn run_worker<W>(shared: &PoolShared<W>, mut worker: W) {
    let mut state = shared.lock();
    loop {
        if state.closed {
            return;
        }
        let Some(job) = state.jobs.pop_front() else {
            state = shared
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        state.idle -= 1;
        drop(state);
        // A panic is a bug in this program, triggered by one request. The request's channel closes,
        // and its client receives an error. The worker continues with the next job: jobs reset the
        // state that they use.
        let _ = catch_unwind(AssertUnwindSafe(|| job(&mut worker)));
        state = shared.lock();
        state.idle += 1;
    }
}

impl<W> Drop for WorkerThreads<W> {
    /// Finishes the running jobs. Queued jobs are dropped, so their clients receive an error.
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.closed = true;
        state.jobs.clear();
        self.shared.changed.notify_all();
        drop(state);
        for thread in self.threads.drain(..) {
            // The threads catch panics, so joining does not return one.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn jobs_beyond_the_queue_are_refused_and_panics_keep_the_worker() {
        let pool = WorkerThreads::start("test", vec![0u32], 1).unwrap();
        let (go, wait) = channel::<()>();
        let (send, seen) = channel();
        pool.submit(move |_| wait.recv().unwrap()).unwrap();
        // The first job is running or about to run; the second one is queued.
        pool.submit(|_| panic!("intentional panic of a test job"))
            .unwrap();
        let again = |_: &mut u32| ();
        assert_eq!(pool.submit(again), Err(QueueFull));
        assert_eq!(pool.load().waiting, 1);
        go.send(()).unwrap();
        let job = |send: std::sync::mpsc::Sender<u32>| {
            move |n: &mut u32| {
                *n += 1;
                send.send(*n).unwrap();
            }
        };
        while pool.submit(job(send.clone())) == Err(QueueFull) {
            std::thread::yield_now();
        }
        assert_eq!(seen.recv().unwrap(), 1);
        while pool.load().busy > 0 {
            std::thread::yield_now();
        }
        assert_eq!(
            pool.load(),
            PoolStatus {
                workers: 1,
                busy: 0,
                waiting: 0
            }
        );
    }
}
