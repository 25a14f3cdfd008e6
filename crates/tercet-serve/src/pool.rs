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
#[doc(hidden)]
pub struct WorkerThreads<W> {
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
    pub fn start(
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
    pub fn submit(
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
    pub async fn run_job<T: Send + 'static>(
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

    /// Usage of the workers.
    pub fn load(&self) -> PoolStatus {
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
