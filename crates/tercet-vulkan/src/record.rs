//! Command buffers, recorded once per stage and combination of branches that occurs, and submitted
//! for every run.
//!
//! Each command buffer begins with a barrier against all earlier work on the queue, so submissions
//! need no semaphores between them. The barriers between steps are those of
//! [`GpuProgram::active_steps`].

use std::sync::Arc;

use ash::vk;
use tercet_plan::{ActiveStep, GpuProgram, ReadbackRange, SlotId};

use crate::command_list::{DescriptorSets, DispatchGrid, VulkanCommand, VulkanCommandList};
use crate::device::VulkanDevice;
use crate::error::VulkanError;
use crate::memory::VulkanBuffer;
use crate::pipeline::VulkanPipeline;

/// A command pool.
pub(crate) struct CommandPool {
    raw: vk::CommandPool,
    device: Arc<VulkanDevice>,
}

impl Drop for CommandPool {
    fn drop(&mut self) {
        // SAFETY: the owner waited for the last submission of its command buffers.
        unsafe { self.device.raw.destroy_command_pool(self.raw, None) };
    }
}

impl CommandPool {
    pub(crate) fn new(device: &Arc<VulkanDevice>) -> Result<CommandPool, VulkanError> {
        let info = vk::CommandPoolCreateInfo::default()
            .queue_family_index(device.features.queue_family)
            .flags(vk::CommandPoolCreateFlags::RESET_COMMAND_BUFFER);
        // SAFETY: the device was created with this queue family.
        let raw = unsafe { device.raw.create_command_pool(&info, None) }
            .map_err(device.failed("vkCreateCommandPool"))?;
        Ok(CommandPool {
            raw,
            device: Arc::clone(device),
        })
    }

    /// Allocates a command buffer; it is freed with the pool.
    pub(crate) fn buffer(&self) -> Result<vk::CommandBuffer, VulkanError> {
        let info = vk::CommandBufferAllocateInfo::default()
            .command_pool(self.raw)
            .command_buffer_count(1);
        // SAFETY: the pool is valid and used by one thread at a time.
        let all = unsafe { self.device.raw.allocate_command_buffers(&info) }
            .map_err(self.device.failed("vkAllocateCommandBuffers"))?;
        Ok(all[0])
    }
}

/// Records a barrier between all work before and after it, including other submissions and host
/// accesses.
pub(crate) fn barrier_all(device: &VulkanDevice, commands: vk::CommandBuffer) {
    let stages = vk::PipelineStageFlags::COMPUTE_SHADER | vk::PipelineStageFlags::TRANSFER;
    let after = stages | vk::PipelineStageFlags::DRAW_INDIRECT | vk::PipelineStageFlags::HOST;
    let writes = vk::AccessFlags::SHADER_WRITE | vk::AccessFlags::TRANSFER_WRITE;
    let any = writes
        | vk::AccessFlags::SHADER_READ
        | vk::AccessFlags::UNIFORM_READ
        | vk::AccessFlags::TRANSFER_READ
        | vk::AccessFlags::INDIRECT_COMMAND_READ
        | vk::AccessFlags::HOST_READ;
    let before = (
        stages | vk::PipelineStageFlags::HOST,
        writes | vk::AccessFlags::HOST_WRITE,
    );
    barrier(device, commands, before, (after, any));
}

/// Records a barrier between program steps. `transfers` tells whether copies or fills occur between
/// the previous barrier and this one, and between this barrier and the next.
fn barrier_step(device: &VulkanDevice, commands: vk::CommandBuffer, transfers: [bool; 2]) {
    let sides = transfers.map(|transfers| {
        let mut stages = vk::PipelineStageFlags::COMPUTE_SHADER;
        let mut writes = vk::AccessFlags::SHADER_WRITE;
        let mut reads = vk::AccessFlags::SHADER_READ;
        if transfers {
            stages |= vk::PipelineStageFlags::TRANSFER;
            writes |= vk::AccessFlags::TRANSFER_WRITE;
            reads |= vk::AccessFlags::TRANSFER_READ;
        }
        (stages, writes, reads)
    });
    let [(before, writes, _), (after, own_writes, reads)] = sides;
    let after = (after, own_writes | reads);
    barrier(device, commands, (before, writes), after);
}

fn barrier(
    device: &VulkanDevice,
    commands: vk::CommandBuffer,
    before: (vk::PipelineStageFlags, vk::AccessFlags),
    after: (vk::PipelineStageFlags, vk::AccessFlags),
) {
    let memory = vk::MemoryBarrier::default()
        .src_access_mask(before.1)
        .dst_access_mask(after.1);
    let none = vk::DependencyFlags::empty();
    // SAFETY: the command buffer is being recorded.
    unsafe {
        let (before, after) = (before.0, after.0);
        device
            .raw
            .cmd_pipeline_barrier(commands, before, after, none, &[memory], &[], &[]);
    }
}

