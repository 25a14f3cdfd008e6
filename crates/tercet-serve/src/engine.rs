//! The engine thread of a language model. The thread owns the batch slots, takes requests from a
//! queue when slots are free, and sends generated text to the requests' receivers.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use tercet_models::{Image, Sequence, Tokenizer};
use tokio::sync::mpsc::UnboundedSender;

use crate::error::ApiError;
use crate::fair_queue::FairQueue;
use crate::generator::LanguageGenerator;
use crate::language::{ResponseEvent, TokenDetails};
use crate::pool::PoolStatus;
use crate::queue_ticket::QueueTicket;
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
    pub(crate) ticket: QueueTicket,
    pub(crate) responses: ResponseSender,
}

impl QueuedRequest {
    /// Whether the request still has a receiver and time left. Sends an error if the deadline is
    /// exceeded.
    fn is_live(&self) -> bool {
        if self.responses.is_closed() {
            self.ticket.count_cancelled();
            return false;
        }
        if self.ticket.is_late() {
            self.fail(self.ticket.late());
            return false;
        }
        true
    }

    /// Whether the request may go on waiting. Sends an error if not.
    fn may_wait(&self) -> bool {
        let overdue = self.ticket.overdue();
        let may_wait = overdue.is_none();
        if let Some(error) = overdue {
            self.fail(error);
        }
        may_wait
    }

    /// Sends an error. The result is ignored: the client may have disconnected.
    fn fail(&self, error: ApiError) {
        self.responses.send(ResponseEvent::Failed(error));
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
    queue: FairQueue<QueuedRequest>,
    running: usize,
    closed: bool,
}

impl EngineShared {
    fn lock(&self) -> MutexGuard<'_, EngineState> {
        // No code that can panic runs while this lock is locked, so a poisoned state is valid.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Maximum waiting requests now: the queue and the free slots. If `jobs` more do not fit, requests
    /// without a client make room.
    fn capacity_now(&self, state: &mut EngineState, jobs: usize) -> usize {
        let capacity = self
            .queue_capacity
            .saturating_add(self.slots - state.running);
        if state.queue.len().saturating_add(jobs) > capacity {
            state.queue.retain(QueuedRequest::is_live);
        }
        capacity
    }

    /// Returns requests for the free slots, given the number of sequences in progress of each API key.
    /// Blocks while there are neither running nor queued requests. Returns `None` when the queue is
    /// closed and nothing runs.
    fn next(&self, keys: HashMap<Option<usize>, usize>) -> Option<Vec<QueuedRequest>> {
        let written: usize = keys.values().sum();
        let mut state = self.lock();
        state.queue.set_running(keys);
        loop {
            state.queue.retain(QueuedRequest::is_live);
            let free = (self.slots - written).min(state.queue.len());
            if written + free > 0 {
                state.running = written + free;
                let started: Vec<QueuedRequest> =
                    (0..free).filter_map(|_| state.queue.pop()).collect();
                // Only requests without a free slot wait.
                state.queue.retain(QueuedRequest::may_wait);
                return Some(started);
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
    /// Starts the thread. At most `max_waiting` requests wait for a slot; `chunk` is the number of tokens of
    /// a whole prompt chunk. With `saves`, the thread saves the prefixes of the slots when it ends.
    ///
    /// # Errors
    /// Returns an error if the system cannot start a thread.
    pub(crate) fn start(
        name: &str,
        generator: LanguageGenerator,
        tokenizer: Arc<Tokenizer>,
        (max_waiting, chunk, saves): (usize, usize, bool),
    ) -> std::io::Result<BatchEngine> {
        let state = EngineState {
            queue: FairQueue::new(),
            running: 0,
            closed: false,
        };
        let shared = Arc::new(EngineShared {
            state: Mutex::new(state),
            changed: Condvar::new(),
            slots: generator.slots.slots(),
            queue_capacity: max_waiting,
        });
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name(format!("tercet-{name}"));
        let thread =
            thread.spawn(move || run_engine(&of_thread, generator, (&tokenizer, chunk, saves)))?;
        Ok(BatchEngine {
            shared,
            thread: Some(thread),
        })
    }

    /// Queues all jobs of a request, or none if they do not fit.
    ///
    /// # Errors
    /// 503 if the queue is full, and no waiting request has to stand back.
    pub(crate) fn submit(
        &self,
        ticket: &QueueTicket,
        jobs: Vec<QueuedRequest>,
    ) -> Result<(), ApiError> {
        let mut state = self.shared.lock();
        let capacity = self.shared.capacity_now(&mut state, jobs.len());
        let displaced = state.queue.make_room(ticket.order, jobs.len(), capacity);
        for other in displaced.map_err(|_| ticket.refused())? {
            other.fail(other.ticket.refused());
        }
        for job in jobs {
            state.queue.push(ticket.order, job);
        }
        self.shared.changed.notify_one();
        Ok(())
    }

    /// Checks whether this many jobs fit into the queue now.
    ///
    /// # Errors
    /// 503 if they do not.
    pub(crate) fn check_capacity(&self, ticket: &QueueTicket, jobs: usize) -> Result<(), ApiError> {
        let mut state = self.shared.lock();
        let capacity = self.shared.capacity_now(&mut state, jobs);
        match state.queue.can_make_room(ticket.order, jobs, capacity) {
            true => Ok(()),
            false => Err(ticket.refused()),
        }
    }

    /// Maximum number of jobs of one request: the slots and the queue.
    pub(crate) fn capacity(&self) -> usize {
        self.shared.slots.saturating_add(self.shared.queue_capacity)
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

fn run_engine(
    shared: &EngineShared,
    generator: LanguageGenerator,
    (tokenizer, chunk, saves): (&Tokenizer, usize, bool),
) {
    let mut texts = RunningRequests::new(generator, tokenizer, chunk);
    while let Some(new) = shared.next(texts.keys()) {
        // A panic is a bug in this program, triggered by one of the requests. All running requests
        // end: their channels close, and the clients receive an error. New requests start with
        // empty slots.
        let turn = catch_unwind(AssertUnwindSafe(|| texts.turn(new)));
        if turn.is_err() {
            let _ = catch_unwind(AssertUnwindSafe(|| texts.abort_all()));
        }
    }
    if saves {
        // A panic is a bug in this program; the prefixes are then computed again.
        let _ = catch_unwind(AssertUnwindSafe(|| texts.save_prefixes()));
    }
}
