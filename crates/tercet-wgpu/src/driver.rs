//! A program on a device.

mod behind;
mod uploads;

use std::sync::Arc;
use std::task::{Context, Poll};

use tercet_ir::{CompileError, RunError};
use tercet_plan::{Buffer, Driver, Fetched, Launch, Program, Put, Read, StageId};

use crate::below;
use crate::buffers::{Buffers, Unmade, check_sizes, describe};
use crate::call::{Rules, Script};
use crate::device::{Gpu, Trouble};
use crate::encode::{Ahead, Groups, Made, Played};
use crate::inputs::Inputs;
use crate::pipeline::Checks;
use crate::readback::{Flight, Readback};
use crate::shared::WgpuShared;
use crate::timing::Timer;

/// The most bytes that one write hands to wgpu, which copies them.
const CHUNK_BYTES: usize = 16 << 20;
/// The bytes handed over after which the device gets them, so that copies do not pile up.
const UNSENT_BYTES: u64 = 64 << 20;

/// The device side of an executable.
#[derive(Debug)]
pub struct WgpuDriver {
    gpu: Arc<Gpu>,
    made: Arc<Made>,
    buffers: Buffers,
    /// `None` until the first run, and when a buffer was replaced.
    groups: Option<Groups>,
    ahead: Ahead,
    inputs: Inputs,
    /// Where results go: those of a run, and of one behind it.
    readbacks: [Readback; 2],
    /// Which of them the run started last has.
    reading: usize,
    flight: Option<Flight>,
    /// The run before it, where it was started behind one that is not waited for yet; its results go into the other.
    older: Option<Flight>,
    /// The numbers as bytes, kept for its memory.
    numbers: Vec<u8>,
    /// Bytes written since the last submission.
    unsent: u64,
    timer: Option<Timer>,
    /// The steps whose times the submission in flight takes.
    timed: Vec<usize>,
    /// The times of the last run, and the first timestamp.
    times: Vec<(usize, u64, u64)>,
    origin: Option<u64>,
}

impl From<Unmade> for RunError {
    fn from(e: Unmade) -> RunError {
        e.trouble.running(e.what, e.bytes)
    }
}

impl From<Unmade> for CompileError {
    fn from(e: Unmade) -> CompileError {
        e.trouble.compiling(e.what, e.bytes)
    }
}

/// A trouble during a run that was no allocation of ours.
fn during(what: &'static str) -> impl Fn(Trouble) -> RunError {
    move |trouble| trouble.running(what, 0)
}

impl WgpuDriver {
    /// Makes pipelines and buffers and uploads the constants.
    ///
    /// # Errors
    /// [`CompileError`] that names the kernel or buffer.
    pub(crate) fn new(
        gpu: &Arc<Gpu>,
        program: Arc<Program>,
        checks: Checks,
    ) -> Result<WgpuDriver, CompileError> {
        let limits = &gpu.limits;
        check_sizes(&program, limits.max_buffer_size)?;
        let rules = Rules {
            max_binding_bytes: limits.max_storage_buffer_binding_size,
            storage_align_bytes: limits.min_storage_buffer_offset_alignment.into(),
            uniform_align_bytes: limits.min_uniform_buffer_offset_alignment.into(),
            max_grid: limits.max_compute_workgroups_per_dimension,
            lowers: gpu.kept.lowers() && checks == Checks::None,
        };
        let script = Script::new(&program, rules)?;
        let made = gpu.pipelines.get_all(gpu, &script.variants, checks);
        let pipelines = made.map_err(|(at, trouble)| {
            let variant = &script.variants[at];
            match trouble {
                Trouble::Refused(reason) => CompileError::Device {
                    reason: format!("kernel {}: {reason}", variant.name),
                },
                other => other.compiling("a pipeline", variant.code_bytes()),
            }
        })?;
        let buffers = Buffers::new(gpu, &program, script.numbers_bytes)?;
        let mut driver = WgpuDriver::of(
            gpu,
            Arc::new(Made {
                program,
                script,
                pipelines,
                says_barriers: gpu.groups && checks == Checks::None,
            }),
            buffers,
        );
        driver.make_timer()?;
        driver.upload_consts()?;
        Ok(driver)
    }

    fn of(gpu: &Arc<Gpu>, made: Arc<Made>, buffers: Buffers) -> WgpuDriver {
        WgpuDriver {
            gpu: Arc::clone(gpu),
            made,
            buffers,
            groups: None,
            ahead: Ahead::default(),
            inputs: Inputs::default(),
            readbacks: Default::default(),
            reading: 0,
            flight: None,
            older: None,
            numbers: Vec::new(),
            unsent: 0,
            timer: None,
            timed: Vec::new(),
            times: Vec::new(),
            origin: None,
        }
    }

