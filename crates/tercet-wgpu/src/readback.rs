//! Bytes from the device to the host: staging buffers, and the news that they are filled.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tercet_plan::Read;

use crate::buffers::{Buffers, Unmade, make};
use crate::device::{Gpu, Trouble, lock};

/// Told by callbacks when a submission and its mappings are done.
#[derive(Debug, Default)]
struct Signal {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Callbacks that have not been called.
    left: usize,
    failed: bool,
    waker: Option<Waker>,
    /// A thread waits for the submission and has not let go of the device.
    is_watched: bool,
}

impl Signal {
    fn tell(&self, ok: bool) {
        let mut state = lock(&self.state);
        state.left -= 1;
        state.failed |= !ok;
        // Whoever watches wakes the task when it has let go of the device.
        let is_watched = state.is_watched;
        if state.left > 0 {
            return;
        }
        drop(state);
        self.changed.notify_all();
        if !is_watched {
            self.wake();
        }
    }

    /// The thread that waited has let go of the device, or there is none.
    #[cfg(not(target_arch = "wasm32"))]
    fn leave(&self) {
        lock(&self.state).is_watched = false;
        self.changed.notify_all();
        self.wake();
    }

    /// Wakes the task that asked last.
    fn wake(&self) {
        let waker = lock(&self.state).waker.take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// True when done, an error if a mapping failed.
    fn done(&self, gpu: &Gpu) -> Result<bool, Trouble> {
        let state = lock(&self.state);
        match (state.left, state.failed) {
            (_, true) => {
                gpu.alive()?;
                Err(Trouble::Refused("results could not be mapped".to_string()))
            }
            (left, false) => Ok(left == 0),
        }
    }
}

/// A submission under way.
#[derive(Debug)]
pub(crate) struct Flight {
    signal: Arc<Signal>,
    submission: wgpu::SubmissionIndex,
    /// Somebody sees to it that its callbacks are called.
    watched: bool,
}

/// A mappable buffer and what the submission copies into it.
#[derive(Debug)]
struct Staging {
    buffer: wgpu::Buffer,
    used: u64,
    mapped: bool,
}

/// Where a read lies: which staging buffer, and where in it.
#[derive(Clone, Copy, Debug)]
struct Spot {
    staging: usize,
    start: usize,
    bytes: usize,
}

/// Staging buffers, kept from run to run.
#[derive(Debug, Default)]
pub(crate) struct Readback {
    stagings: Vec<Staging>,
    spots: Vec<Spot>,
}

const STAGING: wgpu::BufferUsages =
    wgpu::BufferUsages::MAP_READ.union(wgpu::BufferUsages::COPY_DST);

impl Readback {
    /// Makes room for reads of these sizes.
    ///
    /// # Errors
    /// [`Unmade`] when there is no memory.
    pub(crate) fn prepare(
        &mut self,
        gpu: &Gpu,
        sizes: impl Iterator<Item = u64>,
    ) -> Result<(), Unmade> {
        self.release();
        self.spots.clear();
        let limit = gpu.limits.max_buffer_size;
        let mut wanted: Vec<u64> = Vec::new();
        for bytes in sizes {
            // Mapped ranges are multiples of 8 bytes.
            let padded = bytes.next_multiple_of(8);
            match wanted.last() {
                Some(used) if used + padded <= limit => {}
                _ => wanted.push(0),
            }
            let staging = wanted.len() - 1;
            self.spots.push(Spot {
                staging,
                start: wanted[staging] as usize,
                bytes: bytes as usize,
            });
            wanted[staging] += padded;
        }
        self.stagings.truncate(wanted.len());
        for (at, &used) in wanted.iter().enumerate() {
            match self.stagings.get_mut(at) {
                Some(old) if old.buffer.size() >= used => old.used = used,
                _ => {
                    self.stagings.truncate(at);
                    self.stagings.push(Staging {
                        buffer: make(gpu, "the buffer of results", used, STAGING)?,
                        used,
                        mapped: false,
                    });
                }
            }
        }
        Ok(())
    }

    /// Copies what is read; `prepare` has seen the same reads.
    pub(crate) fn copy(
        &self,
        encoder: &mut wgpu::CommandEncoder,
        buffers: &Buffers,
        reads: &[Read],
    ) {
        for (read, spot) in reads.iter().zip(&self.spots) {
            let Some(from) = buffers.get(read.buffer) else {
                continue; // A range of no bytes.
            };
            let to = &self.stagings[spot.staging].buffer;
            let start = spot.start as u64;
            encoder.copy_buffer_to_buffer(from, read.offset_bytes, to, start, read.bytes);
        }
    }

    /// The number of reads.
    pub(crate) fn len(&self) -> usize {
        self.spots.len()
    }

    /// The staging buffer and the offset of a read.
    pub(crate) fn spot(&self, read: usize) -> (&wgpu::Buffer, u64) {
        let spot = self.spots[read];
        (&self.stagings[spot.staging].buffer, spot.start as u64)
    }

