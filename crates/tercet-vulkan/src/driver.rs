//! The device part of an executable: buffers, recorded commands, submission and readback.

pub(crate) mod behind;
mod recording;
mod shared;
mod transfers;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use ash::vk;
use smallvec::SmallVec;
use tercet_ir::RunError;
use tercet_plan::{
    GpuProgram, InputUpdate, LaunchSizes, LoadedProgram, PendingReadback, ProgramBuffer,
    ReadbackRange, StageId,
};

use self::behind::{PipelinedSubmit, PreviousSubmission};

use crate::backend::VulkanContext;
use crate::buffers::{
    BufferAllocations, allocate, fill, fill_redzones, is_const, is_param, is_per_executable,
};
use crate::command_cache::CommandBufferCache;
use crate::command_list::{VulkanCommandList, copy_kernel, flatten};
use crate::device::TimelineValue;
use crate::error::VulkanError;
use crate::memory::{BufferMemory, VulkanBuffer};
use crate::pipeline::VulkanPipeline;
use crate::readback::VulkanReadback;
pub use shared::VulkanShared;

/// Counters of device work, for tests and traces.
///
/// ```
/// use tercet_vulkan::DriverCounters;
/// let before = DriverCounters::default();
/// let after = DriverCounters { submissions: 2, ..before };
/// assert_eq!(after.submissions - before.submissions, 2);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DriverCounters {
    /// Recorded command buffers with program steps.
    pub recorded: u64,
    /// Recorded command buffers that only copy results to the host. The copies are recorded again
    /// when the reads change.
    pub reads_recorded: u64,
    /// Submissions to the queue.
    pub submissions: u64,
    /// Bytes of tensors uploaded from host to device.
    pub upload_bytes: u64,
    /// Pipelines compiled on this device.
    pub pipelines_compiled: u64,
    /// WGSL kernels compiled to SPIR-V on this device because the cache folder did not have them.
    pub kernels_lowered: u64,
}

/// The immutable resources that all executables of a program share.
struct SharedResources {
    program: Arc<GpuProgram>,
    calls: VulkanCommandList,
    pipelines: Vec<Arc<VulkanPipeline>>,
    /// Constants; read-only.
    consts: BufferAllocations,
}

/// The buffers of one executable.
struct VulkanBuffers {
    /// Inputs, outputs, states and intermediate values.
    own: BufferAllocations,
    /// The buffers of parameters, and buffers whose contents are prepared from parameters. Clones
    /// share these buffers until one clone sets a parameter.
    params: Arc<BufferAllocations>,
    loaded: Arc<SharedResources>,
}

impl VulkanBuffers {
    fn memory(&self, buffer: ProgramBuffer) -> &VulkanBuffer {
        let all = [&self.own, &*self.params, &self.loaded.consts];
        let found = all.iter().find_map(|m| m.get(&buffer));
        found.expect("invariant: every buffer of a program's slots is allocated")
    }
}

/// The device part of one executable.
///
/// ```no_run
/// # use tercet_ir::{DType, Graph, Type};
/// # let mut g = Graph::new();
/// # let x = g.input("x", Type::new(DType::F32, [2]))?;
/// # let y = g.neg(x)?;
/// # g.output("y", y)?;
/// use tercet_ir::{CompileOptions, Executable, Tensor};
/// use tercet_vulkan::{VulkanBackend, VulkanOptions};
/// let backend = VulkanBackend::new(VulkanOptions::default())?;
/// let mut exe = backend.compile_gpu(&g, &CompileOptions::new())?;
/// let x = Tensor::from_slice(&[2], &[1f32, -2.0])?;
/// exe.run_into(&[("x", &x)], &mut Vec::new())?;
/// assert!(exe.driver().counters().submissions > 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct VulkanDriver {
    buffers: VulkanBuffers,
    words: VulkanBuffer,
    grids: VulkanBuffer,
    /// True if `words` and `grids` contain the parameter blocks and grids of the last launch.
    numbers: bool,
    recorded: Option<CommandBufferCache>,
    /// Readbacks of runs: one if the program has no data-dependent control flow, otherwise one per
    /// list of reads.
    run_reads: Vec<VulkanReadback>,
    /// The index of the readback that the last submission copies into.
    active_readback: usize,
    /// The readback with which the host reads an output or a state between runs.
    single_read: VulkanReadback,
    /// The readback of redzones, if the program has them.
    gap_reads: VulkanReadback,
    /// True if the last submission was a run that also copies results to a readback.
    running: bool,
    /// The run before the latest one, if its results were not read before the latest run started.
    previous: Option<PreviousSubmission>,
    /// The resources of pipelined runs; created by the first one.
    pipelined: Option<PipelinedSubmit>,
    /// If data selects the stages of the run, the times of the steps executed so far as (step,
    /// start, duration).
    times: Vec<(usize, u64, u64)>,
    origin: Option<u64>,
    /// The last submission that uses a resource of this driver.
    last: TimelineValue,
    counters: DriverCounters,
    shared: Arc<VulkanContext>,
}

