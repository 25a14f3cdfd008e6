//! Workers with a bounded queue: each job has one worker's state for itself, and one that finds no room is refused.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::error::Refusal;

type Job<W> = Box<dyn FnOnce(&mut W) + Send>;

/// The queue is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;

/// Threads that each own a `W`.
pub(crate) struct Pool<W> {
    shared: Arc<Shared<W>>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared<W> {
    state: Mutex<State<W>>,
    changed: Condvar,
    most_waiting: usize,
}

struct State<W> {
    jobs: VecDeque<Job<W>>,
    idle: usize,
    closed: bool,
}

/// What a pool does now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) workers: usize,
    pub(crate) busy: usize,
    pub(crate) waiting: usize,
}

impl<W> Shared<W> {
    fn lock(&self) -> MutexGuard<'_, State<W>> {
        // Nothing that can panic runs under this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<W: Send + 'static> Pool<W> {
    /// A thread for each of `workers`; at most `most_waiting` jobs wait for one.
    ///
    /// # Errors
    /// What the system says where a thread cannot be started.
    pub(crate) fn start(
        name: &str,
        workers: Vec<W>,
        most_waiting: usize,
    ) -> std::io::Result<Pool<W>> {
        let state = State {
            jobs: VecDeque::new(),
            idle: workers.len(),
            closed: false,
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            changed: Condvar::new(),
            most_waiting,
        });
        let mut threads = Vec::new();
        for worker in workers {
            let shared = Arc::clone(&shared);
            let thread = std::thread::Builder::new().name(format!("tercet-{name}"));
            threads.push(thread.spawn(move || work(&shared, worker))?);
        }
        Ok(Pool { shared, threads })
    }

    /// Queues a job, or refuses it.
    pub(crate) fn submit(&self, job: impl FnOnce(&mut W) + Send + 'static) -> Result<(), Full> {
        let mut state = self.shared.lock();
        if state.jobs.len() >= self.shared.most_waiting + state.idle {
            return Err(Full);
        }
        state.jobs.push_back(Box::new(job));
        self.shared.changed.notify_one();
        Ok(())
    }

    /// Runs a job on a worker and waits for what it gives. The job is told whether it is still wanted: until the deadline, and
    /// as long as somebody waits.
    ///
    /// # Errors
    /// A full queue, the deadline, what the job fails with.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        deadline: Duration,
        job: impl FnOnce(&mut W, &dyn Fn() -> bool) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        let (send, receive) = oneshot::channel();
        let until = Instant::now() + deadline;
        let queued = self.submit(move |worker| {
            let go_on = || !send.is_closed() && Instant::now() < until;
            let done = match go_on() {
                true => job(worker, &go_on),
                false => Err(Refusal::late()),
            };
            // What was left early is not whole.
            let done = if go_on() { done } else { Err(Refusal::late()) };
            // Who has left needs no answer.
            let _ = send.send(done);
        });
        queued.map_err(|_| Refusal::busy())?;
        receive.await.map_err(|_| Refusal::lost())?
    }

    pub(crate) fn load(&self) -> Load {
        let state = self.shared.lock();
        let workers = self.threads.len();
        let waiting = state.jobs.len().saturating_sub(state.idle);
        Load {
            workers,
            busy: workers - state.idle,
            waiting,
        }
    }
}

fn work<W>(shared: &Shared<W>, mut worker: W) {
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
        // A panic is a bug of ours that one request met: its client is told so by the end of the answers it waits
        // for, and the others keep this worker. Jobs begin by resetting what they use.
        let _ = catch_unwind(AssertUnwindSafe(|| job(&mut worker)));
        state = shared.lock();
        state.idle += 1;
    }
}

impl<W> Drop for Pool<W> {
    /// Waits for the jobs that run; those that wait are dropped, which their clients see.
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.closed = true;
        state.jobs.clear();
        self.shared.changed.notify_all();
        drop(state);
        for thread in self.threads.drain(..) {
            // Its panics were caught.
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
        let pool = Pool::start("test", vec![0u32], 1).unwrap();
        let (go, wait) = channel::<()>();
        let (send, seen) = channel();
        pool.submit(move |_| wait.recv().unwrap()).unwrap();
        // One runs or is about to, one waits.
        pool.submit(|_| panic!("a job that panics, on purpose"))
            .unwrap();
        let again = |_: &mut u32| ();
        assert_eq!(pool.submit(again), Err(Full));
        assert_eq!(pool.load().waiting, 1);
        go.send(()).unwrap();
        let job = |send: std::sync::mpsc::Sender<u32>| {
            move |n: &mut u32| {
                *n += 1;
                send.send(*n).unwrap();
            }
        };
        while pool.submit(job(send.clone())) == Err(Full) {
            std::thread::yield_now();
        }
        assert_eq!(seen.recv().unwrap(), 1);
        while pool.load().busy > 0 {
            std::thread::yield_now();
        }
        assert_eq!(
            pool.load(),
            Load {
                workers: 1,
                busy: 0,
                waiting: 0
            }
        );
    }
}
