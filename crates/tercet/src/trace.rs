//! Execution traces in the format of Chrome and Perfetto: compiling, runs, and the device time of each
//! step, for every executable of a device.
//!
//! [`DeviceOptions::trace`](crate::DeviceOptions::trace) or the environment variable `TERCET_TRACE`
//! turns it on. The device then wraps its executables in [`TracedExecutable`], which appends the events
//! of each run to the file. Each event is a line of a JSON array, so the file of a program that is
//! killed can still be opened.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Instant;

use tercet_ir::backend::{Explanation, OutputSelection, TensorFuture};
use tercet_ir::random::RngState;
use tercet_ir::{
    Backend, CompileError, CompileOptions, DType, DeviceTensor, Executable, Graph, RunError,
    Scheme, Signature, Tensor, VariantFamily,
};

/// The environment variable with the path of a trace file.
pub(crate) const ENV_TRACE: &str = "TERCET_TRACE";

/// Maximum number of events of a file, about 600 MB.
const MAX_TRACE_EVENTS: usize = 4_000_000;

/// The trace files of this process. Devices with the same path share a file.
static FILES: LazyLock<Mutex<HashMap<PathBuf, Weak<TraceFile>>>> = LazyLock::new(Mutex::default);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An open trace file.
pub(crate) struct TraceFile {
    path: PathBuf,
    zero: Instant,
    /// The next track. A track has two threads: host and device.
    next_track: AtomicU32,
    /// `None` after an error, and if the file is full.
    writer: Mutex<Option<TraceWriter>>,
}

struct TraceWriter {
    file: BufWriter<File>,
    events: usize,
}

/// The fields of an event besides its times.
struct TraceEvent<'a> {
    thread: u32,
    name: &'a str,
    kernel: Option<&'a str>,
}

impl TraceFile {
    /// Opens the file with this path, or returns the open one.
    ///
    /// # Errors
    /// I/O errors of creating the file.
    pub(crate) fn open(path: &Path) -> io::Result<Arc<TraceFile>> {
        let mut files = lock(&FILES);
        if let Some(open) = files.get(path).and_then(Weak::upgrade) {
            return Ok(open);
        }
        let mut file = BufWriter::new(File::create(path)?);
        file.write_all(b"[")?;
        let trace = Arc::new(TraceFile {
            path: path.to_path_buf(),
            zero: Instant::now(),
            next_track: AtomicU32::new(0),
            writer: Mutex::new(Some(TraceWriter { file, events: 0 })),
        });
        files.insert(path.to_path_buf(), Arc::downgrade(&trace));
        Ok(trace)
    }

    /// Microseconds from the start of the trace.
    fn micros(&self, time: Instant) -> f64 {
        time.saturating_duration_since(self.zero).as_secs_f64() * 1e6
    }

    /// Starts a track, and names its two threads. Returns the thread of the host; that of the device
    /// follows it.
    fn start_track(&self, device: &str) -> u32 {
        let track = self.next_track.fetch_add(1, Ordering::Relaxed);
        let host = 2 * track + 1;
        for (thread, what) in [(host, "host"), (host + 1, "device")] {
            let name = escaped(&format!("{device} {}, {what}", track + 1));
            self.write(format_args!(
                r#"{{"ph":"M","pid":1,"tid":{thread},"name":"thread_name","args":{{"name":"{name}"}}}}"#
            ));
        }
        host
    }

    /// Writes an event with its start and duration in microseconds.
    fn event(&self, event: &TraceEvent<'_>, start: f64, duration: f64) {
        let TraceEvent {
            thread,
            name,
            kernel,
        } = event;
        let name = escaped(name);
        let args = kernel.map_or(String::new(), |kernel| {
            format!(r#","args":{{"kernel":"{}"}}"#, escaped(kernel))
        });
        self.write(format_args!(
            r#"{{"ph":"X","pid":1,"tid":{thread},"name":"{name}","ts":{start:.3},"dur":{duration:.3}{args}}}"#
        ));
    }

    /// Writes an event of the host that ends now.
    fn host_event(&self, thread: u32, name: &str, start: Instant) {
        let event = TraceEvent {
            thread,
            name,
            kernel: None,
        };
        let from = self.micros(start);
        self.event(&event, from, self.micros(Instant::now()) - from);
    }

    fn write(&self, line: std::fmt::Arguments<'_>) {
        let mut open = lock(&self.writer);
        let Some(writer) = open.as_mut() else {
            return;
        };
        let separator = if writer.events == 0 { "\n" } else { ",\n" };
        writer.events += 1;
        let written = write!(writer.file, "{separator}{line}");
        let is_full = writer.events == MAX_TRACE_EVENTS;
        let path = self.path.display();
        if let Err(e) = written {
            tracing::warn!("{path}: the trace ends here: {e}");
            *open = None;
        } else if is_full {
            tracing::warn!("{path}: the trace ends after {MAX_TRACE_EVENTS} events");
            close(open.take());
        }
    }

    /// Writes buffered events to the file.
    fn flush(&self) {
        if let Some(writer) = lock(&self.writer).as_mut() {
            // The next event reports the error.
            let _ = writer.file.flush();
        }
    }
}

/// Ends the array. A failed write only leaves it open.
fn close(writer: Option<TraceWriter>) {
    if let Some(mut writer) = writer {
        let _ = writer.file.write_all(b"\n]\n");
        let _ = writer.file.flush();
    }
}

impl Drop for TraceFile {
    fn drop(&mut self) {
        close(lock(&self.writer).take());
    }
}

/// A text as the contents of a JSON string.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out
}