/// Begins, fills and ends a command buffer that is not pending.
pub(crate) fn record(
    device: &VulkanDevice,
    commands: vk::CommandBuffer,
    usage: vk::CommandBufferUsageFlags,
    body: impl FnOnce(),
) -> Result<(), VulkanError> {
    let info = vk::CommandBufferBeginInfo::default().flags(usage);
    // SAFETY: the command buffer is not pending, by contract. Beginning resets it.
    unsafe { device.raw.begin_command_buffer(commands, &info) }
        .map_err(device.failed("vkBeginCommandBuffer"))?;
    barrier_all(device, commands);
    body();
    // SAFETY: recording was begun above.
    unsafe { device.raw.end_command_buffer(commands) }.map_err(device.failed("vkEndCommandBuffer"))
}

/// Timestamps before the first executed step and after each executed step.
pub(crate) struct TimestampQueries {
    raw: vk::QueryPool,
    count: u32,
    device: Arc<VulkanDevice>,
}

impl Drop for TimestampQueries {
    fn drop(&mut self) {
        // SAFETY: the owner waited for the last submission that writes them.
        unsafe { self.device.raw.destroy_query_pool(self.raw, None) };
    }
}

impl TimestampQueries {
    pub(crate) fn new(
        device: &Arc<VulkanDevice>,
        steps: usize,
    ) -> Result<TimestampQueries, VulkanError> {
        let count = steps as u32 + 1;
        let info = vk::QueryPoolCreateInfo::default()
            .query_type(vk::QueryType::TIMESTAMP)
            .query_count(count);
        // SAFETY: a valid create info.
        let raw = unsafe { device.raw.create_query_pool(&info, None) }
            .map_err(device.failed("vkCreateQueryPool"))?;
        Ok(TimestampQueries {
            raw,
            count,
            device: Arc::clone(device),
        })
    }

    /// The timestamps of the last finished submission with `played` steps, in nanoseconds relative
    /// to `origin`. If there is no origin yet, the first timestamp becomes the origin. Empty if no
    /// timestamps were written.
    pub(crate) fn nanoseconds(&self, played: usize, origin: &mut Option<u64>) -> Vec<u64> {
        let mut stamps = vec![0u64; played + 1];
        let flags = vk::QueryResultFlags::TYPE_64;
        // SAFETY: there is a query for each possible step, and room for the results.
        let got =
            unsafe { (self.device.raw).get_query_pool_results(self.raw, 0, &mut stamps, flags) };
        if got.is_err() {
            return Vec::new();
        }
        let features = &self.device.features;
        let mask = u64::MAX >> (64 - features.timestamp_bits.clamp(1, 64));
        let first = *origin.get_or_insert(stamps[0]);
        let ns = |t: u64| {
            let ticks = t.wrapping_sub(first) & mask;
            (ticks as f64 * f64::from(features.timestamp_ns)) as u64
        };
        stamps.into_iter().map(ns).collect()
    }

    fn reset(&self, commands: vk::CommandBuffer) {
        // SAFETY: the command buffer is being recorded.
        unsafe {
            self.device
                .raw
                .cmd_reset_query_pool(commands, self.raw, 0, self.count)
        };
    }

    fn stamp(&self, commands: vk::CommandBuffer, at: usize) {
        let stage = vk::PipelineStageFlags::BOTTOM_OF_PIPE;
        // SAFETY: as above; `at` is at most the number of steps.
        unsafe {
            self.device
                .raw
                .cmd_write_timestamp(commands, stage, self.raw, at as u32)
        };
    }
}

/// The inputs of recording a program's commands.
pub(crate) struct CommandRecorder<'a, F> {
    pub(crate) device: &'a VulkanDevice,
    pub(crate) program: &'a GpuProgram,
    pub(crate) calls: &'a VulkanCommandList,
    pub(crate) pipelines: &'a [Arc<VulkanPipeline>],
    pub(crate) sets: &'a DescriptorSets,
    pub(crate) grids: &'a VulkanBuffer,
    /// The fixed grids of [`GpuProgram::steps`], if the commands are specialized for one size.
    pub(crate) fixed_grids: Option<&'a [[u32; 3]]>,
    /// True if the command buffer may be submitted again while it is pending.
    pub(crate) again: bool,
    pub(crate) memory: F,
}

