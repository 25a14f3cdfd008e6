//! Device-to-host readback: copies into host-visible memory. The commands are recorded again only
//! when the reads change.

use std::sync::Arc;

use ash::vk;
use tercet_plan::{ProgramBuffer, ReadbackRange};

use crate::device::VulkanDevice;
use crate::error::VulkanError;
use crate::memory::{BufferMemory, VulkanBuffer};
use crate::record::{CommandPool, record_reads};

/// A set of device-to-host copies and their host-visible memory.
#[derive(Default)]
pub(crate) struct VulkanReadback {
    commands: Option<(CommandPool, vk::CommandBuffer)>,
    /// The ranges that the commands copy.
    reads: Vec<ReadbackRange>,
    memory: Option<VulkanBuffer>,
}

impl VulkanReadback {
    /// Creates an empty readback; memory is allocated by the first read.
    pub(crate) fn new() -> VulkanReadback {
        VulkanReadback::default()
    }

    /// The commands that were recorded last.
    pub(crate) fn commands(&self) -> Option<vk::CommandBuffer> {
        self.commands.as_ref().map(|(_, commands)| *commands)
    }

    /// True if the commands copy exactly these ranges.
    pub(crate) fn copies(&self, reads: &[ReadbackRange]) -> bool {
        self.reads == reads
    }

    /// Discards the recorded commands, because the buffers that they copy from were replaced.
    pub(crate) fn invalidate(&mut self) {
        self.reads.clear();
    }

    /// Records the copies of `reads`, unless the recorded commands already copy them. Returns true
    /// if commands were recorded.
    pub(crate) fn record<'m>(
        &mut self,
        device: &Arc<VulkanDevice>,
        reads: &[ReadbackRange],
        of: impl Fn(ProgramBuffer) -> &'m VulkanBuffer,
    ) -> Result<bool, VulkanError> {
        if self.reads == reads {
            return Ok(false);
        }
        self.reads.clear();
        let bytes: u64 = reads.iter().map(|r| r.bytes).sum();
        if self.memory.as_ref().is_none_or(|m| m.bytes < bytes) {
            // The size is rounded up, because consecutive runs often read more and more bytes.
            let bytes = bytes.next_multiple_of(4096);
            self.memory = Some(VulkanBuffer::new(
                device,
                BufferMemory::Host,
                bytes,
                "readback buffer",
            )?);
        }
        if self.commands.is_none() {
            let pool = CommandPool::new(device)?;
            let commands = pool.buffer()?;
            self.commands = Some((pool, commands));
        }
        if let (Some(to), Some((_, commands))) = (&self.memory, &self.commands) {
            record_reads(device, *commands, reads, to, of)?;
        }
        self.reads.extend_from_slice(reads);
        Ok(true)
    }

    /// Passes the bytes of each read to `take`.
    pub(crate) fn take(&self, take: &mut dyn FnMut(usize, &[u8])) {
        let mut bytes = self
            .memory
            .as_ref()
            .map(VulkanBuffer::bytes)
            .unwrap_or_default();
        for (i, read) in self.reads.iter().enumerate() {
            let (one, rest) = bytes.split_at(read.bytes as usize);
            take(i, one);
            bytes = rest;
        }
    }
}
