//! Parallel ranges, written in order.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::{FileSink, SharedLocation, Transfer};
use crate::client::Answer;
use crate::error::HubError;

/// Chunks that may be loaded ahead of the writer, per connection.
const AHEAD: u64 = 2;

/// Chunks between the connections and the writer.
struct ChunkQueue {
    state: Mutex<QueueState>,
    changed: Condvar,
    stop: AtomicBool,
}

#[derive(Default)]
struct QueueState {
    /// The next chunk that a connection loads.
    next: u64,
    /// Chunks that are written.
    written: u64,
    ready: BTreeMap<u64, Vec<u8>>,
    /// The first failure: its chunk, and what arrived of it.
    failed: Option<(HubError, u64, Vec<u8>)>,
}

impl ChunkQueue {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, QueueState>) -> MutexGuard<'a, QueueState> {
        self.changed
            .wait(state)
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The next chunk to load, or none if all are taken or a chunk failed.
    fn take(&self, count: u64, ahead: u64) -> Option<u64> {
        let mut state = self.lock();
        loop {
            if state.failed.is_some() || self.stop.load(Ordering::Relaxed) || state.next >= count {
                return None;
            }
            if state.next < state.written + ahead {
                state.next += 1;
                return Some(state.next - 1);
            }
            state = self.wait(state);
        }
    }

    fn put(&self, index: u64, loaded: Result<Vec<u8>, (HubError, Vec<u8>)>) {
        let mut state = self.lock();
        match loaded {
            Ok(bytes) => {
                state.ready.insert(index, bytes);
            }
            Err((error, bytes)) if state.failed.is_none() => {
                state.failed = Some((error, index, bytes));
            }
            Err(_) => {}
        }
        self.changed.notify_all();
    }

    /// The chunk, or the failure that prevents it with the bytes that arrived of this chunk.
    fn get(&self, index: u64) -> Result<Vec<u8>, (HubError, Vec<u8>)> {
        let mut state = self.lock();
        loop {
            if let Some(bytes) = state.ready.remove(&index) {
                return Ok(bytes);
            }
            if let Some((error, of, bytes)) = state.failed.take() {
                let bytes = if of == index { bytes } else { Vec::new() };
                return Err((error, bytes));
            }
            state = self.wait(state);
        }
    }

    fn advance(&self) {
        self.lock().written += 1;
        self.changed.notify_all();
    }

    /// Ends the connections.
    fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        // A connection that is about to wait holds the lock.
        drop(self.lock());
        self.changed.notify_all();
    }
}

/// Loads everything after `sink.at`. `first` answers the request for the first chunk.
pub(super) fn load(
    transfer: &Transfer<'_>,
    sink: &mut FileSink<'_>,
    shared: &SharedLocation,
    first: Answer,
) -> Result<(), HubError> {
    let settings = &transfer.client.settings;
    let (start, chunk) = (sink.at, settings.chunk_bytes.max(1));
    let count = (transfer.bytes - start).div_ceil(chunk);
    let connections = u64::try_from(settings.connections.max(1)).unwrap_or(1);
    let queue = ChunkQueue {
        state: Mutex::default(),
        changed: Condvar::new(),
        stop: AtomicBool::new(false),
    };
    let first = Mutex::new(Some(first));
    let work = || {
        while let Some(index) = queue.take(count, connections * AHEAD) {
            let from = start + index * chunk;
            let to = transfer.bytes.min(from + chunk);
            let answer = match index {
                0 => first.lock().unwrap_or_else(PoisonError::into_inner).take(),
                _ => None,
            };
            let loaded = transfer.chunk(shared, (from, to), answer, &queue.stop);
            queue.put(index, loaded);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..connections.min(count) {
            scope.spawn(work);
        }
        let written = (0..count).try_for_each(|index| match queue.get(index) {
            Ok(bytes) => {
                sink.write(&bytes)?;
                queue.advance();
                Ok(())
            }
            Err((error, bytes)) => {
                sink.write(&bytes)?;
                Err(error)
            }
        });
        queue.stop();
        written
    })
}
