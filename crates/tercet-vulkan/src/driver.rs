//! The device side of one executable: buffers, recorded commands, submission, reading back.

mod behind;
mod recording;
mod shared;
mod transfers;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use ash::vk;
use smallvec::SmallVec;
use tercet_ir::RunError;
use tercet_plan::{Buffer, Driver, Fetched, Launch, Program, Put, Read, StageId};

use self::behind::{Behind, Older};

use crate::backend::Shared;
use crate::bind::{Calls, copy_kernel, flatten};
use crate::buffers::{Memories, allocate, fill, fill_gaps, is_const, is_own, is_param};
use crate::device::Ticket;
use crate::error::GpuError;
use crate::memory::{Memory, Place};
use crate::pipeline::Pipeline;
use crate::readback::Readback;
use crate::recorded::Recorded;
pub use shared::VulkanShared;

/// What was done so far, for tests and traces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Command buffers of programs that were recorded.
    pub recorded: u64,
    /// Command buffers that only copy results for the host, recorded when what is read changes.
    pub reads_recorded: u64,
    /// Submissions to the queue.
    pub submissions: u64,
    /// Bytes of tensors that went from host to device.
    pub upload_bytes: u64,
    /// Pipelines made on this device.
    pub pipelines_compiled: u64,
    /// Kernels in WGSL that became SPIR-V on this device, and were not found in the cache folder.
    pub kernels_lowered: u64,
}

/// What executables of one program share for good.
struct Loaded {
    program: Arc<Program>,
    calls: Calls,
    pipelines: Vec<Arc<Pipeline>>,
    /// Constants, which nothing writes.
    consts: Memories,
}

/// The buffers of one executable.
struct Buffers {
    /// Inputs, outputs, states and what lies between.
    own: Memories,
    /// Parameters and what is prepared from them; shared by clones until one is written.
    params: Arc<Memories>,
    loaded: Arc<Loaded>,
}

impl Buffers {
    fn memory(&self, buffer: Buffer) -> &Memory {
        let all = [&self.own, &*self.params, &self.loaded.consts];
        let found = all.iter().find_map(|m| m.get(&buffer));
        found.expect("invariant: every buffer of a program's slots is allocated")
    }
}

/// The device side of one executable.
pub struct VulkanDriver {
    buffers: Buffers,
    words: Memory,
    grids: Memory,
    /// The numbers in `words` and `grids` are those of the last launch.
    numbers: bool,
    recorded: Option<Recorded>,
    /// For what runs read: one where data decides nothing, else one for each list of reads.
    run_reads: Vec<Readback>,
    /// Which of them the last submission copies into.
    reading: usize,
    /// For reads between runs.
    single_read: Readback,
    /// For the gaps between slots, where a program has them.
    gap_reads: Readback,
    /// The last submission was a run with reads.
    running: bool,
    /// The run before it, where it was started behind one that is not waited for yet.
    older: Option<Older>,
    /// What such runs need, from the first on.
    behind: Option<Behind>,
    /// The times of stages played in this run, where data decides which are, and the first timestamp.
    times: Vec<(usize, u64, u64)>,
    origin: Option<u64>,
    /// The last submission that uses anything of this driver.
    last: Ticket,
    counters: Counters,
    shared: Arc<Shared>,
}

impl Drop for VulkanDriver {
    fn drop(&mut self) {
        // Of a lost device nothing is left to wait for.
        let _ = self.shared.device.wait(self.last);
    }
}

impl VulkanDriver {
    /// Makes pipelines, buffers and commands for a program.
    pub(crate) fn load(
        shared: &Arc<Shared>,
        program: &Arc<Program>,
    ) -> Result<VulkanDriver, GpuError> {
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
        // Nothing is pending when what was allocated here may be freed.
        shared.device.wait_all()?;
        filled?;
        let loaded = Loaded {
            program: Arc::clone(program),
            calls,
            pipelines,
            consts,
        };
        VulkanDriver::make(shared, Arc::new(loaded), Arc::new(params))
    }

