//! Bytes from the device to the host: staging buffers, and the news that they are filled.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tercet_plan::ReadbackRange;

use crate::buffers::{BufferError, WgpuBuffers, create_buffer};
use crate::device::{DeviceFault, WgpuDevice, lock};

/// Told by callbacks when a submission and its mappings are done.
#[derive(Debug, Default)]
struct CompletionSignal {
    state: Mutex<CompletionState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct CompletionState {
    /// Callbacks that have not been called.
    pending_callbacks: usize,
    failed: bool,
    waker: Option<Waker>,
    /// A thread waits for the submission and has not let go of the device.
    has_waiter_thread: bool,
}

impl CompletionSignal {
    fn notify(&self, ok: bool) {
        let mut state = lock(&self.state);
        state.pending_callbacks -= 1;
        state.failed |= !ok;
        // Whoever watches wakes the task when it has let go of the device.
        let is_watched = state.has_waiter_thread;
        if state.pending_callbacks > 0 {
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
    fn release_waiter(&self) {
        lock(&self.state).has_waiter_thread = false;
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
    fn done(&self, gpu: &WgpuDevice) -> Result<bool, DeviceFault> {
        let state = lock(&self.state);
        match (state.pending_callbacks, state.failed) {
            (_, true) => {
                gpu.check_alive()?;
                Err(DeviceFault::Refused(
                    "results could not be mapped".to_string(),
                ))
            }
            (left, false) => Ok(left == 0),
        }
    }
}

/// A submission under way.
#[derive(Debug)]
pub(crate) struct InFlightReadback {
    signal: Arc<CompletionSignal>,
    submission: wgpu::SubmissionIndex,
    /// Somebody sees to it that its callbacks are called.
    has_waiter_thread: bool,
}

/// A mappable buffer and what the submission copies into it.
#[derive(Debug)]
struct ReadbackStaging {
    buffer: wgpu::Buffer,
    used: u64,
    mapped: bool,
}

/// Where a read lies: which staging buffer, and where in it.
#[derive(Clone, Copy, Debug)]
struct StagingRange {
    staging: usize,
    start: usize,
    bytes: usize,
}

/// Staging buffers, kept from run to run.
#[derive(Debug, Default)]
pub(crate) struct WgpuReadback {
    stagings: Vec<ReadbackStaging>,
    ranges: Vec<StagingRange>,
}

const STAGING: wgpu::BufferUsages =
    wgpu::BufferUsages::MAP_READ.union(wgpu::BufferUsages::COPY_DST);

impl WgpuReadback {
    /// Makes room for reads of these sizes.
    ///
    /// # Errors
    /// [`BufferError`] when there is no memory.
    pub(crate) fn prepare(
        &mut self,
        gpu: &WgpuDevice,
        sizes: impl Iterator<Item = u64>,
    ) -> Result<(), BufferError> {
        self.release();
        self.ranges.clear();
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
            self.ranges.push(StagingRange {
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
                    self.stagings.push(ReadbackStaging {
                        buffer: create_buffer(gpu, "the buffer of results", used, STAGING)?,
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
        buffers: &WgpuBuffers,
        reads: &[ReadbackRange],
    ) {
        for (read, spot) in reads.iter().zip(&self.ranges) {
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
        self.ranges.len()
    }

    /// The staging buffer and the offset of a read.
    pub(crate) fn spot(&self, read: usize) -> (&wgpu::Buffer, u64) {
        let spot = self.ranges[read];
        (&self.stagings[spot.staging].buffer, spot.start as u64)
    }

    /// Asks for the news that a submission is done.
    pub(crate) fn map(
        &mut self,
        gpu: &WgpuDevice,
        submission: wgpu::SubmissionIndex,
    ) -> InFlightReadback {
        let signal = Arc::new(CompletionSignal::default());
        lock(&signal.state).pending_callbacks = self.stagings.len().max(1);
        for staging in &mut self.stagings {
            let signal = Arc::clone(&signal);
            let told = move |r: Result<(), wgpu::BufferAsyncError>| signal.notify(r.is_ok());
            staging.mapped = true;
            let (mode, range) = (wgpu::MapMode::Read, 0..staging.used);
            staging.buffer.map_async(mode, range, told);
        }
        if self.stagings.is_empty() {
            let signal = Arc::clone(&signal);
            gpu.queue
                .on_submitted_work_done(move || signal.notify(true));
        }
        InFlightReadback {
            signal,
            submission,
            has_waiter_thread: false,
        }
    }

    /// Gives the bytes of each read of a finished flight.
    ///
    /// # Errors
    /// [`DeviceFault`] when a buffer is not mapped.
    pub(crate) fn take(&mut self, take: &mut dyn FnMut(usize, &[u8])) -> Result<(), DeviceFault> {
        for (at, staging) in self.stagings.iter().enumerate() {
            let view = (staging.buffer.get_mapped_range(0..staging.used))
                .map_err(|e| DeviceFault::Refused(e.to_string()))?;
            let here = |s: &(usize, &StagingRange)| s.1.staging == at;
            for (read, spot) in self.ranges.iter().enumerate().filter(here) {
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

impl InFlightReadback {
    /// Blocks until it is done.
    ///
    /// # Errors
    /// [`DeviceFault`]; always in a browser, unless it is done.
    pub(crate) fn wait(&self, gpu: &WgpuDevice) -> Result<(), DeviceFault> {
        if !gpu.is_software && cfg!(not(target_arch = "wasm32")) {
            self.spin_until_done(gpu)?;
        }
        while !self.signal.done(gpu)? {
            if cfg!(target_arch = "wasm32") {
                let text = "a browser cannot wait for results: await them (`run_async`, `finished`, `fetch_state`, `fetch_output_rows`)";
                return Err(DeviceFault::Refused(text.to_string()));
            }
            gpu.poll(Some(&self.submission))?;
            // Another thread that polls may be about to call our callbacks.
            let state = lock(&self.signal.state);
            if state.pending_callbacks > 0 {
                let wait = self
                    .signal
                    .changed
                    .wait_timeout(state, Duration::from_millis(1));
                drop(wait.unwrap_or_else(PoisonError::into_inner));
            }
        }
        let mut state = lock(&self.signal.state);
        while state.has_waiter_thread {
            let changed = self.signal.changed.wait(state);
            state = changed.unwrap_or_else(PoisonError::into_inner);
        }
        Ok(())
    }

    /// Asks again and again, for a while, whether it is done.
    fn spin_until_done(&self, gpu: &WgpuDevice) -> Result<(), DeviceFault> {
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
    /// [`DeviceFault`] of the device.
    pub(crate) fn poll(
        &mut self,
        gpu: &Arc<WgpuDevice>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), DeviceFault>> {
        // Natively callbacks are called by those who poll the device.
        gpu.poll(None)?;
        lock(&self.signal.state).waker = Some(cx.waker().clone());
        // Asked now, as it may have been done before the waker was there.
        if self.signal.done(gpu)? {
            return match lock(&self.signal.state).has_waiter_thread {
                true => Poll::Pending,
                false => Poll::Ready(Ok(())),
            };
        }
        if !self.has_waiter_thread {
            self.has_waiter_thread = spawn_waiter(gpu, self);
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
fn spawn_waiter(gpu: &Arc<WgpuDevice>, flight: &InFlightReadback) -> bool {
    let (gpu, submission) = (Arc::clone(gpu), flight.submission.clone());
    let signal = Arc::clone(&flight.signal);
    lock(&signal.state).has_waiter_thread = true;
    let thread = std::thread::Builder::new().name("tercet-wgpu".to_string());
    let spawned = thread.spawn(move || {
        // A lost device is found by the woken task.
        let _ = gpu.poll(Some(&submission));
        drop(gpu);
        signal.release_waiter();
    });
    if spawned.is_err() {
        flight.signal.release_waiter();
    }
    spawned.is_ok()
}

/// In a browser the event loop calls callbacks.
#[cfg(target_arch = "wasm32")]
fn spawn_waiter(_: &Arc<WgpuDevice>, _: &InFlightReadback) -> bool {
    true
}
