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
const MAX_ROWS: usize = 256;

/// A computation over rows, which returns a result for each. It can call its second argument
/// between parts to learn whether to continue.
pub(crate) trait BatchFunction<I, O>:
    FnMut(Vec<I>, &mut dyn FnMut() -> bool) -> Result<Vec<O>, ApiError> + Send + 'static
{
}

impl<I, O, F> BatchFunction<I, O> for F where
    F: FnMut(Vec<I>, &mut dyn FnMut() -> bool) -> Result<Vec<O>, ApiError> + Send + 'static
{
}

/// A worker thread with a bounded queue of requests for rows.
pub(crate) struct RowBatcher<I, O> {
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
    pub(crate) fn start(
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
    pub(crate) async fn run(&self, rows: Vec<I>, ticket: &QueueTicket) -> Result<Vec<O>, ApiError> {
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
    pub(crate) fn load(&self) -> PoolStatus {
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;
    use crate::queue_ticket::tests::ticket;
    use std::time::Duration;

    const LONG: Duration = Duration::from_secs(60);

    /// A batcher that reports the rows of each batch and waits for a permission before it computes.
    /// A row of 0 fails, a row of 99 panics.
    fn batcher(queue: usize) -> (RowBatcher<u32, u32>, Receiver<Vec<u32>>, Sender<()>) {
        let (seen, batches) = channel();
        let (permit, permitted) = channel();
        let compute = move |rows: Vec<u32>, _: &mut dyn FnMut() -> bool| {
            seen.send(rows.clone()).unwrap();
            permitted.recv().unwrap();
            assert!(!rows.contains(&99), "intentional panic of a test row");
            match rows.contains(&0) {
                true => Err(ApiError::bad_request("a zero")),
                false => Ok(rows.iter().map(|row| row * 10).collect()),
            }
        };
        let batcher = RowBatcher::start("test", queue, compute).unwrap();
        (batcher, batches, permit)
    }

    fn runtime() -> tokio::runtime::Runtime {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_time().build().unwrap()
    }

    type Results = Vec<Result<Vec<u32>, ApiError>>;

    /// Results of requests and the batches. The first request runs while the others wait.
    fn run_behind_first(requests: &[&[u32]], permits: usize) -> (Results, Vec<Vec<u32>>) {
        let (batcher, batches, permit) = batcher(16);
        let mut seen = Vec::new();
        let results = std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for (at, rows) in requests.iter().enumerate() {
                let batcher = &batcher;
                threads.push(scope.spawn(move || {
                    let long = ticket(LONG);
                    runtime().block_on(batcher.run(rows.to_vec(), &long))
                }));
                if at == 0 {
                    seen.push(batches.recv().unwrap());
                }
                while batcher.load().waiting < at {
                    std::thread::yield_now();
                }
            }
            for _ in 0..permits {
                permit.send(()).unwrap();
            }
            let joined = threads.into_iter().map(|thread| thread.join().unwrap());
            joined.collect()
        });
        seen.extend(batches.try_iter());
        (results, seen)
    }

    #[test]
    fn waiting_requests_are_one_batch_with_the_results_of_each() {
        let (results, batches) = run_behind_first(&[&[1], &[2, 3], &[4], &[5, 6]], 2);
        assert_eq!(batches, [vec![1], vec![2, 3, 4, 5, 6]]);
        let want = [vec![10], vec![20, 30], vec![40], vec![50, 60]];
        assert_eq!(results, want.map(Ok));
    }

    #[test]
    fn a_failing_or_panicking_request_fails_alone() {
        let (results, batches) = run_behind_first(&[&[1], &[2], &[0], &[3]], 5);
        assert_eq!(batches, [vec![1], vec![2, 0, 3], vec![2], vec![0], vec![3]]);
        let zero = Err(ApiError::bad_request("a zero"));
        assert_eq!(results, [Ok(vec![10]), Ok(vec![20]), zero, Ok(vec![30])]);

        let (results, batches) = run_behind_first(&[&[1], &[2], &[99], &[3]], 5);
        assert_eq!(
            batches,
            [vec![1], vec![2, 99, 3], vec![2], vec![99], vec![3]]
        );
        let lost = Err(ApiError::worker_lost());
        assert_eq!(results, [Ok(vec![10]), Ok(vec![20]), lost, Ok(vec![30])]);
    }

    #[test]
    fn a_batch_has_a_maximum_of_rows_and_the_queue_a_maximum_of_requests() {
        let many = vec![7; MAX_ROWS];
        let (results, batches) = run_behind_first(&[&[1], &[2], &many, &[3]], 4);
        let lens: Vec<usize> = batches.iter().map(Vec::len).collect();
        assert_eq!(lens, [1, 1, MAX_ROWS, 1]);
        assert!(results.iter().all(Result::is_ok));

        let (batcher, _batches, _permit) = batcher(0);
        batcher.shared.lock().busy = true;
        let refused = runtime().block_on(batcher.run(vec![1], &ticket(LONG)));
        assert_eq!(refused, Err(ApiError::overloaded()));
    }

    #[test]
    fn a_request_that_nobody_awaits_is_not_computed() {
        let (batcher, batches, permit) = batcher(16);
        runtime().block_on(async {
            let (long, none) = (ticket(LONG), ticket(Duration::ZERO));
            let first = batcher.run(vec![1], &long);
            let others = async {
                while batcher.load().busy == 0 {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                let left = batcher.run(vec![2], &long);
                let left = tokio::time::timeout(Duration::from_millis(20), left).await;
                let (late, ()) = tokio::join!(batcher.run(vec![3], &none), async {
                    permit.send(()).unwrap();
                });
                (left, late)
            };
            let (first, (left, late)) = tokio::join!(first, others);
            assert_eq!(first, Ok(vec![10]));
            assert!(left.is_err());
            assert_eq!(late, Err(ApiError::deadline_exceeded()));
        });
        drop(batcher);
        assert_eq!(batches.try_iter().collect::<Vec<_>>(), [vec![1]]);
    }
}