    /// A driver with buffers of its own, zeroed, for what is loaded.
    fn make(
        shared: &Arc<Shared>,
        loaded: Arc<Loaded>,
        params: Arc<Memories>,
    ) -> Result<VulkanDriver, GpuError> {
        let device = &shared.device;
        let calls = &loaded.calls;
        let own = allocate(device, &loaded.program, is_own)?;
        let words = Memory::new(
            device,
            Place::Shared,
            calls.words_bytes(),
            "parameter blocks",
        )?;
        let grids = Memory::new(device, Place::Shared, calls.grids_bytes(), "grids")?;
        let mut driver = VulkanDriver {
            buffers: Buffers {
                own,
                params,
                loaded,
            },
            words,
            grids,
            numbers: false,
            recorded: None,
            run_reads: Vec::new(),
            reading: 0,
            single_read: Readback::new(),
            gap_reads: Readback::new(),
            running: false,
            older: None,
            behind: None,
            times: Vec::new(),
            origin: None,
            last: Ticket::default(),
            counters: Counters::default(),
            shared: Arc::clone(shared),
        };
        driver.last = shared.staging.clear(driver.buffers.own.values())?;
        let Buffers { loaded, own, .. } = &driver.buffers;
        driver.last = driver.last.max(fill_gaps(shared, &loaded.program, own)?);
        driver.record()?;
        Ok(driver)
    }

    /// What was done for this executable so far.
    pub fn counters(&self) -> Counters {
        Counters {
            pipelines_compiled: self.shared.pipelines.compiled.load(Ordering::Relaxed),
            kernels_lowered: self.shared.pipelines.modules.counts().lowered,
            ..self.counters
        }
    }

    fn put_numbers(&mut self, launch: &Launch) {
        let (words, grids) = (self.words.bytes_mut(), self.grids.bytes_mut());
        self.buffers.loaded.calls.write(launch, words, grids);
        self.numbers = true;
        if let Some(behind) = &mut self.behind {
            let [words, grids] = &mut behind.numbers;
            self.buffers.loaded.calls.write(launch, words, grids);
        }
    }

    /// Waits for everything that this driver started.
    fn finish(&self) -> Result<(), GpuError> {
        self.shared.device.check_lost()?;
        self.shared.device.wait(self.last)
    }

    /// Submits command buffers of this driver.
    fn start(&mut self, commands: &[vk::CommandBuffer]) -> Result<(), GpuError> {
        // SAFETY: they are recorded; the driver waits for one submission before it makes the next, but for
        // stages of a loop and runs behind others, which may be pending more than once; it keeps what they use until the last one
        // is done.
        self.last = unsafe { self.shared.device.submit(commands) }?;
        self.counters.submissions += 1;
        Ok(())
    }

    fn submit_run(
        &mut self,
        launch: &Launch,
        stages: &[StageId],
        changed: bool,
        reads: &[Read],
    ) -> Result<(), GpuError> {
        // Transfers of this driver use other command buffers, runs use these.
        self.record()?;
        let is_plain = self.buffers.loaded.program.flow.is_empty();
        let mut commands = self.run_commands(launch, stages)?;
        if !reads.is_empty() {
            self.record_reads(reads, None)?;
        }
        if changed || !self.numbers {
            // A run that ended early may have left something on its way.
            self.shared.device.wait(self.last)?;
            self.put_numbers(launch);
        }
        let is_timed = self.recorded.as_ref().is_some_and(|r| r.queries.is_some());
        if is_timed && !is_plain {
            self.play_apart(&commands)?;
            commands.clear();
        }
        self.running = !reads.is_empty();
        let reading = self.run_reads.get(self.reading).filter(|_| self.running);
        commands.extend(reading.and_then(Readback::commands));
        if commands.is_empty() {
            return Ok(());
        }
        self.start(&commands)?;
        if let Some(recorded) = &mut self.recorded {
            recorded.stamped = true;
        }
        Ok(())
    }

