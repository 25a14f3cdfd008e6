//! Device-to-host transfers: staging buffers and their completion callbacks.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tercet_plan::ReadbackRange;

use crate::buffers::{BufferError, WgpuBuffers, create_buffer};
use crate::device::{DeviceFault, WgpuDevice, lock};

/// State that callbacks update when a submission and its buffer mappings are done.
#[derive(Debug, Default)]
struct CompletionSignal {
    state: Mutex<CompletionState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct CompletionState {
    /// The number of callbacks that have not run yet.
    pending_callbacks: usize,
    failed: bool,
    waker: Option<Waker>,
    /// True while a thread that waits for the submission holds a reference to the device.
    has_waiter_thread: bool,
}

impl CompletionSignal {
    fn notify(&self, ok: bool) {
        let mut state = lock(&self.state);
        state.pending_callbacks -= 1;
        state.failed |= !ok;
        // A waiter thread wakes the task itself, after it has released the device.
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

    /// Records that the waiter thread released the device, or that there is none.
    #[cfg(not(target_arch = "wasm32"))]
    fn release_waiter(&self) {
        lock(&self.state).has_waiter_thread = false;
        self.changed.notify_all();
        self.wake();
    }

    /// Wakes the task that polled last.
    fn wake(&self) {
        let waker = lock(&self.state).waker.take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// True if the submission is done; an error if a mapping failed.
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

/// A submission in flight, with its completion state.
#[derive(Debug)]
pub(crate) struct InFlightReadback {
    signal: Arc<CompletionSignal>,
    submission: wgpu::SubmissionIndex,
    /// True if a thread polls the device so that the callbacks run.
    has_waiter_thread: bool,
}

/// A mappable buffer and the ranges that the submission copies into it.
#[derive(Debug)]
struct ReadbackStaging {
    buffer: wgpu::Buffer,
    used: u64,
    mapped: bool,
}

/// The location of a read: the staging buffer and the range in it.
#[derive(Clone, Copy, Debug)]
struct StagingRange {
    staging: usize,
    start: usize,
    bytes: usize,
}

/// Staging buffers that are reused across runs.
#[derive(Debug, Default)]
pub(crate) struct WgpuReadback {
    stagings: Vec<ReadbackStaging>,
    ranges: Vec<StagingRange>,
}

const STAGING: wgpu::BufferUsages =
    wgpu::BufferUsages::MAP_READ.union(wgpu::BufferUsages::COPY_DST);

impl WgpuReadback {
    /// Reserves staging memory for reads of these sizes.
    ///
    /// # Errors
    /// [`BufferError`] if the device is out of memory.
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

    /// Encodes the copies of the reads. `prepare` must have received the same reads.
    pub(crate) fn copy(
        &self,
        encoder: &mut wgpu::CommandEncoder,
        buffers: &WgpuBuffers,
        reads: &[ReadbackRange],
    ) {
        for (read, spot) in reads.iter().zip(&self.ranges) {
            let Some(from) = buffers.get(read.buffer) else {
                continue; // An empty range.
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

    /// The staging buffer of a read and its byte offset.
    pub(crate) fn spot(&self, read: usize) -> (&wgpu::Buffer, u64) {
        let spot = self.ranges[read];
        (&self.stagings[spot.staging].buffer, spot.start as u64)
    }

    /// Requests completion callbacks for a submission and the mapping of its staging buffers.
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

    /// Passes the bytes of each read of a finished submission to `take`.
    ///
    /// # Errors
    /// [`DeviceFault`] if a buffer is not mapped.
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

/// Time to poll a submission before the thread blocks. Waking a blocked thread takes longer than a
/// small kernel.
const ASKED_FOR: Duration = Duration::from_millis(10);

impl InFlightReadback {
    /// Blocks until the submission is done.
    ///
    /// # Errors
    /// [`DeviceFault`]; in a browser always, unless the submission is already done.
    pub(crate) fn wait(&self, gpu: &WgpuDevice) -> Result<(), DeviceFault> {
        if !gpu.is_software && cfg!(not(target_arch = "wasm32")) {
            self.spin_until_done(gpu)?;
        }
        while !self.signal.done(gpu)? {
            if cfg!(target_arch = "wasm32") {
                let text = "browsers cannot block on results; await them (`run_async`, `finished`, `fetch_state`, `fetch_output_rows`)";
                return Err(DeviceFault::Refused(text.to_string()));
            }
            gpu.poll(Some(&self.submission))?;
            // The submission is done, but another thread that polled may not have run its callbacks
            // yet.
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

    /// Polls until the submission is done, for at most `ASKED_FOR`.
    fn spin_until_done(&self, gpu: &WgpuDevice) -> Result<(), DeviceFault> {
        let began = Instant::now();
        while !self.signal.done(gpu)? && began.elapsed() < ASKED_FOR {
            gpu.poll(None)?;
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Ready when the submission is done; does not block the thread.
    ///
    /// # Errors
    /// [`DeviceFault`] of the device.
    pub(crate) fn poll(
        &mut self,
        gpu: &Arc<WgpuDevice>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), DeviceFault>> {
        // On native platforms, callbacks run in the threads that poll the device.
        gpu.poll(None)?;
        lock(&self.signal.state).waker = Some(cx.waker().clone());
        // Check again, because the submission may have finished before the waker was stored.
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

/// Starts a thread that waits for the submission, so that its callbacks run. False if no thread
/// could be started; the task then polls.
///
/// The thread drops its device reference before it wakes the task. Otherwise the thread could drop
/// the device last and unload the driver during process exit, and drivers crash if they are
/// unloaded while their exit handlers run.
#[cfg(not(target_arch = "wasm32"))]
fn spawn_waiter(gpu: &Arc<WgpuDevice>, flight: &InFlightReadback) -> bool {
    let (gpu, submission) = (Arc::clone(gpu), flight.submission.clone());
    let signal = Arc::clone(&flight.signal);
    lock(&signal.state).has_waiter_thread = true;
    let thread = std::thread::Builder::new().name("tercet-wgpu".to_string());
    let spawned = thread.spawn(move || {
        // The woken task detects a lost device.
        let _ = gpu.poll(Some(&submission));
        drop(gpu);
        signal.release_waiter();
    });
    if spawned.is_err() {
        flight.signal.release_waiter();
    }
    spawned.is_ok()
}

/// No thread is needed, because in a browser the event loop runs the callbacks.
#[cfg(target_arch = "wasm32")]
fn spawn_waiter(_: &Arc<WgpuDevice>, _: &InFlightReadback) -> bool {
    true
}
