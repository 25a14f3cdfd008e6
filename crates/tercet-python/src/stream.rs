//! Streams results from a worker thread to a Python iterator.
//!
//! The Python thread waits without the GIL and checks for Ctrl-C. If the iterator is closed, the
//! worker stops at its next piece.

use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;

use crate::errors;

/// Interval of checks for Ctrl-C while waiting for a piece.
const LOOK: Duration = Duration::from_millis(50);

enum StreamMessage<T, D> {
    /// `None` only checks whether the receiver still exists.
    Piece(Option<T>),
    Done(Result<D, tercet_models::Error>),
}

/// A stream of pieces, followed by a final result.
pub(crate) struct ResultStream<T, D> {
    state: Mutex<StreamState<T, D>>,
}

struct StreamState<T, D> {
    /// `None` after the end, or after the stream was closed.
    pieces: Option<Receiver<StreamMessage<T, D>>>,
    done: Option<D>,
}

impl<T: Send + 'static, D: Send + 'static> ResultStream<T, D> {
    /// Starts a thread. The send function returns whether the receiver still exists.
    pub(crate) fn start(
        name: &str,
        work: impl FnOnce(&mut dyn FnMut(Option<T>) -> bool) -> Result<D, tercet_models::Error>
        + Send
        + 'static,
    ) -> PyResult<ResultStream<T, D>> {
        let (send, receive) = sync_channel(1);
        let thread = std::thread::Builder::new().name(name.into());
        thread.spawn(move || {
            let done = work(&mut |piece| send.send(StreamMessage::Piece(piece)).is_ok());
            // Sending fails if the receiver is gone.
            let _ = send.send(StreamMessage::Done(done));
        })?;
        let state = StreamState {
            pieces: Some(receive),
            done: None,
        };
        Ok(ResultStream {
            state: Mutex::new(state),
        })
    }

    fn lock(&self) -> MutexGuard<'_, StreamState<T, D>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the next piece, or `None` after the last one.
    ///
    /// # Errors
    /// `KeyboardInterrupt` after Ctrl-C, or the error of the worker.
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

    /// Waits for a piece. Returns `None` at the end, and when Ctrl-C must be checked.
    fn wait(&self) -> PyResult<Option<T>> {
        let mut state = self.lock();
        let Some(pieces) = &state.pieces else {
            return Ok(None);
        };
        match pieces.recv_timeout(LOOK) {
            Ok(StreamMessage::Piece(piece)) => Ok(piece),
            Ok(StreamMessage::Done(done)) => {
                state.pieces = None;
                state.done = Some(done.map_err(errors::model)?);
                Ok(None)
            }
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => {
                state.pieces = None;
                Err(errors::ModelError::new_err(
                    "the worker thread ended without a result",
                ))
            }
        }
    }

    /// Closes the stream.
    pub(crate) fn close(&self, py: Python<'_>) {
        py.detach(|| self.lock().pieces = None);
    }

    /// Reads the final result, if the stream has ended.
    pub(crate) fn at_end<R: Send>(
        &self,
        py: Python<'_>,
        of: impl FnOnce(&D) -> R + Send,
    ) -> Option<R> {
        py.detach(|| self.lock().done.as_ref().map(of))
    }
}

/// Calls a method in a thread of the running event loop. Returns an awaitable of its result.
///
/// # Errors
/// `RuntimeError` outside of an event loop.
pub(crate) fn in_background<'py>(
    object: &Bound<'py, PyAny>,
    method: &str,
) -> PyResult<Bound<'py, PyAny>> {
    let py = object.py();
    let events = py.import("asyncio")?.call_method0("get_running_loop")?;
    events.call_method1("run_in_executor", (py.None(), object.getattr(method)?))
}