    fn make_timer(&mut self) -> Result<(), Unmade> {
        if self.gpu.timings {
            self.timer = Timer::new(&self.gpu, self.made.script.steps.len())?;
        }
        Ok(())
    }

    fn upload_consts(&mut self) -> Result<(), CompileError> {
        let made = Arc::clone(&self.made);
        for (i, tensor) in made.program.consts.iter().enumerate() {
            let bytes = tensor.loose_bytes();
            self.upload(Buffer::Const(i as u32), 0, bytes)
                .map_err(|t| t.compiling("a constant", bytes.len() as u64))?;
        }
        Ok(())
    }

    fn send_numbers(&mut self, launch: &Launch) -> Result<(), Trouble> {
        self.made.script.numbers(launch, &mut self.numbers);
        let (gpu, numbers) = (&self.gpu, &self.numbers);
        match numbers.is_empty() {
            true => Ok(()),
            false => gpu.scoped(|| gpu.queue.write_buffer(&self.buffers.numbers, 0, numbers)),
        }
    }

    /// Makes the bind groups if there are none.
    fn bind(&mut self) -> Result<(), Trouble> {
        if self.groups.is_none() {
            let (made, buffers) = (&self.made, &self.buffers);
            self.groups = Some(
                self.gpu
                    .scoped(|| Groups::new(&self.gpu.device, made, buffers))?,
            );
        }
        Ok(())
    }

    /// Writes what inputs were gathered.
    fn send_inputs(&mut self) -> Result<(), RunError> {
        let (gpu, to) = (&self.gpu, self.buffers.get(Buffer::Input));
        if let (Some((at, bytes)), Some(to)) = (self.inputs.unwritten(), to) {
            let sent = gpu.scoped(|| gpu.queue.write_buffer(to, at, bytes));
            sent.map_err(|t| t.running(describe(Buffer::Input), bytes.len() as u64))?;
        }
        self.inputs.written();
        Ok(())
    }

    /// The commands of a run: its calls and the copies of what is read into these buffers. `waits` is what [`Made::waits`] says, if wgpu does
    /// not find out itself.
    fn commands(
        &self,
        played: &Played,
        into: usize,
        timer: Option<&Timer>,
        waits: Option<Vec<bool>>,
    ) -> wgpu::CommandBuffer {
        let readback = &self.readbacks[into];
        let mut encoder = (self.gpu.device).create_command_encoder(&Default::default());
        if let Some(groups) = &self.groups {
            let steps = &self.made.script.steps;
            for range in &played.ranges {
                let (calls, groups) = (&steps[range.clone()], &groups.steps[range.clone()]);
                (self.made).encode(&mut encoder, calls, groups, &played.grids, timer);
            }
        }
        readback.copy(&mut encoder, &self.buffers, &played.reads);
        if let Some(timer) = timer {
            let (to, at) = readback.spot(played.reads.len());
            timer.resolve(&mut encoder, self.timed.len(), to, at);
        }
        // wgpu gives the driver all commands at once, now.
        match waits {
            Some(waits) => below::grouped(waits, || encoder.finish()),
            None => encoder.finish(),
        }
    }

