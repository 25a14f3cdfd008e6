//! Executes a compiled program on a wgpu device.

mod behind;
mod uploads;

use std::sync::Arc;
use std::task::{Context, Poll};

use tercet_ir::{CompileError, RunError};
use tercet_plan::{
    GpuProgram, InputUpdate, LaunchSizes, LoadedProgram, PendingReadback, ProgramBuffer,
    ReadbackRange, StageId,
};

use crate::buffers::{BufferError, WgpuBuffers, check_sizes, describe};
use crate::call::{CallLimits, WgpuCommandList};
use crate::device::{DeviceFault, WgpuDevice};
use crate::device_tensor::WgpuShared;
use crate::encode::{BindGroups, EncodedRunKey, PreEncodedRun, SharedExecutableState};
use crate::inputs::InputBuffer;
use crate::pipeline::ShaderChecks;
use crate::readback::{InFlightReadback, WgpuReadback};
use crate::timing::TimestampTimer;
use crate::vulkan_hal;

/// Maximum bytes per wgpu write; wgpu copies them to its own staging memory.
const CHUNK_BYTES: usize = 16 << 20;
/// Submits pending writes after this many bytes, so that wgpu's staging copies do not accumulate.
const UNSENT_BYTES: u64 = 64 << 20;

/// The device part of an executable: buffers, pipelines and readback.
///
/// ```
/// use tercet_wgpu::{WgpuDriver, WgpuExecutable};
/// /// The device part of a compiled graph, which implements `tercet_plan::LoadedProgram`.
/// fn driver(exe: &mut WgpuExecutable) -> &mut WgpuDriver {
///     assert!(!exe.program().kernels.is_empty());
///     exe.inner().driver()
/// }
/// ```
#[derive(Debug)]
pub struct WgpuDriver {
    gpu: Arc<WgpuDevice>,
    common: Arc<SharedExecutableState>,
    buffers: WgpuBuffers,
    /// `None` before the first run and after a buffer was replaced.
    groups: Option<BindGroups>,
    pre_encoded: PreEncodedRun,
    inputs: InputBuffer,
    /// Readback buffers: one for a run and one for a run pipelined behind it.
    readbacks: [WgpuReadback; 2],
    /// The index of the readback of the latest run.
    active_readback: usize,
    flight: Option<InFlightReadback>,
    /// The run before the latest one, if its results were not read before the latest run started.
    /// The older run uses the readback that is not active.
    previous: Option<InFlightReadback>,
    /// The parameter blocks as bytes; reused to avoid allocations.
    numbers: Vec<u8>,
    /// Bytes passed to wgpu for writing since the last submission.
    unsent: u64,
    timer: Option<TimestampTimer>,
    /// The steps for which the submission in flight takes timestamps.
    timed: Vec<usize>,
    /// The times of the steps of the last run as (step, start, duration).
    times: Vec<(usize, u64, u64)>,
    origin: Option<u64>,
}

impl From<BufferError> for RunError {
    fn from(e: BufferError) -> RunError {
        e.fault.running(e.what, e.bytes)
    }
}

impl From<BufferError> for CompileError {
    fn from(e: BufferError) -> CompileError {
        e.fault.compiling(e.what, e.bytes)
    }
}

/// Converts a device failure during a run, other than a failed allocation, to a run error.
fn during(what: &'static str) -> impl Fn(DeviceFault) -> RunError {
    move |trouble| trouble.running(what, 0)
}

