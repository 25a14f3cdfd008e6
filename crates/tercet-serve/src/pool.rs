//! Worker threads with a bounded queue ([`FairQueue`]). Each job has exclusive access to the state of one
//! worker.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use tokio::sync::oneshot;

use crate::error::ApiError;
use crate::fair_queue::FairQueue;
pub(crate) use crate::metrics::PoolStatus;
use crate::queue_ticket::QueueTicket;

/// The work of a job. It is called with a worker, or with `None` if the job loses its place in the
/// queue.
type PoolTask<W> = Box<dyn FnOnce(Option<&mut W>) + Send>;

/// A queued job.
struct PoolJob<W> {
    ticket: QueueTicket,
    run: PoolTask<W>,
}

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
    jobs: FairQueue<PoolJob<W>>,
    idle: usize,
    closed: bool,
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
            jobs: FairQueue::new(),
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

    /// Queues a job. Returns its id in the queue, and whether it waits for a worker.
    ///
    /// # Errors
    /// 503 if the queue is full, and no waiting job has to stand back.
    fn submit(
        &self,
        ticket: &QueueTicket,
        job: impl FnOnce(Option<&mut W>) + Send + 'static,
    ) -> Result<(u64, bool), ApiError> {
        let mut state = self.shared.lock();
        let capacity = self.shared.max_waiting.saturating_add(state.idle);
        let displaced = state.jobs.make_room(ticket.order, 1, capacity);
        for other in displaced.map_err(|_| ticket.refused())? {
            (other.run)(None);
        }
        let job = PoolJob {
            ticket: ticket.clone(),
            run: Box::new(job),
        };
        let waits = state.jobs.len() >= state.idle;
        let id = state.jobs.push(ticket.order, job);
        self.shared.changed.notify_one();
        Ok((id, waits))
    }

    /// Runs a job on a worker and waits for its result. The job can call its second argument to
    /// learn whether to continue: it returns false after the deadline or after the client has
    /// disconnected.
    ///
    /// # Errors
    /// Returns an error if the queue is full, the time in the queue or the deadline is exceeded, or the
    /// job fails.
    #[cfg_attr(
        not(feature = "audio"),
        allow(dead_code, reason = "only speech recognition waits so")
    )]
    pub(crate) async fn run_job<T: Send + 'static>(
        &self,
        ticket: &QueueTicket,
        job: impl FnOnce(&mut W, &dyn Fn() -> bool) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let (send, receive) = oneshot::channel();
        let own = ticket.clone();
        let (id, waits) = self.submit(ticket, move |worker| {
            let Some(worker) = worker else {
                let _ = send.send(Err(own.refused()));
                return;
            };
            let go_on = || !send.is_closed() && !own.is_late();
            let done = match go_on() {
                true => job(worker, &go_on),
                false => Err(ApiError::deadline_exceeded()),
            };
            // A job that stopped early returns an incomplete result.
            let done = match own.is_late() {
                true => Err(own.late()),
                false => done,
            };
            // Sending fails if the client has disconnected.
            let _ = send.send(done);
        })?;
        let leave = || self.shared.lock().jobs.remove(id).is_some();
        ticket.result(receive, waits, leave).await
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
        let Some(job) = state.jobs.pop() else {
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
        let PoolJob { ticket, run } = job;
        ticket.count_start();
        let _ = catch_unwind(AssertUnwindSafe(|| run(Some(&mut worker))));
        state = shared.lock();
        state.jobs.end(ticket.order.key);
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
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::queue_ticket::tests::ticket;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn jobs_beyond_the_queue_are_refused_and_panics_keep_the_worker() {
        let pool = WorkerThreads::start("test", vec![0u32], 1).unwrap();
        let long = ticket(LONG);
        let (go, wait) = channel::<()>();
        let (send, seen) = channel();
        pool.submit(&long, move |_| wait.recv().unwrap()).unwrap();
        // The first job is running or about to run; the second one is queued.
        pool.submit(&long, |_| panic!("intentional panic of a test job"))
            .unwrap();
        let refused = pool.submit(&long, |_| ()).unwrap_err();
        assert_eq!(refused, ApiError::overloaded());
        assert_eq!(pool.load().waiting, 1);
        go.send(()).unwrap();
        let job = |send: std::sync::mpsc::Sender<u32>| {
            move |n: Option<&mut u32>| {
                let n = n.unwrap();
                *n += 1;
                send.send(*n).unwrap();
            }
        };
        while pool.submit(&long, job(send.clone())).is_err() {
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

    #[test]
    fn a_job_that_waits_too_long_or_for_nobody_leaves_the_queue() {
        let pool = WorkerThreads::start("test", vec![0u32], 2).unwrap();
        let (go, wait) = channel::<()>();
        let first = pool.submit(&ticket(LONG), move |_| wait.recv().unwrap());
        assert!(first.is_ok());
        while pool.load().busy == 0 {
            std::thread::yield_now();
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        runtime.block_on(async {
            let short = ticket(Duration::from_millis(20));
            let late = pool.run_job(&short, |_, _| Ok(1)).await;
            assert_eq!(late, Err(ApiError::deadline_exceeded()));
            let long = ticket(LONG);
            let left = pool.run_job(&long, |_, _| Ok(1));
            let left = tokio::time::timeout(Duration::from_millis(20), left).await;
            assert!(left.is_err());
        });
        assert_eq!(pool.load().waiting, 0);
        go.send(()).unwrap();
    }
}
