//! What a thread of its own makes, piece by piece, for a reader in Python.
//!
//! Python's thread waits without its lock and looks for Ctrl-C meanwhile; a reader that leaves ends the work at its next
//! piece.

use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;

use crate::errors;

/// How often Ctrl-C is looked for while a piece is awaited.
const LOOK: Duration = Duration::from_millis(50);

enum Message<T, D> {
    /// Nothing only asks whether somebody still listens.
    Piece(Option<T>),
    Done(Result<D, tercet_models::Error>),
}

/// Pieces that come, and what there is at the end.
pub(crate) struct Stream<T, D> {
    state: Mutex<State<T, D>>,
}

struct State<T, D> {
    /// `None` once it has ended, or nobody wants more of it.
    pieces: Option<Receiver<Message<T, D>>>,
    done: Option<D>,
}

impl<T: Send + 'static, D: Send + 'static> Stream<T, D> {
    /// Starts a thread. What it sends is answered by whether somebody listens.
    pub(crate) fn start(
        name: &str,
        work: impl FnOnce(&mut dyn FnMut(Option<T>) -> bool) -> Result<D, tercet_models::Error>
        + Send
        + 'static,
    ) -> PyResult<Stream<T, D>> {
        let (send, receive) = sync_channel(1);
        let thread = std::thread::Builder::new().name(name.into());
        thread.spawn(move || {
            let done = work(&mut |piece| send.send(Message::Piece(piece)).is_ok());
            // Who has left needs no result.
            let _ = send.send(Message::Done(done));
        })?;
        let state = State {
            pieces: Some(receive),
            done: None,
        };
        Ok(Stream {
            state: Mutex::new(state),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State<T, D>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next piece; nothing after the last one.
    ///
    /// # Errors
    /// Ctrl-C, what the work failed with.
    pub(crate) fn next(&self, py: Python<'_>) -> PyResult<Option<T>> {
        loop {
            if let Err(interrupt) = py.check_signals() {
                self.close(py);
                return Err(interrupt);
            }
            if py.detach(|| self.lock().pieces.is_none()) {
                return Ok(None);
            }
            if let Some(piece) = py.detach(|| self.wait())? {
                return Ok(Some(piece));
            }
        }
    }

    /// A piece, or nothing where Ctrl-C should be looked for, or the end.
    fn wait(&self) -> PyResult<Option<T>> {
        let mut state = self.lock();
        let Some(pieces) = &state.pieces else {
            return Ok(None);
        };
        match pieces.recv_timeout(LOOK) {
            Ok(Message::Piece(piece)) => Ok(piece),
            Ok(Message::Done(done)) => {
                state.pieces = None;
                state.done = Some(done.map_err(errors::model)?);
                Ok(None)
            }
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => {
                state.pieces = None;
                Err(errors::ModelError::new_err(
                    "the thread that does the work has ended without a result",
                ))
            }
        }
    }

    /// Wants no more.
    pub(crate) fn close(&self, py: Python<'_>) {
        py.detach(|| self.lock().pieces = None);
    }

    /// Something of what there is at the end, once it has come.
    pub(crate) fn at_end<R: Send>(
        &self,
        py: Python<'_>,
        of: impl FnOnce(&D) -> R + Send,
    ) -> Option<R> {
        py.detach(|| self.lock().done.as_ref().map(of))
    }
}