impl WgpuDriver {
    /// Creates pipelines and buffers and uploads the constants.
    ///
    /// # Errors
    /// [`CompileError`] with the kernel or the buffer.
    pub(crate) fn new(
        gpu: &Arc<WgpuDevice>,
        program: Arc<GpuProgram>,
        checks: ShaderChecks,
    ) -> Result<WgpuDriver, CompileError> {
        let limits = &gpu.limits;
        check_sizes(&program, limits.max_buffer_size)?;
        let rules = CallLimits {
            max_binding_bytes: limits.max_storage_buffer_binding_size,
            storage_align_bytes: limits.min_storage_buffer_offset_alignment.into(),
            uniform_align_bytes: limits.min_uniform_buffer_offset_alignment.into(),
            max_grid: limits.max_compute_workgroups_per_dimension,
            takes_spirv: gpu.shader_cache.lowers() && checks == ShaderChecks::None,
        };
        let script = WgpuCommandList::new(&program, rules)?;
        let made = gpu.pipelines.get_all(gpu, &script.variants, checks);
        let pipelines = made.map_err(|(at, trouble)| {
            let variant = &script.variants[at];
            match trouble {
                DeviceFault::Refused(reason) => CompileError::Kernel {
                    kernel: variant.name.clone(),
                    reason,
                },
                other => other.compiling("a pipeline", variant.code_bytes()),
            }
        })?;
        let buffers = WgpuBuffers::new(gpu, &program, script.numbers_bytes)?;
        let mut driver = WgpuDriver::with_buffers(
            gpu,
            Arc::new(SharedExecutableState {
                program,
                commands: script,
                pipelines,
                has_explicit_barriers: gpu.groups && checks == ShaderChecks::None,
            }),
            buffers,
        );
        driver.make_timer()?;
        driver.upload_consts()?;
        Ok(driver)
    }

    fn with_buffers(
        gpu: &Arc<WgpuDevice>,
        made: Arc<SharedExecutableState>,
        buffers: WgpuBuffers,
    ) -> WgpuDriver {
        WgpuDriver {
            gpu: Arc::clone(gpu),
            common: made,
            buffers,
            groups: None,
            pre_encoded: PreEncodedRun::default(),
            inputs: InputBuffer::default(),
            readbacks: Default::default(),
            active_readback: 0,
            flight: None,
            previous: None,
            numbers: Vec::new(),
            unsent: 0,
            timer: None,
            timed: Vec::new(),
            times: Vec::new(),
            origin: None,
        }
    }

    fn make_timer(&mut self) -> Result<(), BufferError> {
        if self.gpu.timings {
            self.timer = TimestampTimer::new(&self.gpu, self.common.commands.steps.len())?;
        }
        Ok(())
    }

    fn upload_consts(&mut self) -> Result<(), CompileError> {
        let made = Arc::clone(&self.common);
        for (i, tensor) in made.program.consts.iter().enumerate() {
            let bytes = tensor.loose_bytes();
            self.upload(ProgramBuffer::Const(i as u32), 0, bytes)
                .map_err(|t| t.compiling("a constant", bytes.len() as u64))?;
        }
        Ok(())
    }

    fn send_numbers(&mut self, launch: &LaunchSizes) -> Result<(), DeviceFault> {
        self.common.commands.numbers(launch, &mut self.numbers);
        let (gpu, numbers) = (&self.gpu, &self.numbers);
        match numbers.is_empty() {
            true => Ok(()),
            false => gpu.scoped(|| gpu.queue.write_buffer(&self.buffers.numbers, 0, numbers)),
        }
    }

    /// Creates the bind groups if there are none.
    fn bind(&mut self) -> Result<(), DeviceFault> {
        if self.groups.is_none() {
            let (made, buffers) = (&self.common, &self.buffers);
            self.groups = Some(
                self.gpu
                    .scoped(|| BindGroups::new(&self.gpu.device, made, buffers))?,
            );
        }
        Ok(())
    }

    /// Writes the gathered inputs to the device.
    fn send_inputs(&mut self) -> Result<(), RunError> {
        let (gpu, to) = (&self.gpu, self.buffers.get(ProgramBuffer::Input));
        if let (Some((at, bytes)), Some(to)) = (self.inputs.dirty_bytes(), to) {
            let sent = gpu.scoped(|| gpu.queue.write_buffer(to, at, bytes));
            sent.map_err(|t| t.running(describe(ProgramBuffer::Input), bytes.len() as u64))?;
        }
        self.inputs.mark_clean();
        Ok(())
    }