impl Drop for VulkanDriver {
    fn drop(&mut self) {
        // Ignore errors: a lost device has no pending work.
        let _ = self.shared.device.wait(self.last);
    }
}

impl VulkanDriver {
    /// Creates the pipelines, buffers and commands of a program.
    pub(crate) fn load(
        shared: &Arc<VulkanContext>,
        program: &Arc<GpuProgram>,
    ) -> Result<VulkanDriver, VulkanError> {
        let calls = flatten(program, shared.uniform_align_bytes);
        let making = tracing::debug_span!("pipelines").entered();
        let mut pipelines = shared.pipelines.get_all(&program.kernels)?;
        if calls.copies {
            pipelines.extend(shared.pipelines.get_all(&[copy_kernel()])?);
        }
        drop(making);
        let _span = tracing::debug_span!("memory and constants").entered();
        let consts = allocate(&shared.device, program, is_const)?;
        let params = allocate(&shared.device, program, is_param)?;
        let filled = fill(shared, program, &consts, &params);
        // Nothing may be pending when resources allocated here are freed.
        shared.device.wait_all()?;
        filled?;
        let loaded = SharedResources {
            program: Arc::clone(program),
            calls,
            pipelines,
            consts,
        };
        VulkanDriver::with_buffers(shared, Arc::new(loaded), Arc::new(params))
    }

    /// Creates a driver with new zeroed buffers for a loaded program.
    fn with_buffers(
        shared: &Arc<VulkanContext>,
        loaded: Arc<SharedResources>,
        params: Arc<BufferAllocations>,
    ) -> Result<VulkanDriver, VulkanError> {
        let device = &shared.device;
        let calls = &loaded.calls;
        let own = allocate(device, &loaded.program, is_per_executable)?;
        let words = VulkanBuffer::new(
            device,
            BufferMemory::Shared,
            calls.words_bytes(),
            "parameter blocks",
        )?;
        let grids = VulkanBuffer::new(device, BufferMemory::Shared, calls.grids_bytes(), "grids")?;
        let mut driver = VulkanDriver {
            buffers: VulkanBuffers {
                own,
                params,
                loaded,
            },
            words,
            grids,
            numbers: false,
            recorded: None,
            run_reads: Vec::new(),
            active_readback: 0,
            single_read: VulkanReadback::new(),
            gap_reads: VulkanReadback::new(),
            running: false,
            previous: None,
            pipelined: None,
            times: Vec::new(),
            origin: None,
            last: TimelineValue::default(),
            counters: DriverCounters::default(),
            shared: Arc::clone(shared),
        };
        driver.last = shared.staging.clear(driver.buffers.own.values())?;
        let VulkanBuffers { loaded, own, .. } = &driver.buffers;
        driver.last = driver
            .last
            .max(fill_redzones(shared, &loaded.program, own)?);
        driver.record()?;
        Ok(driver)
    }

    /// The counters of this executable.
    pub fn counters(&self) -> DriverCounters {
        DriverCounters {
            pipelines_compiled: self.shared.pipelines.compiled.load(Ordering::Relaxed),
            kernels_lowered: self.shared.pipelines.modules.counts().lowered,
            ..self.counters
        }
    }

    fn write_launch_words(&mut self, launch: &LaunchSizes) {
        let (words, grids) = (self.words.bytes_mut(), self.grids.bytes_mut());
        self.buffers.loaded.calls.write(launch, words, grids);
        self.numbers = true;
        if let Some(behind) = &mut self.pipelined {
            let [words, grids] = &mut behind.numbers;
            self.buffers.loaded.calls.write(launch, words, grids);
        }
    }

