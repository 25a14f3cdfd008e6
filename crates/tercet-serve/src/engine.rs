//! The engine thread of a language model. The thread owns the batch slots, takes requests from a
//! queue when slots are free, and sends generated text to the requests' receivers.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use tercet_models::{Image, Sequence, Tokenizer};
use tokio::sync::mpsc::UnboundedSender;

use crate::error::ApiError;
use crate::generator::SequenceGenerator;
use crate::language::{ResponseEvent, TokenDetails};
use crate::metrics::{ServerMetrics, count};
use crate::pool::{PoolStatus, QueueFull};
use crate::running::RunningRequests;

/// Sends the events of one completion. A request can have several completions; `index` identifies
/// the completion.
#[derive(Clone)]
pub(crate) struct ResponseSender {
    pub(crate) index: usize,
    pub(crate) sender: UnboundedSender<(usize, ResponseEvent)>,
}

impl ResponseSender {
    /// Sends an event. Returns false if the receiver is gone.
    pub(crate) fn send(&self, reply: ResponseEvent) -> bool {
        self.sender.send((self.index, reply)).is_ok()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }
}

/// A queued generation request.
pub(crate) struct QueuedRequest {
    pub(crate) sequence: Sequence,
    /// Images that tokens of the prompt refer to.
    pub(crate) images: Arc<[Image]>,
    /// Number of generated tokens that belong to the prompt.
    pub(crate) forced: usize,
    pub(crate) stop: Vec<String>,
    /// Special tokens that are part of the text.
    pub(crate) spelled: Arc<[u32]>,
    /// Number of top logprobs to return per token; `None` disables logprobs.
    pub(crate) top_logprobs: Option<usize>,
    pub(crate) details: TokenDetails,
    pub(crate) deadline: Instant,
    pub(crate) responses: ResponseSender,
    pub(crate) metrics: Arc<ServerMetrics>,
}

impl QueuedRequest {
    /// Whether the request still has a receiver and time left. Sends an error if the deadline is
    /// exceeded.
    fn is_live(&self) -> bool {
        if self.responses.is_closed() {
            count(&self.metrics.cancelled, 1);
            return false;
        }
        if Instant::now() >= self.deadline {
            count(&self.metrics.deadline_exceeded, 1);
            // The result is ignored: the client may have disconnected.
            self.responses
                .send(ResponseEvent::Failed(ApiError::deadline_exceeded()));
            return false;
        }
        true
    }
}

/// Handle of the engine thread, with its queue.
pub(crate) struct BatchEngine {
    shared: Arc<EngineShared>,
    thread: Option<JoinHandle<()>>,
}

struct EngineShared {
    state: Mutex<EngineState>,
    changed: Condvar,
    slots: usize,
    queue_capacity: usize,
}

struct EngineState {
    queue: VecDeque<QueuedRequest>,
    running: usize,
    closed: bool,
}

impl EngineShared {
    fn lock(&self) -> MutexGuard<'_, EngineState> {
        // No code that can panic runs while this lock is locked, so a poisoned state is valid.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns requests for the free slots, given the number of `written` sequences in progress.
    /// Blocks while there are neither running nor queued requests. Returns `None` when the queue is
    /// closed and nothing runs.
    fn next(&self, written: usize) -> Option<Vec<QueuedRequest>> {
        let mut state = self.lock();
        loop {
            state.queue.retain(QueuedRequest::is_live);
            let free = (self.slots - written).min(state.queue.len());
            if written + free > 0 {
                state.running = written + free;
                return Some(state.queue.drain(..free).collect());
            }
            state.running = 0;
            if state.closed {
                return None;
            }
            let waited = self.changed.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl BatchEngine {
    /// Starts the thread. At most `max_waiting` requests wait for a slot.
    ///
    /// # Errors
    /// Returns an error if the system cannot start a thread.
    pub(crate) fn start(
        name: &str,
        writer: Box<dyn SequenceGenerator>,
        tokenizer: Arc<Tokenizer>,
        max_waiting: usize,
    ) -> std::io::Result<BatchEngine> {
        let state = EngineState {
            queue: VecDeque::new(),
            running: 0,
            closed: false,
        };
        let shared = Arc::new(EngineShared {
            state: Mutex::new(state),
            changed: Condvar::new(),
            slots: writer.slots(),
            queue_capacity: max_waiting,
        });
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name(format!("tercet-{name}"));
        let thread = thread.spawn(move || run_engine(&of_thread, writer, &tokenizer))?;
        Ok(BatchEngine {
            shared,
            thread: Some(thread),
        })
    }

    /// Queues all jobs, or none if they do not fit.
    pub(crate) fn submit(&self, jobs: Vec<QueuedRequest>) -> Result<(), QueueFull> {
        let mut state = self.shared.lock();
        self.check_capacity_of(&state, jobs.len())?;
        state.queue.extend(jobs);
        self.shared.changed.notify_one();
        Ok(())
    }

    /// Returns an error if this many jobs do not fit into the queue now.
    pub(crate) fn check_capacity(&self, jobs: usize) -> Result<(), QueueFull> {
        self.check_capacity_of(&self.shared.lock(), jobs)
    }

    /// Maximum number of jobs of one request: the slots and the queue.
    pub(crate) fn capacity(&self) -> usize {
        self.shared.slots.saturating_add(self.shared.queue_capacity)
    }

    fn check_capacity_of(&self, state: &EngineState, jobs: usize) -> Result<(), QueueFull> {
        let free = self.shared.slots - state.running;
        let room = self.shared.queue_capacity.saturating_add(free);
        match state.queue.len().saturating_add(jobs) <= room {
            true => Ok(()),
            false => Err(QueueFull),
        }
    }

    pub(crate) fn load(&self) -> PoolStatus {
        let state = self.shared.lock();
        let workers = self.shared.slots;
        let free = workers - state.running;
        PoolStatus {
            workers,
            busy: state.running,
            waiting: state.queue.len().saturating_sub(free),
        }
    }
}

impl Drop for BatchEngine {
    /// Finishes the running requests. Queued requests are dropped, so their clients receive an
    /// error.
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.closed = true;
        state.queue.clear();
        self.shared.changed.notify_all();
        drop(state);
        if let Some(thread) = self.thread.take() {
            // The thread catches panics, so joining does not return one.
            let _ = thread.join();
        }
    }
}

fn run_engine(shared: &EngineShared, writer: Box<dyn SequenceGenerator>, tokenizer: &Tokenizer) {
    let mut texts = RunningRequests::new(writer, tokenizer);
    while let Some(new) = shared.next(texts.count()) {
        // A panic is a bug in this program, triggered by one of the requests. All running requests
        // end: their channels close, and the clients receive an error. New requests start with
        // empty slots.
        let turn = catch_unwind(AssertUnwindSafe(|| texts.turn(new)));
        if turn.is_err() {
            let _ = catch_unwind(AssertUnwindSafe(|| texts.abort_all()));
        }
    }
}