    /// Encodes the commands of a run: its dispatches and the copies to a readback. `waits` holds
    /// the barriers from [`SharedExecutableState::waits`]; with `None` wgpu inserts its own.
    fn commands(
        &self,
        played: &EncodedRunKey,
        into: usize,
        timer: Option<&TimestampTimer>,
        waits: Option<Vec<bool>>,
    ) -> wgpu::CommandBuffer {
        let readback = &self.readbacks[into];
        let mut encoder = (self.gpu.device).create_command_encoder(&Default::default());
        if let Some(groups) = &self.groups {
            let steps = &self.common.commands.steps;
            for range in &played.ranges {
                let (calls, groups) = (&steps[range.clone()], &groups.steps[range.clone()]);
                (self.common).encode(&mut encoder, calls, groups, &played.grids, timer);
            }
        }
        readback.copy(&mut encoder, &self.buffers, &played.reads);
        if let Some(timer) = timer {
            let (to, at) = readback.spot(played.reads.len());
            timer.resolve(&mut encoder, self.timed.len(), to, at);
        }
        // wgpu records all commands with the driver in `finish`, so the barrier hooks must be
        // active here.
        match waits {
            Some(waits) => vulkan_hal::grouped(waits, || encoder.finish()),
            None => encoder.finish(),
        }
    }

    /// Runs the steps of `stages` and the copies of `reads`, after the commands in `first`.
    fn execute(
        &mut self,
        launch: &LaunchSizes,
        stages: &[StageId],
        first: Option<wgpu::CommandBuffer>,
        reads: &[ReadbackRange],
    ) -> Result<(), RunError> {
        let gpu = Arc::clone(&self.gpu);
        self.send_inputs()?;
        self.bind().map_err(during("bind groups"))?;
        let played = self.common.played(launch, stages, reads);
        self.timed.clear();
        if self.timer.is_some() {
            let steps = &self.common.commands.steps;
            let calls = played.ranges.iter().flat_map(|r| &steps[r.clone()]);
            self.timed.extend(calls.map(|c| c.step));
        }
        let times = (!self.timed.is_empty()).then(|| TimestampTimer::bytes(self.timed.len()));
        let sizes = reads.iter().map(|r| r.bytes).chain(times);
        let into = self.active_readback;
        self.readbacks[into].prepare(&gpu, sizes)?;
        if self.common.program.debug.record {
            self.pre_encoded.clear();
        }
        let ahead = self.pre_encoded.take_commands(&played, into);
        let again = self.pre_encoded.is_again(&played);
        let is_timed = self.timer.is_some() && !self.timed.is_empty();
        let made = Arc::clone(&self.common);
        let waits = (made.has_explicit_barriers && !is_timed)
            .then(|| (self.pre_encoded).waits(|| made.waits(launch, stages, &played)));
        let timer = self.timer.as_ref().filter(|_| is_timed);
        let sent = gpu.scoped(|| {
            let commands =
                ahead.unwrap_or_else(|| self.commands(&played, into, timer, waits.clone()));
            gpu.queue.submit(first.into_iter().chain([commands]))
        });
        let submission = sent.map_err(during("a run"))?;
        let flight = gpu.scoped(|| self.readbacks[into].map(&gpu, submission));
        self.unsent = 0;
        self.flight = Some(flight.map_err(during("a run"))?);
        if !is_timed && again {
            // Pipelined runs alternate between the two readbacks.
            let next = if self.previous.is_some() {
                1 - into
            } else {
                into
            };
            let commands = gpu.try_calls(|| self.commands(&played, next, None, waits));
            self.pre_encoded.store(commands, next);
        }
        Ok(())
    }

