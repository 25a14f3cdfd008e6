//! Transfers outside of programs: chunked uploads through a ring buffer, fills and copies.
//!
//! The ring has two halves, each with a command buffer. The host fills one half while the device
//! copies from the other. Transfers are asynchronous; later submissions run after them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ash::vk;

use crate::device::{TimelineValue, VulkanDevice};
use crate::error::VulkanError;
use crate::memory::{BufferMemory, VulkanBuffer};
use crate::record::{CommandPool, barrier_all};

/// The size of each half of the ring in bytes.
const HALF_BYTES: usize = 8 << 20;

struct StagingSlot {
    memory: Option<VulkanBuffer>,
    commands: vk::CommandBuffer,
    /// The last submission of `commands`.
    last: TimelineValue,
}

struct StagingRing {
    slots: [StagingSlot; 2],
    next: usize,
    _pool: CommandPool,
}

/// The upload ring of a device.
pub(crate) struct VulkanStaging {
    ring: Mutex<StagingRing>,
    device: Arc<VulkanDevice>,
    /// Bytes uploaded from host to device.
    pub(crate) upload_bytes: AtomicU64,
}

impl Drop for VulkanStaging {
    fn drop(&mut self) {
        let ring = self.ring.get_mut().unwrap_or_else(PoisonError::into_inner);
        for half in &ring.slots {
            // Ignore errors: a lost device has no pending work.
            let _ = self.device.wait(half.last);
        }
    }
}

impl VulkanStaging {
    pub(crate) fn new(device: &Arc<VulkanDevice>) -> Result<VulkanStaging, VulkanError> {
        let pool = CommandPool::new(device)?;
        let half = || {
            Ok::<StagingSlot, VulkanError>(StagingSlot {
                memory: None,
                commands: pool.buffer()?,
                last: TimelineValue::default(),
            })
        };
        Ok(VulkanStaging {
            ring: Mutex::new(StagingRing {
                slots: [half()?, half()?],
                next: 0,
                _pool: pool,
            }),
            device: Arc::clone(device),
            upload_bytes: AtomicU64::new(0),
        })
    }

    /// Writes bytes into a buffer and pads an incomplete last word with zeros.
    pub(crate) fn upload(
        &self,
        to: &VulkanBuffer,
        offset_bytes: u64,
        bytes: &[u8],
    ) -> Result<TimelineValue, VulkanError> {
        let mut ticket = TimelineValue::default();
        let mut at = offset_bytes;
        for chunk in bytes.chunks(HALF_BYTES) {
            ticket = self.with_slot(true, |device, half| {
                let Some(memory) = &mut half.memory else {
                    return;
                };
                let whole = chunk.len().next_multiple_of(4);
                memory.bytes_mut()[..chunk.len()].copy_from_slice(chunk);
                memory.bytes_mut()[chunk.len()..whole].fill(0);
                let region = vk::BufferCopy::default().dst_offset(at).size(whole as u64);
                // SAFETY: the command buffer is being recorded. Both buffers outlive the
                // submission: the ring waits for its half before it uses or drops it, and the owner
                // of `to` keeps the timeline value.
                unsafe {
                    device
                        .raw
                        .cmd_copy_buffer(half.commands, memory.buffer, to.buffer, &[region]);
                }
            })?;
            at += chunk.len() as u64;
        }
        self.upload_bytes
            .fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(ticket)
    }

    /// Fills complete buffers with zeros.
    pub(crate) fn clear<'a>(
        &self,
        to: impl IntoIterator<Item = &'a VulkanBuffer>,
    ) -> Result<TimelineValue, VulkanError> {
        self.fill(to.into_iter().map(|m| (m, 0, m.bytes)), 0)
    }

    /// Fills ranges, given as offset and size in bytes, with a word.
    pub(crate) fn fill<'a>(
        &self,
        ranges: impl Iterator<Item = (&'a VulkanBuffer, u64, u64)>,
        word: u32,
    ) -> Result<TimelineValue, VulkanError> {
        self.with_slot(false, |device, half| {
            for (memory, at, bytes) in ranges {
                // SAFETY: the command buffer is being recorded, and the owner of the buffer keeps
                // the timeline value.
                unsafe {
                    let (commands, buffer) = (half.commands, memory.buffer);
                    device
                        .raw
                        .cmd_fill_buffer(commands, buffer, at, bytes, word);
                }
            }
        })
    }

    /// Copies ranges between buffers.
    pub(crate) fn copy(
        &self,
        copies: &[(&VulkanBuffer, &VulkanBuffer, vk::BufferCopy)],
    ) -> Result<TimelineValue, VulkanError> {
        self.with_slot(false, |device, half| {
            for (from, to, region) in copies {
                // SAFETY: the command buffer is being recorded, and the owners of the buffers keep
                // the timeline value.
                unsafe {
                    let (from, to) = (from.buffer, to.buffer);
                    device
                        .raw
                        .cmd_copy_buffer(half.commands, from, to, &[*region]);
                }
            }
        })
    }

    /// Waits until the next half is free, records into it and submits. Allocates its memory if
    /// `memory` is set.
    fn with_slot(
        &self,
        memory: bool,
        record: impl FnOnce(&VulkanDevice, &mut StagingSlot),
    ) -> Result<TimelineValue, VulkanError> {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let at = ring.next;
        let device = &self.device;
        let half = &mut ring.slots[at];
        device.wait(half.last)?;
        if memory && half.memory.is_none() {
            let size = HALF_BYTES as u64;
            half.memory = Some(VulkanBuffer::new(
                device,
                BufferMemory::Host,
                size,
                "staging buffer",
            )?);
        }
        let once = vk::CommandBufferBeginInfo::default()
            .flags(vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT);
        // SAFETY: the last submission of the command buffer is done, so it is not pending.
        // Beginning resets it.
        unsafe { device.raw.begin_command_buffer(half.commands, &once) }
            .map_err(device.failed("vkBeginCommandBuffer"))?;
        barrier_all(device, half.commands);
        record(device, half);
        // Makes the copied data visible to host reads after the submission.
        barrier_all(device, half.commands);
        // SAFETY: recording was begun above.
        unsafe { device.raw.end_command_buffer(half.commands) }
            .map_err(device.failed("vkEndCommandBuffer"))?;
        // SAFETY: the command buffer is recorded and not pending, and the callers keep the buffers
        // alive.
        half.last = unsafe { device.submit(&[half.commands]) }?;
        let ticket = half.last;
        ring.next = 1 - at;
        Ok(ticket)
    }
}
