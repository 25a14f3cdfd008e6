//! A worker that computes the rows of waiting requests together. What waits while a batch runs
//! becomes the next batch, so a lone request never waits for others.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use tokio::sync::oneshot;

use crate::error::ApiError;
use crate::fair_queue::FairQueue;
use crate::pool::PoolStatus;
use crate::queue_ticket::QueueTicket;

/// Maximum rows of the requests in a batch; a request with more rows runs alone.
pub const MAX_ROWS: usize = 256;

/// A computation over rows, which returns a result for each. It can call its second argument
/// between parts to learn whether to continue.
#[doc(hidden)]
pub trait BatchFunction<I, O>:
    FnMut(Vec<I>, &mut dyn FnMut() -> bool) -> Result<Vec<O>, ApiError> + Send + 'static
{
}

impl<I, O, F> BatchFunction<I, O> for F where
    F: FnMut(Vec<I>, &mut dyn FnMut() -> bool) -> Result<Vec<O>, ApiError> + Send + 'static
{
}

/// A worker thread with a bounded queue of requests for rows.
#[doc(hidden)]
pub struct RowBatcher<I, O> {
    shared: Arc<BatcherShared<I, O>>,
    thread: Option<JoinHandle<()>>,
}

struct BatcherShared<I, O> {
    state: Mutex<BatcherState<I, O>>,
    changed: Condvar,
    max_waiting: usize,
}

struct BatcherState<I, O> {
    requests: FairQueue<RowRequest<I, O>>,
    busy: bool,
    closed: bool,
}

/// The rows of a request.
struct RowRequest<I, O> {
    rows: Vec<I>,
    ticket: QueueTicket,
    send: oneshot::Sender<Result<Vec<O>, ApiError>>,
}

impl<I, O> RowRequest<I, O> {
    /// Whether the client waits, and the deadline has not passed.
    fn is_wanted(&self) -> bool {
        !self.send.is_closed() && !self.ticket.is_late()
    }

    fn answer(self, result: Result<Vec<O>, ApiError>) {
        // A computation that stopped early returns an incomplete result.
        let result = match self.ticket.is_late() {
            true => Err(self.ticket.late()),
            false => result,
        };
        // Sending fails if the client has disconnected.
        let _ = self.send.send(result);
    }
}

impl<I, O> BatcherShared<I, O> {
    fn lock(&self) -> MutexGuard<'_, BatcherState<I, O>> {
        // No code that can panic runs while this lock is locked, so a poisoned state is valid.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<I: Clone + Send + 'static, O: Send + 'static> RowBatcher<I, O> {
    /// Starts the worker. At most `max_waiting` requests wait for it.
    ///
    /// # Errors
    /// Returns an error if the system cannot start a thread.
    pub fn start(
        name: &str,
        max_waiting: usize,
        mut compute: impl BatchFunction<I, O>,
    ) -> std::io::Result<RowBatcher<I, O>> {
        let state = BatcherState {
            requests: FairQueue::new(),
            busy: false,
            closed: false,
        };
        let shared = Arc::new(BatcherShared {
            state: Mutex::new(state),
            changed: Condvar::new(),
            max_waiting,
        });
        let own = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name(format!("tercet-{name}"));
        let thread = thread.spawn(move || {
            while let Some(batch) = next_batch(&own) {
                run_batch(batch, &mut compute);
                own.lock().busy = false;
            }
        })?;
        Ok(RowBatcher {
            shared,
            thread: Some(thread),
        })
    }

