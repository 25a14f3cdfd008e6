//! Pipelined runs: a run starts before the previous one is finished. Commands on the queue perform
//! the writes that the host would do between the two runs.

use std::ops::Range;

use ash::vk;
use tercet_plan::{InputUpdate, LaunchSizes, ReadbackRange, StageId};

use super::VulkanDriver;
use crate::device::{TimelineValue, VulkanDevice};
use crate::error::VulkanError;
use crate::record::{CommandPool, record};

/// Maximum bytes of one `vkCmdUpdateBuffer`.
const COMMAND_BYTES: usize = 65_536;

/// Maximum number of unchanged bytes between two changed ranges for which one command writes both
/// ranges and the bytes between them.
const GAP_BYTES: usize = 64;

/// A submission whose results are not read yet while a later one is in flight.
#[derive(Clone, Copy)]
pub(super) struct PreviousSubmission {
    pub(super) timeline_value: TimelineValue,
    /// The index in [`VulkanDriver::run_reads`] of the readback that the submission copies into.
    pub(super) readback_index: usize,
}

/// The resources of pipelined runs.
pub(super) struct PipelinedSubmit {
    /// The pool that owns the command buffers in `pre_run_commands`.
    _pool: CommandPool,
    /// Commands that write parameter blocks and grids before a run. The two buffers alternate, so
    /// the older one is always done.
    pre_run_commands: [vk::CommandBuffer; 2],
    at: usize,
    /// The parameter blocks and grids that the device has, or will have after the commands in
    /// flight.
    pub(super) numbers: [Vec<u8>; 2],
}

impl VulkanDriver {
    pub(super) fn start_pipelined(
        &mut self,
        launch: &LaunchSizes,
        changed: bool,
        puts: &[InputUpdate<'_>],
        reads: &[ReadbackRange],
    ) -> Result<bool, VulkanError> {
        self.shared.device.check_lost()?;
        let program = &self.buffers.loaded.program;
        let is_timed = self.recorded.as_ref().is_none_or(|r| r.queries.is_some());
        let is_plain = program.flow.is_empty();
        let is_recorded_anew = program.debug.record;
        if !self.running
            || self.previous.is_some()
            || is_timed
            || !is_plain
            || is_recorded_anew
            || reads.is_empty()
        {
            return Ok(false);
        }
        self.prepare_pipelined()?;
        let older = PreviousSubmission {
            timeline_value: self.last,
            readback_index: self.active_readback,
        };
        let run = self.run_commands(launch, &[StageId(0)])?;
        self.record_reads(reads, Some(older.readback_index))?;
        let mut commands = vec![self.record_before(launch, changed || !self.numbers, puts)?];
        commands.extend(run);
        commands.extend(self.run_reads[self.active_readback].commands());
        self.start(&commands)?;
        self.numbers = true;
        self.previous = Some(older);
        Ok(true)
    }

    /// Creates the resources of pipelined runs once. Records the run commands again so that they
    /// may be pending twice.
    fn prepare_pipelined(&mut self) -> Result<(), VulkanError> {
        if self.pipelined.is_some() {
            return Ok(());
        }
        let pool = CommandPool::new(&self.shared.device)?;
        self.pipelined = Some(PipelinedSubmit {
            pre_run_commands: [pool.buffer()?, pool.buffer()?],
            _pool: pool,
            at: 0,
            numbers: [self.words.bytes().to_vec(), self.grids.bytes().to_vec()],
        });
        if let Some(recorded) = &mut self.recorded {
            recorded.runs.clear();
        }
        Ok(())
    }

    /// Records the writes before a run.
    fn record_before(
        &mut self,
        launch: &LaunchSizes,
        has_new_numbers: bool,
        puts: &[InputUpdate<'_>],
    ) -> Result<vk::CommandBuffer, VulkanError> {
        let device = &self.shared.device;
        let behind = self.pipelined.as_mut();
        let behind = behind.expect("invariant: created before a pipelined run starts");
        behind.at = 1 - behind.at;
        let commands = behind.pre_run_commands[behind.at];
        let mut new = None;
        if has_new_numbers {
            let [mut words, mut grids] = behind.numbers.clone();
            let calls = &self.buffers.loaded.calls;
            calls.write(launch, &mut words, &mut grids);
            new = Some([words, grids]);
        }
        let once = vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT;
        record(device, commands, once, || {
            for put in puts {
                match *put {
                    InputUpdate::Bytes {
                        buffer,
                        offset_bytes,
                        bytes,
                    } => {
                        let to = self.buffers.memory(buffer).buffer;
                        update(device, commands, to, offset_bytes, bytes);
                    }
                    InputUpdate::Copy {
                        from,
                        buffer,
                        offset_bytes,
                    } => {
                        let region = vk::BufferCopy::default()
                            .src_offset(from.offset_bytes)
                            .dst_offset(offset_bytes)
                            .size(from.bytes);
                        let source = self.buffers.memory(from.buffer).buffer;
                        let to = self.buffers.memory(buffer).buffer;
                        // SAFETY: the command buffer is being recorded, and both ranges are inside
                        // their buffers.
                        unsafe {
                            device.raw.cmd_copy_buffer(commands, source, to, &[region]);
                        }
                    }
                }
            }
            let buffers = [&self.words, &self.grids];
            for ((to, old), new) in buffers
                .iter()
                .zip(&behind.numbers)
                .zip(new.iter().flatten())
            {
                for range in differing(old, new) {
                    update(device, commands, to.buffer, range.start as u64, &new[range]);
                }
            }
        })?;
        if let Some(new) = new {
            behind.numbers = new;
        }
        Ok(commands)
    }
}

/// Records a write of bytes, in complete words.
fn update(
    device: &VulkanDevice,
    commands: vk::CommandBuffer,
    to: vk::Buffer,
    at: u64,
    bytes: &[u8],
) {
    for (i, chunk) in bytes.chunks(COMMAND_BYTES).enumerate() {
        let at = at + (i * COMMAND_BYTES) as u64;
        // SAFETY: the command buffer is being recorded. The range is inside the buffer, has
        // complete words, and does not exceed the limit of the command.
        unsafe { device.raw.cmd_update_buffer(commands, to, at, chunk) };
    }
}

/// The ranges of words in which two buffers differ, merged across short gaps.
pub fn differing(old: &[u8], new: &[u8]) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for (at, (old, new)) in old.chunks(4).zip(new.chunks(4)).enumerate() {
        if old == new {
            continue;
        }
        let (start, end) = (at * 4, at * 4 + new.len());
        match ranges.last_mut() {
            Some(last) if start - last.end <= GAP_BYTES => last.end = end,
            Some(_) | None => ranges.push(start..end),
        }
    }
    ranges
}