    /// Runs the steps of stages and the copies of `reads`, after what is `first`.
    fn play(
        &mut self,
        launch: &Launch,
        stages: &[StageId],
        first: Option<wgpu::CommandBuffer>,
        reads: &[Read],
    ) -> Result<(), RunError> {
        let gpu = Arc::clone(&self.gpu);
        self.send_inputs()?;
        self.bind().map_err(during("bind groups"))?;
        let played = self.made.played(launch, stages, reads);
        self.timed.clear();
        if self.timer.is_some() {
            let steps = &self.made.script.steps;
            let calls = played.ranges.iter().flat_map(|r| &steps[r.clone()]);
            self.timed.extend(calls.map(|c| c.step));
        }
        let times = (!self.timed.is_empty()).then(|| Timer::bytes(self.timed.len()));
        let sizes = reads.iter().map(|r| r.bytes).chain(times);
        let into = self.reading;
        self.readbacks[into].prepare(&gpu, sizes)?;
        let ahead = self.ahead.take(&played, into);
        let again = self.ahead.is_again(&played);
        let is_timed = self.timer.is_some() && !self.timed.is_empty();
        let made = Arc::clone(&self.made);
        let waits = (made.says_barriers && !is_timed)
            .then(|| (self.ahead).waits(|| made.waits(launch, stages, &played)));
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
            // Behind another run they go by turns.
            let next = if self.older.is_some() { 1 - into } else { into };
            let commands = gpu.tried(|| self.commands(&played, next, None, waits));
            self.ahead.keep(commands, next);
        }
        Ok(())
    }

    /// Copies a range into a buffer that the host is going to see.
    fn copy_out(&mut self, read: Read) -> Result<(Readback, Flight), RunError> {
        self.send_inputs()?;
        let gpu = Arc::clone(&self.gpu);
        let mut readback = Readback::default();
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

impl Driver for WgpuDriver {
    const NAME: &'static str = "wgpu";

    type Shared = WgpuShared;

    fn share(&mut self, range: Read) -> Result<WgpuShared, RunError> {
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

    fn reaches(&self, shared: &WgpuShared) -> bool {
        shared.is_of(&self.gpu)
    }

    fn take(&mut self, shared: &WgpuShared, range: Read) -> Result<(), RunError> {
        self.send_inputs()?;
        self.inputs.is_foreign();
        match self.buffers.get(range.buffer) {
            Some(to) => shared.copy_to(to, range),
            None => Ok(()),
        }
    }

    fn write(&mut self, buffer: Buffer, offset_bytes: u64, bytes: &[u8]) -> Result<(), RunError> {
        let size = bytes.len() as u64;
        let holds = self.buffers.get(buffer).map_or(0, wgpu::Buffer::size);
        if buffer == Buffer::Input && self.inputs.take(holds, offset_bytes, bytes) {
            return Ok(());
        }
        self.upload(buffer, offset_bytes, bytes)
            .map_err(|t| t.running(describe(buffer), size))
    }

    fn clear(&mut self, buffer: Buffer) -> Result<(), RunError> {
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

    /// Submissions follow each other, so that what is prepared is there for the next; nothing waits.
    fn prepare(&mut self, launch: &Launch) -> Result<(), RunError> {
        self.send_numbers(launch).map_err(during("numbers"))?;
        self.send_inputs()?;
        self.bind().map_err(during("bind groups"))?;
        let gpu = &self.gpu;
        let prepared = gpu.scoped(|| {
            let mut encoder = gpu.device.create_command_encoder(&Default::default());
            if let Some(groups) = &self.groups {
                let (calls, grids) = (&self.made.script.prepare, &launch.prepare_grids);
                (self.made).encode(&mut encoder, calls, &groups.prepare, grids, None);
            }
            gpu.queue.submit([encoder.finish()]);
        });
        prepared.map_err(during("prepared parameters"))
    }

    fn submit(
        &mut self,
        launch: &Launch,
        stages: &[StageId],
        changed: bool,
        reads: &[Read],
    ) -> Result<(), RunError> {
        if changed {
            self.send_numbers(launch).map_err(during("numbers"))?;
        }
        if self.timer.is_none() {
            return self.play(launch, stages, None, reads);
        }
        // Stages write the same timestamps: each is a submission of its own.
        self.wait(&mut |_, _| {})?;
        let (last, before) = match stages.split_last() {
            Some((last, before)) => (std::slice::from_ref(last), before),
            None => (stages, stages),
        };
        for stage in before {
            self.play(launch, std::slice::from_ref(stage), None, &[])?;
            self.wait(&mut |_, _| {})?;
        }
        self.play(launch, last, None, reads)
    }

    fn submit_behind(
        &mut self,
        launch: &Launch,
        changed: bool,
        puts: &[Put<'_>],
        reads: &[Read],
    ) -> Result<bool, RunError> {
        self.start_behind(launch, changed, puts, reads)
    }

    fn wait(&mut self, take: &mut dyn FnMut(usize, &[u8])) -> Result<(), RunError> {
        let (flight, from) = match (self.older.take(), &mut self.flight) {
            (Some(older), _) => (older, 1 - self.reading),
            (None, flight) => match flight.take() {
                Some(flight) => (flight, self.reading),
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

    fn read(&mut self, read: Read, take: &mut dyn FnMut(&[u8])) -> Result<(), RunError> {
        let (mut readback, flight) = self.copy_out(read)?;
        flight.wait(&self.gpu).map_err(during("a read"))?;
        (readback.take(&mut |_, bytes| take(bytes))).map_err(during("a read"))
    }

    fn fetch(&mut self, read: Read) -> Result<Fetched, RunError> {
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
        match self.older.as_mut().or(self.flight.as_mut()) {
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
        let made = Arc::clone(&self.made);
        let buffers = self.buffers.try_clone(&self.gpu, &made.program)?;
        let mut clone = WgpuDriver::of(&self.gpu, made, buffers);
        clone.make_timer()?;
        Ok(clone)
    }

    fn unshare_params(&mut self) -> Result<(), RunError> {
        if (self.buffers).unshare_params(&self.gpu, &self.made.program)? {
            self.groups = None;
            self.ahead.forget();
        }
        Ok(())
    }
}
