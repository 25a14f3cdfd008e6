//! The thread that writes all texts of a language model: it owns the slots, takes requests from a queue as slots get free,
//! and gives each text's pieces to whom they are for.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use tercet_models::{Sequence, Tokenizer};
use tokio::sync::mpsc::UnboundedSender;

use crate::error::Refusal;
use crate::language::Reply;
use crate::metrics::{Metrics, count};
use crate::pool::{Full, Load};
use crate::texts::Texts;
use crate::writer::Writer;

/// Where the pieces of a text go: to a request that may have several, of which this is one.
#[derive(Clone)]
pub(crate) struct Replies {
    pub(crate) index: usize,
    pub(crate) to: UnboundedSender<(usize, Reply)>,
}

impl Replies {
    /// False where nobody listens.
    pub(crate) fn send(&self, reply: Reply) -> bool {
        self.to.send((self.index, reply)).is_ok()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.to.is_closed()
    }
}

/// A text on its way.
pub(crate) struct Job {
    pub(crate) sequence: Sequence,
    pub(crate) stop: Vec<String>,
    /// How many of the likeliest tokens are told beside each token and its probability; nothing of either for none.
    pub(crate) likeliest: Option<usize>,
    pub(crate) until: Instant,
    pub(crate) replies: Replies,
    pub(crate) metrics: Arc<Metrics>,
}

impl Job {
    /// Whether it is still to be written. Whose deadline has passed is told so.
    fn is_wanted(&self) -> bool {
        if self.replies.is_closed() {
            count(&self.metrics.cancelled, 1);
            return false;
        }
        if Instant::now() >= self.until {
            count(&self.metrics.late, 1);
            // Who has left needs no answer.
            self.replies.send(Reply::Failed(Refusal::late()));
            return false;
        }
        true
    }
}

/// The thread and its queue.
pub(crate) struct Engine {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    slots: usize,
    most_waiting: usize,
}

struct State {
    waiting: VecDeque<Job>,
    busy: usize,
    closed: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that can panic runs under this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The jobs that free slots are for, when so many texts are written; waits where there is nothing to do. None when
    /// there never will be.
    fn next(&self, written: usize) -> Option<Vec<Job>> {
        let mut state = self.lock();
        loop {
            state.waiting.retain(Job::is_wanted);
            let free = (self.slots - written).min(state.waiting.len());
            if written + free > 0 {
                state.busy = written + free;
                return Some(state.waiting.drain(..free).collect());
            }
            state.busy = 0;
            if state.closed {
                return None;
            }
            let waited = self.changed.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Engine {
    /// Starts the thread; at most `most_waiting` jobs wait for a slot.
    ///
    /// # Errors
    /// What the system says where a thread cannot be started.
    pub(crate) fn start(
        name: &str,
        writer: Box<dyn Writer>,
        tokenizer: Arc<Tokenizer>,
        most_waiting: usize,
    ) -> std::io::Result<Engine> {
        let state = State {
            waiting: VecDeque::new(),
            busy: 0,
            closed: false,
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            changed: Condvar::new(),
            slots: writer.slots(),
            most_waiting,
        });
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name(format!("tercet-{name}"));
        let thread = thread.spawn(move || work(&of_thread, writer, &tokenizer))?;
        Ok(Engine {
            shared,
            thread: Some(thread),
        })
    }

    /// Queues jobs, all of them or none.
    pub(crate) fn submit(&self, jobs: Vec<Job>) -> Result<(), Full> {
        let mut state = self.shared.lock();
        self.room(&state, jobs.len())?;
        state.waiting.extend(jobs);
        self.shared.changed.notify_one();
        Ok(())
    }

    /// Whether so many jobs would be refused now.
    pub(crate) fn check_room(&self, jobs: usize) -> Result<(), Full> {
        self.room(&self.shared.lock(), jobs)
    }

    /// How many jobs fit where there is no other.
    pub(crate) fn capacity(&self) -> usize {
        self.shared.slots.saturating_add(self.shared.most_waiting)
    }

    fn room(&self, state: &State, jobs: usize) -> Result<(), Full> {
        let free = self.shared.slots - state.busy;
        let room = self.shared.most_waiting.saturating_add(free);
        match state.waiting.len().saturating_add(jobs) <= room {
            true => Ok(()),
            false => Err(Full),
        }
    }

    pub(crate) fn load(&self) -> Load {
        let state = self.shared.lock();
        let workers = self.shared.slots;
        let free = workers - state.busy;
        Load {
            workers,
            busy: state.busy,
            waiting: state.waiting.len().saturating_sub(free),
        }
    }
}

impl Drop for Engine {
    /// Waits for the texts that are written; those that wait are dropped, which their clients see.
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.closed = true;
        state.waiting.clear();
        self.shared.changed.notify_all();
        drop(state);
        if let Some(thread) = self.thread.take() {
            // Its panics were caught.
            let _ = thread.join();
        }
    }
}

fn work(shared: &Shared, writer: Box<dyn Writer>, tokenizer: &Tokenizer) {
    let mut texts = Texts::new(writer, tokenizer);
    while let Some(new) = shared.next(texts.count()) {
        // A panic is a bug of ours that one of the texts met: all of them end, which their clients see by the end of the
        // answers they wait for, and the next ones find empty slots.
        let turn = catch_unwind(AssertUnwindSafe(|| texts.turn(new)));
        if turn.is_err() {
            let _ = catch_unwind(AssertUnwindSafe(|| texts.give_up()));
        }
    }
}