/// A backend whose executables write to a trace file.
pub(crate) struct TracedBackend {
    inner: Arc<dyn Backend>,
    trace: Arc<TraceFile>,
    /// The thread of compiling.
    thread: u32,
}

impl TracedBackend {
    /// `opened` is the time when opening the device started.
    pub(crate) fn new(
        inner: Arc<dyn Backend>,
        trace: Arc<TraceFile>,
        opened: Instant,
    ) -> TracedBackend {
        let thread = trace.start_track(inner.name());
        trace.host_event(thread, "open device", opened);
        trace.flush();
        TracedBackend {
            inner,
            trace,
            thread,
        }
    }
}

impl Backend for TracedBackend {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn fast_matmul_dtypes(&self) -> Vec<DType> {
        self.inner.fast_matmul_dtypes()
    }

    fn fast_quant_matmul_dtypes(&self) -> Vec<DType> {
        self.inner.fast_quant_matmul_dtypes()
    }

    fn max_small_m_rows(&self, scheme: Scheme) -> Option<usize> {
        self.inner.max_small_m_rows(scheme)
    }

    fn variant_families(&self) -> Vec<VariantFamily> {
        self.inner.variant_families()
    }

    fn description(&self) -> String {
        self.inner.description()
    }

    fn free_memory_bytes(&self) -> Option<u64> {
        self.inner.free_memory_bytes()
    }

    fn compile(
        &self,
        graph: &Graph,
        options: &CompileOptions,
    ) -> Result<Box<dyn Executable>, CompileError> {
        let start = Instant::now();
        let inner = self.inner.compile(graph, options)?;
        self.trace
            .host_event(self.thread, "compile and load", start);
        Ok(Box::new(TracedExecutable::new(
            inner,
            Arc::clone(&self.trace),
            self.name(),
        )))
    }

    fn explain(
        &self,
        graph: &Graph,
        options: &CompileOptions,
    ) -> Result<Explanation, CompileError> {
        self.inner.explain(graph, options)
    }
}

/// An executable that writes its runs to a trace file.
struct TracedExecutable {
    inner: Box<dyn Executable>,
    trace: Arc<TraceFile>,
    device: &'static str,
    /// The thread of the host in the trace; that of the device follows it.
    thread: u32,
    /// Start times of the runs in flight, the older one first.
    in_flight: VecDeque<Instant>,
}

impl TracedExecutable {
    fn new(
        inner: Box<dyn Executable>,
        trace: Arc<TraceFile>,
        device: &'static str,
    ) -> TracedExecutable {
        let thread = trace.start_track(device);
        TracedExecutable {
            inner,
            trace,
            device,
            thread,
            in_flight: VecDeque::new(),
        }
    }

    /// Writes a phase of the host that ends now.
    fn phase(&self, name: &str, start: Instant) {
        self.trace.host_event(self.thread, name, start);
    }

    /// Writes the steps of a finished run that started at `start`.
    fn steps(&mut self, start: Instant) {
        let base = self.trace.micros(start);
        for step in self.inner.timings() {
            let event = TraceEvent {
                thread: self.thread + 1,
                name: step.op,
                kernel: Some(&step.kernel),
            };
            let from = base + step.start_ns as f64 / 1e3;
            self.trace.event(&event, from, step.ns as f64 / 1e3);
        }
        self.trace.flush();
    }
}

impl Executable for TracedExecutable {
    fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    fn set_param(&mut self, name: &str, tensor: Tensor) -> Result<(), RunError> {
        let start = Instant::now();
        self.inner.set_param(name, tensor)?;
        self.phase("set parameter", start);
        Ok(())
    }