    /// Asks for the news that a submission is done.
    pub(crate) fn map(&mut self, gpu: &Gpu, submission: wgpu::SubmissionIndex) -> Flight {
        let signal = Arc::new(Signal::default());
        lock(&signal.state).left = self.stagings.len().max(1);
        for staging in &mut self.stagings {
            let signal = Arc::clone(&signal);
            let told = move |r: Result<(), wgpu::BufferAsyncError>| signal.tell(r.is_ok());
            staging.mapped = true;
            let (mode, range) = (wgpu::MapMode::Read, 0..staging.used);
            staging.buffer.map_async(mode, range, told);
        }
        if self.stagings.is_empty() {
            let signal = Arc::clone(&signal);
            gpu.queue.on_submitted_work_done(move || signal.tell(true));
        }
        Flight {
            signal,
            submission,
            watched: false,
        }
    }

    /// Gives the bytes of each read of a finished flight.
    ///
    /// # Errors
    /// [`Trouble`] when a buffer is not mapped.
    pub(crate) fn take(&mut self, take: &mut dyn FnMut(usize, &[u8])) -> Result<(), Trouble> {
        for (at, staging) in self.stagings.iter().enumerate() {
            let view = (staging.buffer.get_mapped_range(0..staging.used))
                .map_err(|e| Trouble::Refused(e.to_string()))?;
            let here = |s: &(usize, &Spot)| s.1.staging == at;
            for (read, spot) in self.spots.iter().enumerate().filter(here) {
                take(read, &view[spot.start..spot.start + spot.bytes]);
            }
        }
        self.release();
        Ok(())
    }

    /// Unmaps all buffers.
    pub(crate) fn release(&mut self) {
        for staging in &mut self.stagings {
            if std::mem::take(&mut staging.mapped) {
                staging.buffer.unmap();
            }
        }
    }
}

/// How long a submission is asked for before the thread sleeps until it is done: waking takes longer than small
/// kernels do.
const ASKED_FOR: Duration = Duration::from_millis(10);

impl Flight {
    /// Blocks until it is done.
    ///
    /// # Errors
    /// [`Trouble`]; always in a browser, unless it is done.
    pub(crate) fn wait(&self, gpu: &Gpu) -> Result<(), Trouble> {
        if !gpu.is_software && cfg!(not(target_arch = "wasm32")) {
            self.ask(gpu)?;
        }
        while !self.signal.done(gpu)? {
            if cfg!(target_arch = "wasm32") {
                let text = "a browser cannot wait for results: await them (`run_async`, `finished`, `fetch_state`, `fetch_output_rows`)";
                return Err(Trouble::Refused(text.to_string()));
            }
            gpu.poll(Some(&self.submission))?;
            // Another thread that polls may be about to call our callbacks.
            let state = lock(&self.signal.state);
            if state.left > 0 {
                let wait = self
                    .signal
                    .changed
                    .wait_timeout(state, Duration::from_millis(1));
                drop(wait.unwrap_or_else(PoisonError::into_inner));
            }
        }
        let mut state = lock(&self.signal.state);
        while state.is_watched {
            let changed = self.signal.changed.wait(state);
            state = changed.unwrap_or_else(PoisonError::into_inner);
        }
        Ok(())
    }

    /// Asks again and again, for a while, whether it is done.
    fn ask(&self, gpu: &Gpu) -> Result<(), Trouble> {
        let began = Instant::now();
        while !self.signal.done(gpu)? && began.elapsed() < ASKED_FOR {
            gpu.poll(None)?;
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Ready when it is done, without blocking the thread.
    ///
    /// # Errors
    /// [`Trouble`] of the device.
    pub(crate) fn poll(
        &mut self,
        gpu: &Arc<Gpu>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Trouble>> {
        // Natively callbacks are called by those who poll the device.
        gpu.poll(None)?;
        lock(&self.signal.state).waker = Some(cx.waker().clone());
        // Asked now, as it may have been done before the waker was there.
        if self.signal.done(gpu)? {
            return match lock(&self.signal.state).is_watched {
                true => Poll::Pending,
                false => Poll::Ready(Ok(())),
            };
        }
        if !self.watched {
            self.watched = watch(gpu, self);
        }
        Poll::Pending
    }
}

/// Natively, a thread that waits for the submission, so that its callbacks are called. False if
/// there is no thread to be had: the task then polls until it is done.
///
/// The task goes on only when the thread has let go of the device. If the thread were the last to hold it, it would close
/// the driver while the process may be ending, and drivers do not stand being unloaded while their exit handlers run.
#[cfg(not(target_arch = "wasm32"))]
fn watch(gpu: &Arc<Gpu>, flight: &Flight) -> bool {
    let (gpu, submission) = (Arc::clone(gpu), flight.submission.clone());
    let signal = Arc::clone(&flight.signal);
    lock(&signal.state).is_watched = true;
    let thread = std::thread::Builder::new().name("tercet-wgpu".to_string());
    let spawned = thread.spawn(move || {
        // A lost device is found by the woken task.
        let _ = gpu.poll(Some(&submission));
        drop(gpu);
        signal.leave();
    });
    if spawned.is_err() {
        flight.signal.leave();
    }
    spawned.is_ok()
}

/// In a browser the event loop calls callbacks.
#[cfg(target_arch = "wasm32")]
fn watch(_: &Arc<Gpu>, _: &Flight) -> bool {
    true
}