impl<'m, F: Fn(SlotId) -> &'m VulkanBuffer> CommandRecorder<'_, F> {
    /// Records commands, with timestamps between them if `queries` is set.
    pub(crate) fn record(
        &self,
        commands: vk::CommandBuffer,
        calls: &[VulkanCommand],
        played: &[ActiveStep],
        queries: Option<&TimestampQueries>,
    ) -> Result<(), VulkanError> {
        // The commands of a loop's stages are submitted again while they are pending.
        let usage = match self.program.flow.is_empty() && !self.again {
            true => vk::CommandBufferUsageFlags::empty(),
            false => vk::CommandBufferUsageFlags::SIMULTANEOUS_USE,
        };
        record(self.device, commands, usage, || {
            if let Some(queries) = queries {
                queries.reset(commands);
                queries.stamp(commands, 0);
            }
            let (mut bound, mut stamps) = (None, 0);
            let mut before = false;
            for group in played.chunk_by(|_, next| !next.barrier) {
                let of_group = || group.iter().map(|p| calls[p.step]);
                let transfers = of_group().any(VulkanCommand::is_transfer);
                // Synchronization validation does not understand dependent launches and would
                // report hazards.
                let is_looked_at = group[0].barrier && self.device.validated;
                if group[0].needs_barrier() || is_looked_at {
                    barrier_step(self.device, commands, [before, transfers]);
                    before = false;
                }
                before |= transfers;
                for call in of_group() {
                    let call = match self.fixed_grids {
                        Some(grids) => self.calls.fixed(call, grids),
                        None => call,
                    };
                    self.call(commands, call, &mut bound);
                    stamps += 1;
                    if let Some(queries) = queries {
                        queries.stamp(commands, stamps);
                    }
                }
            }
        })
    }

    fn call(
        &self,
        commands: vk::CommandBuffer,
        call: VulkanCommand,
        bound: &mut Option<vk::Pipeline>,
    ) {
        match call {
            VulkanCommand::Run { set, grid } => self.run(commands, set, grid, bound),
            VulkanCommand::Copy { src, dst, bytes } => {
                let (from, to) = (self.program.slot(src), self.program.slot(dst));
                let region = vk::BufferCopy::default()
                    .src_offset(from.offset_bytes)
                    .dst_offset(to.offset_bytes)
                    .size(bytes);
                let (from, to) = ((self.memory)(src).buffer, (self.memory)(dst).buffer);
                // SAFETY: the command buffer is being recorded, and the ranges are inside their
                // slots.
                unsafe {
                    self.device
                        .raw
                        .cmd_copy_buffer(commands, from, to, &[region])
                };
            }
            VulkanCommand::Fill { dst, word } => {
                let slot = self.program.slot(dst);
                let (buffer, at) = ((self.memory)(dst).buffer, slot.offset_bytes);
                // SAFETY: the command buffer is being recorded. The range is a slot and consists of
                // complete words.
                unsafe {
                    self.device
                        .raw
                        .cmd_fill_buffer(commands, buffer, at, slot.bytes, word);
                }
            }
            VulkanCommand::Noop => {}
        }
    }

    fn run(
        &self,
        commands: vk::CommandBuffer,
        set: usize,
        grid: DispatchGrid,
        bound: &mut Option<vk::Pipeline>,
    ) {
        let pipeline = &self.pipelines[self.calls.sets[set].pipeline];
        let (raw, point) = (&self.device.raw, vk::PipelineBindPoint::COMPUTE);
        // SAFETY: the command buffer is being recorded. One driver owns pipeline, set and buffers,
        // so they live as long as the command buffer is used.
        unsafe {
            if *bound != Some(pipeline.raw) {
                raw.cmd_bind_pipeline(commands, point, pipeline.raw);
                *bound = Some(pipeline.raw);
            }
            let sets = &self.sets.sets[set..=set];
            raw.cmd_bind_descriptor_sets(commands, point, pipeline.layout, 0, sets, &[]);
            match grid {
                DispatchGrid::Direct([x, y, z]) => raw.cmd_dispatch(commands, x, y, z),
                DispatchGrid::Indirect(at) => {
                    raw.cmd_dispatch_indirect(commands, self.grids.buffer, at)
                }
            }
        }
    }
}

/// Records the copies of ranges to consecutive locations from the start of `to`.
pub(crate) fn record_reads<'m>(
    device: &VulkanDevice,
    commands: vk::CommandBuffer,
    reads: &[ReadbackRange],
    to: &VulkanBuffer,
    memory: impl Fn(tercet_plan::ProgramBuffer) -> &'m VulkanBuffer,
) -> Result<(), VulkanError> {
    let usage = vk::CommandBufferUsageFlags::empty();
    record(device, commands, usage, || {
        let mut at = 0;
        for read in reads {
            let region = vk::BufferCopy::default()
                .src_offset(read.offset_bytes)
                .dst_offset(at)
                .size(read.bytes);
            let from = memory(read.buffer).buffer;
            // SAFETY: the command buffer is being recorded. `to` has room for all reads, which are
            // inside their buffers.
            unsafe {
                device
                    .raw
                    .cmd_copy_buffer(commands, from, to.buffer, &[region])
            };
            at += read.bytes;
        }
        barrier_all(device, commands);
    })
}