    /// Waits for all submissions of this driver.
    fn finish(&self) -> Result<(), VulkanError> {
        self.shared.device.check_lost()?;
        self.shared.device.wait(self.last)
    }

    /// Submits command buffers of this driver.
    fn start(&mut self, commands: &[vk::CommandBuffer]) -> Result<(), VulkanError> {
        // SAFETY: the command buffers are recorded, and every resource that they use lives until
        // the last submission has completed. The driver waits for a submission before the next one.
        // Only command buffers of loop stages and pipelined runs are submitted again before they
        // have completed; these are recorded for simultaneous use.
        self.last = unsafe { self.shared.device.submit(commands) }?;
        self.counters.submissions += 1;
        Ok(())
    }

    fn submit_run(
        &mut self,
        launch: &LaunchSizes,
        stages: &[StageId],
        changed: bool,
        reads: &[ReadbackRange],
    ) -> Result<(), VulkanError> {
        if self.buffers.loaded.program.debug.record {
            self.shared.device.wait(self.last)?;
            self.forget_recorded();
        }
        // Transfers and runs of this driver use separate command buffers.
        self.record()?;
        let is_plain = self.buffers.loaded.program.flow.is_empty();
        let mut commands = self.run_commands(launch, stages)?;
        if !reads.is_empty() {
            self.record_reads(reads, None)?;
        }
        if changed || !self.numbers {
            // A run that failed early may have left a pending submission.
            self.shared.device.wait(self.last)?;
            self.write_launch_words(launch);
        }
        let is_timed = self.recorded.as_ref().is_some_and(|r| r.queries.is_some());
        if is_timed && !is_plain {
            self.submit_stages_separately(&commands)?;
            commands.clear();
        }
        self.running = !reads.is_empty();
        let reading = self
            .run_reads
            .get(self.active_readback)
            .filter(|_| self.running);
        commands.extend(reading.and_then(VulkanReadback::commands));
        if commands.is_empty() {
            return Ok(());
        }
        self.start(&commands)?;
        if let Some(recorded) = &mut self.recorded {
            recorded.has_timestamps = true;
        }
        Ok(())
    }

    /// The command buffers of these stages.
    fn run_commands(
        &mut self,
        launch: &LaunchSizes,
        stages: &[StageId],
    ) -> Result<SmallVec<[vk::CommandBuffer; 8]>, VulkanError> {
        let is_plain = self.buffers.loaded.program.flow.is_empty();
        let has_grids = self.buffers.loaded.calls.grids_bytes() > 0 && is_plain;
        let recorded = self.recorded.as_mut().filter(|_| has_grids);
        let grids = recorded.and_then(|r| r.count(launch));
        let mut commands = SmallVec::new();
        for stage in stages {
            commands.extend(self.record_run(*stage, &launch.has_workgroups, grids)?);
        }
        Ok(commands)
    }

    /// Submits stages one by one and collects their times, because all stages write the same
    /// timestamp queries.
    fn submit_stages_separately(
        &mut self,
        stages: &[vk::CommandBuffer],
    ) -> Result<(), VulkanError> {
        for stage in stages {
            self.start(&[*stage])?;
            self.shared.device.wait(self.last)?;
            if let Some(recorded) = &self.recorded {
                self.times.extend(recorded.times(*stage, &mut self.origin));
            }
        }
        Ok(())
    }

    fn run_prepare(&mut self, launch: &LaunchSizes) -> Result<(), VulkanError> {
        self.record()?;
        self.write_launch_words(launch);
        let Some(recorded) = &self.recorded else {
            return Ok(());
        };
        let commands = [recorded.prepare];
        self.start(&commands)?;
        self.shared.device.wait(self.last)
    }
}

impl LoadedProgram for VulkanDriver {
    const NAME: &'static str = "vulkan";

    type Shared = VulkanShared;

    fn share(&mut self, range: ReadbackRange) -> Result<VulkanShared, RunError> {
        Ok(self.copy_out(range)?)
    }