    /// Copies a range of a program buffer into a separate buffer that the host reads later.
    fn copy_out(
        &mut self,
        read: ReadbackRange,
    ) -> Result<(WgpuReadback, InFlightReadback), RunError> {
        self.send_inputs()?;
        let gpu = Arc::clone(&self.gpu);
        let mut readback = WgpuReadback::default();
        readback.prepare(&gpu, std::iter::once(read.bytes))?;
        let flight = gpu.scoped(|| {
            let mut encoder = gpu.device.create_command_encoder(&Default::default());
            readback.copy(&mut encoder, &self.buffers, &[read]);
            let submission = gpu.queue.submit([encoder.finish()]);
            readback.map(&gpu, submission)
        });
        Ok((readback, flight.map_err(during("a read"))?))
    }
}

impl LoadedProgram for WgpuDriver {
    const NAME: &'static str = "wgpu";

    type Shared = WgpuShared;

    fn share(&mut self, range: ReadbackRange) -> Result<WgpuShared, RunError> {
        match self.buffers.get(range.buffer) {
            Some(from) => WgpuShared::copy_of(&self.gpu, from, range),
            None => WgpuShared::new(&self.gpu, range.bytes),
        }
    }

    fn share_bytes(&mut self, bytes: &[u8]) -> Result<WgpuShared, RunError> {
        let size = bytes.len() as u64;
        let made = WgpuShared::new(&self.gpu, size)?;
        let sent = self.upload_to(&made.buffer, 0, bytes);
        sent.map_err(|t| t.running("a tensor on the device", size))?;
        Ok(made)
    }

    fn is_on_device(&self, shared: &WgpuShared) -> bool {
        shared.is_on(&self.gpu)
    }

    fn copy_from_shared(
        &mut self,
        shared: &WgpuShared,
        range: ReadbackRange,
    ) -> Result<(), RunError> {
        self.send_inputs()?;
        self.inputs.is_foreign();
        match self.buffers.get(range.buffer) {
            Some(to) => shared.copy_to(to, range),
            None => Ok(()),
        }
    }

    fn write(
        &mut self,
        buffer: ProgramBuffer,
        offset_bytes: u64,
        bytes: &[u8],
    ) -> Result<(), RunError> {
        let size = bytes.len() as u64;
        let holds = self.buffers.get(buffer).map_or(0, wgpu::Buffer::size);
        if buffer == ProgramBuffer::Input && self.inputs.take(holds, offset_bytes, bytes) {
            return Ok(());
        }
        self.upload(buffer, offset_bytes, bytes)
            .map_err(|t| t.running(describe(buffer), size))
    }

    fn clear(&mut self, buffer: ProgramBuffer) -> Result<(), RunError> {
        self.send_inputs()?;
        let Some(to) = self.buffers.get(buffer) else {
            return Ok(());
        };
        let gpu = &self.gpu;
        let cleared = gpu.scoped(|| {
            let mut encoder = gpu.device.create_command_encoder(&Default::default());
            encoder.clear_buffer(to, 0, None);
            gpu.queue.submit([encoder.finish()]);
        });
        cleared.map_err(during(describe(buffer)))
    }

    /// Queue submissions run in order, so the next run sees the prepared buffers without a wait.
    fn prepare(&mut self, launch: &LaunchSizes) -> Result<(), RunError> {
        self.send_numbers(launch).map_err(during("numbers"))?;
        self.send_inputs()?;
        self.bind().map_err(during("bind groups"))?;
        let gpu = &self.gpu;
        let prepared = gpu.scoped(|| {
            let mut encoder = gpu.device.create_command_encoder(&Default::default());
            if let Some(groups) = &self.groups {
                let (calls, grids) = (&self.common.commands.prepare, &launch.prepare_grids);
                (self.common).encode(&mut encoder, calls, &groups.prepare, grids, None);
            }
            gpu.queue.submit([encoder.finish()]);
        });
        prepared.map_err(during("prepared parameters"))
    }