    fn run_into(
        &mut self,
        inputs: &[(&str, &Tensor)],
        outputs: &mut Vec<Tensor>,
    ) -> Result<(), RunError> {
        let start = Instant::now();
        self.in_flight.clear();
        self.inner.run_into(inputs, outputs)?;
        self.phase("run", start);
        self.steps(start);
        Ok(())
    }

    fn submit(
        &mut self,
        inputs: &[(&str, &Tensor)],
        wanted: OutputSelection<'_>,
    ) -> Result<(), RunError> {
        let start = Instant::now();
        // The results of an earlier run are dropped.
        self.in_flight.clear();
        self.inner.submit(inputs, wanted)?;
        self.in_flight.push_back(start);
        self.phase("submit", start);
        Ok(())
    }

    fn submit_pipelined(
        &mut self,
        inputs: &[(&str, &Tensor)],
        carried: &[(&str, &str)],
        wanted: OutputSelection<'_>,
    ) -> Result<bool, RunError> {
        let start = Instant::now();
        let started = self.inner.submit_pipelined(inputs, carried, wanted)?;
        if started {
            self.in_flight.push_back(start);
            self.phase("submit", start);
        }
        Ok(started)
    }

    fn wait(&mut self, outputs: &mut Vec<Tensor>) -> Result<(), RunError> {
        let start = Instant::now();
        let submitted = self.in_flight.pop_front();
        self.inner.wait(outputs)?;
        if let Some(submitted) = submitted {
            self.phase("wait", start);
            self.steps(submitted);
        }
        Ok(())
    }

    fn poll_run(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), RunError>> {
        self.inner.poll_run(cx)
    }

    fn fetch_output_rows(
        &mut self,
        output: &str,
        rows: Range<usize>,
    ) -> Result<TensorFuture, RunError> {
        self.inner.fetch_output_rows(output, rows)
    }

    fn fetch_state(&mut self, name: &str) -> Result<TensorFuture, RunError> {
        self.inner.fetch_state(name)
    }

    fn read_output_rows(&mut self, output: &str, rows: Range<usize>) -> Result<Tensor, RunError> {
        let start = Instant::now();
        let read = self.inner.read_output_rows(output, rows)?;
        self.phase("read output", start);
        Ok(read)
    }

    fn upload(&self, tensor: &Tensor) -> Result<DeviceTensor, RunError> {
        let start = Instant::now();
        let uploaded = self.inner.upload(tensor)?;
        self.phase("upload", start);
        Ok(uploaded)
    }

    fn output_on_device(&mut self, output: &str) -> Result<DeviceTensor, RunError> {
        self.inner.output_on_device(output)
    }

    fn release_outputs(&mut self) {
        self.inner.release_outputs();
    }

    fn bind(&mut self, input: &str, tensor: &DeviceTensor) -> Result<(), RunError> {
        self.inner.bind(input, tensor)
    }

    fn unbind(&mut self, input: &str) -> Result<(), RunError> {
        self.inner.unbind(input)
    }

    fn kernel_variants(&self, inputs: &[(&str, &Tensor)]) -> Result<Vec<u32>, RunError> {
        self.inner.kernel_variants(inputs)
    }

    fn timings(&mut self) -> Vec<tercet_ir::backend::StepTime> {
        self.inner.timings()
    }

    fn write_state(&mut self, name: &str, tensor: &Tensor) -> Result<(), RunError> {
        let start = Instant::now();
        self.inner.write_state(name, tensor)?;
        self.phase("write state", start);
        Ok(())
    }

    fn read_state(&self, name: &str) -> Result<Tensor, RunError> {
        let start = Instant::now();
        let read = self.inner.read_state(name)?;
        self.phase("read state", start);
        Ok(read)
    }

    fn write_state_elements(
        &mut self,
        name: &str,
        first: usize,
        values: &Tensor,
    ) -> Result<(), RunError> {
        let start = Instant::now();
        self.inner.write_state_elements(name, first, values)?;
        self.phase("write state", start);
        Ok(())
    }

    fn read_state_elements(&self, name: &str, elements: Range<usize>) -> Result<Tensor, RunError> {
        let start = Instant::now();
        let read = self.inner.read_state_elements(name, elements)?;
        self.phase("read state", start);
        Ok(read)
    }

    fn random(&self) -> RngState {
        self.inner.random()
    }

    fn set_random(&mut self, random: RngState) {
        self.inner.set_random(random);
    }

    fn reset(&mut self) {
        self.in_flight.clear();
        self.inner.reset();
    }

    fn try_clone(&self) -> Result<Box<dyn Executable>, RunError> {
        let inner = self.inner.try_clone()?;
        Ok(Box::new(TracedExecutable::new(
            inner,
            Arc::clone(&self.trace),
            self.device,
        )))
    }
}