    fn share_bytes(&mut self, bytes: &[u8]) -> Result<VulkanShared, RunError> {
        Ok(self.copy_up(bytes)?)
    }

    fn is_on_device(&self, shared: &VulkanShared) -> bool {
        self.owns(shared)
    }

    fn copy_from_shared(
        &mut self,
        shared: &VulkanShared,
        range: ReadbackRange,
    ) -> Result<(), RunError> {
        Ok(self.copy_in(shared, range)?)
    }

    fn write(
        &mut self,
        buffer: ProgramBuffer,
        offset_bytes: u64,
        bytes: &[u8],
    ) -> Result<(), RunError> {
        Ok(self.write_bytes(buffer, offset_bytes, bytes)?)
    }

    fn clear(&mut self, buffer: ProgramBuffer) -> Result<(), RunError> {
        let ticket = self.shared.staging.clear([self.buffers.memory(buffer)])?;
        self.last = self.last.max(ticket);
        Ok(())
    }

    fn prepare(&mut self, launch: &LaunchSizes) -> Result<(), RunError> {
        Ok(self.run_prepare(launch)?)
    }

    fn submit(
        &mut self,
        launch: &LaunchSizes,
        stages: &[StageId],
        changed: bool,
        reads: &[ReadbackRange],
    ) -> Result<(), RunError> {
        Ok(self.submit_run(launch, stages, changed, reads)?)
    }

    fn submit_pipelined(
        &mut self,
        launch: &LaunchSizes,
        changed: bool,
        puts: &[InputUpdate<'_>],
        reads: &[ReadbackRange],
    ) -> Result<bool, RunError> {
        Ok(self.start_pipelined(launch, changed, puts, reads)?)
    }

    fn wait(&mut self, take: &mut dyn FnMut(usize, &[u8])) -> Result<(), RunError> {
        if let Some(older) = self.previous.take() {
            self.shared.device.check_lost()?;
            self.shared.device.wait(older.timeline_value)?;
            self.run_reads[older.readback_index].take(take);
            // Redzones are checked only when nothing is in flight. An overwritten redzone stays
            // visible until that check.
            return Ok(());
        }
        self.finish()?;
        if let Some(reads) = self
            .run_reads
            .get(self.active_readback)
            .filter(|_| self.running)
        {
            reads.take(take);
        }
        Ok(self.check_redzones()?)
    }

    fn read(&mut self, read: ReadbackRange, take: &mut dyn FnMut(&[u8])) -> Result<(), RunError> {
        self.finish()?;
        let of = |b| self.buffers.memory(b);
        if self.single_read.record(&self.shared.device, &[read], of)? {
            self.count_read();
        }
        self.start(self.single_read.commands().as_slice())?;
        self.finish()?;
        self.single_read.take(&mut |_, bytes| take(bytes));
        Ok(())
    }

    fn poll_done(&mut self, _: &mut Context<'_>) -> Poll<Result<(), RunError>> {
        let done = match self.previous {
            Some(older) => self.shared.device.wait(older.timeline_value),
            None => self.finish(),
        };
        Poll::Ready(done.map_err(RunError::from))
    }

    fn fetch(&mut self, read: ReadbackRange) -> Result<PendingReadback, RunError> {
        let mut fetched = Vec::new();
        self.read(read, &mut |bytes| fetched.extend_from_slice(bytes))?;
        Ok(Box::pin(std::future::ready(Ok(fetched))))
    }

    fn begin(&mut self) {
        self.times.clear();
        self.origin = None;
    }

    fn step_times(&mut self) -> Vec<(usize, u64, u64)> {
        if !self.buffers.loaded.program.flow.is_empty() {
            return self.times.clone();
        }
        if self.finish().is_err() {
            return Vec::new();
        }
        let recorded = self.recorded.as_ref().filter(|r| r.has_timestamps);
        let last = recorded.and_then(|r| Some((r, r.runs.last()?.commands)));
        last.map_or_else(Vec::new, |(recorded, commands)| {
            recorded.times(commands, &mut None)
        })
    }

    fn try_clone(&mut self) -> Result<VulkanDriver, RunError> {
        Ok(self.clone_driver()?)
    }

    fn unshare_params(&mut self) -> Result<(), RunError> {
        Ok(self.own_params()?)
    }
}