    /// The commands of stages.
    fn run_commands(
        &mut self,
        launch: &Launch,
        stages: &[StageId],
    ) -> Result<SmallVec<[vk::CommandBuffer; 8]>, GpuError> {
        let is_plain = self.buffers.loaded.program.flow.is_empty();
        let has_grids = self.buffers.loaded.calls.grids_bytes() > 0 && is_plain;
        let recorded = self.recorded.as_mut().filter(|_| has_grids);
        let grids = recorded.and_then(|r| r.count(launch));
        let mut commands = SmallVec::new();
        for stage in stages {
            commands.extend(self.record_run(*stage, &launch.chosen, grids)?);
        }
        Ok(commands)
    }

    /// Submits stages one by one and notes their times: they write the same timestamps.
    fn play_apart(&mut self, stages: &[vk::CommandBuffer]) -> Result<(), GpuError> {
        for stage in stages {
            self.start(&[*stage])?;
            self.shared.device.wait(self.last)?;
            if let Some(recorded) = &self.recorded {
                self.times.extend(recorded.times(*stage, &mut self.origin));
            }
        }
        Ok(())
    }

    fn run_prepare(&mut self, launch: &Launch) -> Result<(), GpuError> {
        self.record()?;
        self.put_numbers(launch);
        let Some(recorded) = &self.recorded else {
            return Ok(());
        };
        let commands = [recorded.prepare];
        self.start(&commands)?;
        self.shared.device.wait(self.last)
    }
}

impl Driver for VulkanDriver {
    const NAME: &'static str = "vulkan";

    type Shared = VulkanShared;

    fn share(&mut self, range: Read) -> Result<VulkanShared, RunError> {
        Ok(self.copy_out(range)?)
    }

    fn share_bytes(&mut self, bytes: &[u8]) -> Result<VulkanShared, RunError> {
        Ok(self.copy_up(bytes)?)
    }

    fn reaches(&self, shared: &VulkanShared) -> bool {
        self.is_of(shared)
    }

    fn take(&mut self, shared: &VulkanShared, range: Read) -> Result<(), RunError> {
        Ok(self.copy_in(shared, range)?)
    }

    fn write(&mut self, buffer: Buffer, offset_bytes: u64, bytes: &[u8]) -> Result<(), RunError> {
        Ok(self.write_bytes(buffer, offset_bytes, bytes)?)
    }

    fn clear(&mut self, buffer: Buffer) -> Result<(), RunError> {
        let ticket = self.shared.staging.clear([self.buffers.memory(buffer)])?;
        self.last = self.last.max(ticket);
        Ok(())
    }

    fn prepare(&mut self, launch: &Launch) -> Result<(), RunError> {
        Ok(self.run_prepare(launch)?)
    }

    fn submit(
        &mut self,
        launch: &Launch,
        stages: &[StageId],
        changed: bool,
        reads: &[Read],
    ) -> Result<(), RunError> {
        Ok(self.submit_run(launch, stages, changed, reads)?)
    }

    fn submit_behind(
        &mut self,
        launch: &Launch,
        changed: bool,
        puts: &[Put<'_>],
        reads: &[Read],
    ) -> Result<bool, RunError> {
        Ok(self.start_behind(launch, changed, puts, reads)?)
    }

    fn wait(&mut self, take: &mut dyn FnMut(usize, &[u8])) -> Result<(), RunError> {
        if let Some(older) = self.older.take() {
            self.shared.device.check_lost()?;
            self.shared.device.wait(older.ticket)?;
            self.run_reads[older.reading].take(take);
            // Gaps are looked at when nothing is under way: what was written there stays.
            return Ok(());
        }
        self.finish()?;
        if let Some(reads) = self.run_reads.get(self.reading).filter(|_| self.running) {
            reads.take(take);
        }
        Ok(self.check_gaps()?)
    }

    fn read(&mut self, read: Read, take: &mut dyn FnMut(&[u8])) -> Result<(), RunError> {
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
        let done = match self.older {
            Some(older) => self.shared.device.wait(older.ticket),
            None => self.finish(),
        };
        Poll::Ready(done.map_err(RunError::from))
    }

    fn fetch(&mut self, read: Read) -> Result<Fetched, RunError> {
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
        let recorded = self.recorded.as_ref().filter(|r| r.stamped);
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