    fn submit(
        &mut self,
        launch: &LaunchSizes,
        stages: &[StageId],
        changed: bool,
        reads: &[ReadbackRange],
    ) -> Result<(), RunError> {
        if changed {
            self.send_numbers(launch).map_err(during("numbers"))?;
        }
        if self.timer.is_none() {
            return self.execute(launch, stages, None, reads);
        }
        // Stages share the timestamp queries, so each stage needs its own submission.
        self.wait(&mut |_, _| {})?;
        let (last, before) = match stages.split_last() {
            Some((last, before)) => (std::slice::from_ref(last), before),
            None => (stages, stages),
        };
        for stage in before {
            self.execute(launch, std::slice::from_ref(stage), None, &[])?;
            self.wait(&mut |_, _| {})?;
        }
        self.execute(launch, last, None, reads)
    }

    fn submit_pipelined(
        &mut self,
        launch: &LaunchSizes,
        changed: bool,
        puts: &[InputUpdate<'_>],
        reads: &[ReadbackRange],
    ) -> Result<bool, RunError> {
        self.start_pipelined(launch, changed, puts, reads)
    }

    fn wait(&mut self, take: &mut dyn FnMut(usize, &[u8])) -> Result<(), RunError> {
        let (flight, from) = match (self.previous.take(), &mut self.flight) {
            (Some(older), _) => (older, 1 - self.active_readback),
            (None, flight) => match flight.take() {
                Some(flight) => (flight, self.active_readback),
                None => return Ok(()),
            },
        };
        flight.wait(&self.gpu).map_err(during("a run"))?;
        let readback = &mut self.readbacks[from];
        let reads = readback.len() - usize::from(!self.timed.is_empty());
        let (timer, times) = (&self.timer, &mut self.times);
        let (timed, origin) = (&self.timed, &mut self.origin);
        let taken = readback.take(&mut |read, bytes| match timer {
            Some(timer) if read == reads => times.extend(timer.times(timed, bytes, origin)),
            Some(_) | None => take(read, bytes),
        });
        taken.map_err(during("results"))
    }

    fn read(&mut self, read: ReadbackRange, take: &mut dyn FnMut(&[u8])) -> Result<(), RunError> {
        let (mut readback, flight) = self.copy_out(read)?;
        flight.wait(&self.gpu).map_err(during("a read"))?;
        (readback.take(&mut |_, bytes| take(bytes))).map_err(during("a read"))
    }

    fn fetch(&mut self, read: ReadbackRange) -> Result<PendingReadback, RunError> {
        let (mut readback, mut flight) = self.copy_out(read)?;
        let gpu = Arc::clone(&self.gpu);
        Ok(Box::pin(async move {
            let done = std::future::poll_fn(|cx| flight.poll(&gpu, cx)).await;
            done.map_err(during("a read"))?;
            let mut fetched = Vec::new();
            let taken = readback.take(&mut |_, bytes| fetched.extend_from_slice(bytes));
            taken.map_err(during("a read"))?;
            Ok(fetched)
        }))
    }

    fn poll_done(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), RunError>> {
        match self.previous.as_mut().or(self.flight.as_mut()) {
            Some(flight) => flight.poll(&self.gpu, cx).map_err(during("a run")),
            None => Poll::Ready(Ok(())),
        }
    }

    fn begin(&mut self) {
        self.times.clear();
        self.origin = None;
    }

    fn step_times(&mut self) -> Vec<(usize, u64, u64)> {
        self.times.clone()
    }

    fn try_clone(&mut self) -> Result<WgpuDriver, RunError> {
        let made = Arc::clone(&self.common);
        let buffers = self.buffers.try_clone(&self.gpu, &made.program)?;
        let mut clone = WgpuDriver::with_buffers(&self.gpu, made, buffers);
        clone.make_timer()?;
        Ok(clone)
    }

    fn unshare_params(&mut self) -> Result<(), RunError> {
        if (self.buffers).unshare_params(&self.gpu, &self.common.program)? {
            self.groups = None;
            self.pre_encoded.clear();
        }
        Ok(())
    }
}
