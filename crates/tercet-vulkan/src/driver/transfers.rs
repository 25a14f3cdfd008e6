//! Transfers into the buffers of an executable: uploads, redzones, and copies for clones.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ash::vk;
use tercet_plan::{ProgramBuffer, ReadbackRange};

use super::VulkanDriver;
use crate::buffers::{SENTINEL, allocate, fill_redzones, is_param, memory_of, redzone_message};
use crate::error::VulkanError;
use crate::memory::{BufferMemory, VulkanBuffer};
use crate::readback::VulkanReadback;

impl VulkanDriver {
    pub(super) fn write_bytes(
        &mut self,
        buffer: ProgramBuffer,
        at: u64,
        bytes: &[u8],
    ) -> Result<(), VulkanError> {
        self.shared.device.check_lost()?;
        self.counters.upload_bytes += bytes.len() as u64;
        if memory_of(buffer).0 == BufferMemory::Shared
            && let Some(memory) = self.buffers.own.get_mut(&buffer)
        {
            let uploads = &self.shared.staging.upload_bytes;
            uploads.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            // The submission that clears the new buffer may still be in flight, so wait for it
            // before the host writes.
            self.shared.device.wait(self.last)?;
            let to = &mut memory.bytes_mut()[at as usize..];
            to[..bytes.len()].copy_from_slice(bytes);
            to[bytes.len()..bytes.len().next_multiple_of(4)].fill(0);
            return Ok(());
        }
        let ticket = self
            .shared
            .staging
            .upload(self.buffers.memory(buffer), at, bytes)?;
        self.last = self.last.max(ticket);
        Ok(())
    }

    pub(super) fn clone_driver(&mut self) -> Result<VulkanDriver, VulkanError> {
        let params = Arc::clone(&self.buffers.params);
        let loaded = Arc::clone(&self.buffers.loaded);
        let mut clone = VulkanDriver::with_buffers(&self.shared, loaded, params)?;
        let states = |b: &ProgramBuffer| matches!(b, ProgramBuffer::State(_));
        let copies: Vec<_> = self.buffers.own.iter().filter(|(b, _)| states(b)).collect();
        let copies: Vec<_> = copies
            .into_iter()
            .map(|(b, from)| (from, clone.buffers.memory(*b), all_of(from)))
            .collect();
        let ticket = self.shared.staging.copy(&copies)?;
        self.last = self.last.max(ticket);
        clone.last = clone.last.max(ticket);
        Ok(clone)
    }

    pub(super) fn own_params(&mut self) -> Result<(), VulkanError> {
        if Arc::strong_count(&self.buffers.params) == 1 {
            return Ok(());
        }
        let device = &self.shared.device;
        let new = allocate(device, &self.buffers.loaded.program, is_param)?;
        let copies: Vec<_> = self
            .buffers
            .params
            .iter()
            .map(|(b, from)| (from, &new[b], all_of(from)))
            .collect();
        let ticket = self.shared.staging.copy(&copies)?;
        // If no clone shares the old buffers, replacing them frees them, so no work of this driver
        // may be pending.
        device.wait(self.last.max(ticket))?;
        self.last = self.last.max(ticket);
        self.buffers.params = Arc::new(new);
        self.forget_recorded();
        Ok(())
    }

    /// Discards all recorded commands. No work of this driver may be pending.
    pub(super) fn forget_recorded(&mut self) {
        self.recorded = None;
        self.run_reads
            .iter_mut()
            .for_each(VulkanReadback::invalidate);
        self.single_read.invalidate();
        self.gap_reads.invalidate();
    }

    /// Reports every redzone that a kernel overwrote, and fills the redzone again. Does nothing for
    /// programs without redzones.
    pub(super) fn check_redzones(&mut self) -> Result<(), VulkanError> {
        let program = Arc::clone(&self.buffers.loaded.program);
        if program.redzones.is_empty() {
            return Ok(());
        }
        let reads: Vec<ReadbackRange> = program
            .redzones
            .iter()
            .map(|g| ReadbackRange {
                buffer: g.buffer,
                offset_bytes: g.offset_bytes,
                bytes: g.bytes,
            })
            .collect();
        let of = |b| self.buffers.memory(b);
        self.gap_reads.record(&self.shared.device, &reads, of)?;
        self.start(self.gap_reads.commands().as_slice())?;
        self.finish()?;
        let messages = &self.shared.device.instance.messages;
        let mut broken = false;
        self.gap_reads.take(&mut |i, bytes| {
            let whole = bytes.chunks_exact(4).all(|w| w == SENTINEL.to_ne_bytes());
            if !whole {
                broken = true;
                messages.push(redzone_message(&program, &program.redzones[i]));
            }
        });
        if broken {
            for memories in [&self.buffers.own, &*self.buffers.params] {
                let ticket = fill_redzones(&self.shared, &program, memories)?;
                self.last = self.last.max(ticket);
            }
        }
        Ok(())
    }
}

fn all_of(memory: &VulkanBuffer) -> vk::BufferCopy {
    vk::BufferCopy::default().size(memory.bytes)
}