    /// Results of `rows`, in order.
    ///
    /// # Errors
    /// Returns an error if the queue is full, the time in the queue or the deadline is exceeded, or the
    /// computation fails.
    pub async fn run(&self, rows: Vec<I>, ticket: &QueueTicket) -> Result<Vec<O>, ApiError> {
        let (send, receive) = oneshot::channel();
        let request = RowRequest {
            rows,
            ticket: ticket.clone(),
            send,
        };
        let (id, waits) = {
            let mut state = self.shared.lock();
            let idle = usize::from(!state.busy);
            let capacity = self.shared.max_waiting.saturating_add(idle);
            let displaced = state.requests.make_room(ticket.order, 1, capacity);
            for other in displaced.map_err(|_| ticket.refused())? {
                let refused = other.ticket.refused();
                other.answer(Err(refused));
            }
            let waits = state.requests.len() >= idle;
            (state.requests.push(ticket.order, request), waits)
        };
        self.shared.changed.notify_one();
        let leave = || self.shared.lock().requests.remove(id).is_some();
        ticket.result(receive, waits, leave).await
    }
}

impl<I, O> RowBatcher<I, O> {
    /// Usage of the worker.
    pub fn load(&self) -> PoolStatus {
        let state = self.shared.lock();
        let busy = usize::from(state.busy);
        PoolStatus {
            workers: 1,
            busy,
            waiting: state.requests.len().saturating_sub(1 - busy),
        }
    }
}

/// Waits for requests and takes those of the next batch; `None` after the batcher was closed.
fn next_batch<I, O>(shared: &BatcherShared<I, O>) -> Option<Vec<RowRequest<I, O>>> {
    let mut state = shared.lock();
    loop {
        if state.closed {
            return None;
        }
        // Batches follow each other, so requests of earlier ones do not run any more.
        state.requests.set_running(HashMap::new());
        if let Some(first) = state.requests.pop() {
            let mut rows = first.rows.len();
            let mut batch = vec![first];
            while let Some(next) = state.requests.peek() {
                rows += next.rows.len();
                if rows > MAX_ROWS {
                    break;
                }
                batch.extend(state.requests.pop());
            }
            batch
                .iter()
                .for_each(|request| request.ticket.count_start());
            state.busy = true;
            return Some(batch);
        }
        state = shared
            .changed
            .wait(state)
            .unwrap_or_else(PoisonError::into_inner);
    }
}

/// Computes a batch and answers its requests. If the computation fails, each request runs alone, so
/// that a request cannot fail others. A panic is a bug in this program, triggered by one request,
/// and an error for it.
fn run_batch<I: Clone, O>(batch: Vec<RowRequest<I, O>>, compute: &mut impl BatchFunction<I, O>) {
    let (mut batch, unwanted): (Vec<_>, Vec<_>) =
        batch.into_iter().partition(RowRequest::is_wanted);
    for request in unwanted {
        request.answer(Err(ApiError::deadline_exceeded()));
    }
    if batch.len() > 1 {
        let rows: Vec<I> = batch
            .iter()
            .flat_map(|request| request.rows.clone())
            .collect();
        let count = rows.len();
        let computed = catch_unwind(AssertUnwindSafe(|| {
            compute(rows, &mut || batch.iter().any(RowRequest::is_wanted))
        }));
        if let Ok(Ok(results)) = computed
            && results.len() == count
        {
            let mut results = results.into_iter();
            for request in batch {
                let own = results.by_ref().take(request.rows.len()).collect();
                request.answer(Ok(own));
            }
            return;
        }
    }
    for mut request in batch.drain(..) {
        let rows = std::mem::take(&mut request.rows);
        let result = catch_unwind(AssertUnwindSafe(|| {
            compute(rows, &mut || request.is_wanted())
        }));
        request.answer(result.unwrap_or_else(|_| Err(ApiError::worker_lost())));
    }
}

impl<I, O> Drop for RowBatcher<I, O> {
    /// Finishes the running batch. Waiting requests are dropped, so their clients receive an error.
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.closed = true;
        state.requests.clear();
        self.shared.changed.notify_all();
        drop(state);
        if let Some(thread) = self.thread.take() {
            // The thread catches panics, so joining does not return one.
            let _ = thread.join();
        }
    }
}
