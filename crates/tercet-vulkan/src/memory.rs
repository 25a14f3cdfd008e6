//! Buffers with dedicated memory allocations.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ash::vk;
use gpu_allocator::vulkan::{Allocation, AllocationCreateDesc, AllocationScheme};
use gpu_allocator::{AllocationError, MemoryLocation};

use crate::device::VulkanDevice;
use crate::error::VulkanError;

/// The memory type of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BufferMemory {
    /// Device-local memory.
    Device,
    /// Memory that the host writes and the device reads; device-local if possible.
    Shared,
    /// Host memory, cached for fast host reads and writes.
    Host,
}

impl BufferMemory {
    fn location(self) -> MemoryLocation {
        match self {
            BufferMemory::Device => MemoryLocation::GpuOnly,
            BufferMemory::Shared => MemoryLocation::CpuToGpu,
            BufferMemory::Host => MemoryLocation::GpuToCpu,
        }
    }
}

/// A device buffer. Before a buffer is dropped, the last submission that uses it must be done.
pub(crate) struct VulkanBuffer {
    pub(crate) buffer: vk::Buffer,
    allocation: Option<Allocation>,
    pub(crate) bytes: u64,
    device: Arc<VulkanDevice>,
}

impl Drop for VulkanBuffer {
    fn drop(&mut self) {
        // SAFETY: no submission uses the buffer, as the type requires.
        unsafe { self.device.raw.destroy_buffer(self.buffer, None) };
        if let Some(allocation) = self.allocation.take() {
            // The allocation came from this allocator, so this cannot fail.
            let _ = self.device.allocator().free(allocation);
            self.device
                .used_bytes
                .fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

impl VulkanBuffer {
    /// Creates a buffer of at least `bytes` bytes, with all usages that programs need. `what` names
    /// the buffer in errors.
    pub(crate) fn new(
        device: &Arc<VulkanDevice>,
        place: BufferMemory,
        bytes: u64,
        what: &'static str,
    ) -> Result<VulkanBuffer, VulkanError> {
        device.check_lost()?;
        // Add padding, so that an empty slot at the end can be bound.
        let size = bytes.next_multiple_of(16) + 16;
        let no_room = || VulkanError::OutOfMemory { what, bytes };
        let limit = device.features.max_buffer;
        let full = place == BufferMemory::Device
            && device
                .used_bytes
                .load(Ordering::Relaxed)
                .saturating_add(size)
                > device.info.memory_bytes;
        if size > limit || full {
            return Err(no_room());
        }
        let usage = vk::BufferUsageFlags::STORAGE_BUFFER
            | vk::BufferUsageFlags::UNIFORM_BUFFER
            | vk::BufferUsageFlags::INDIRECT_BUFFER
            | vk::BufferUsageFlags::TRANSFER_SRC
            | vk::BufferUsageFlags::TRANSFER_DST;
        let info = vk::BufferCreateInfo::default()
            .size(size)
            .usage(usage)
            .sharing_mode(vk::SharingMode::EXCLUSIVE);
        // SAFETY: a valid create info.
        let buffer = unsafe { device.raw.create_buffer(&info, None) }
            .map_err(device.failed("vkCreateBuffer"))?;
        let mut memory = VulkanBuffer {
            buffer,
            allocation: None,
            bytes: size,
            device: Arc::clone(device),
        };
        // SAFETY: the buffer is valid.
        let requirements = unsafe { device.raw.get_buffer_memory_requirements(buffer) };
        let allocation = device.allocator().allocate(&AllocationCreateDesc {
            name: what,
            requirements,
            location: place.location(),
            linear: true,
            allocation_scheme: AllocationScheme::GpuAllocatorManaged,
        });
        let allocation = allocation.map_err(|e| match e {
            AllocationError::OutOfMemory | AllocationError::NoCompatibleMemoryTypeFound => {
                no_room()
            }
            e => VulkanError::Failed {
                reason: format!("{what} of {bytes} bytes: {e}"),
            },
        })?;
        // SAFETY: memory and offset come from the allocator for this buffer.
        let bound = unsafe {
            let (block, offset) = (allocation.memory(), allocation.offset());
            device.raw.bind_buffer_memory(buffer, block, offset)
        };
        memory.allocation = Some(allocation);
        device.used_bytes.fetch_add(size, Ordering::Relaxed);
        bound.map_err(device.failed("vkBindBufferMemory"))?;
        Ok(memory)
    }

    /// The host-visible bytes; empty for [`BufferMemory::Device`].
    pub(crate) fn bytes(&self) -> &[u8] {
        let slice = self.allocation.as_ref().and_then(Allocation::mapped_slice);
        slice.unwrap_or_default()
    }

    /// As [`VulkanBuffer::bytes`], writable. The device must not use the buffer while the host
    /// writes.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        let slice = self
            .allocation
            .as_mut()
            .and_then(Allocation::mapped_slice_mut);
        slice.unwrap_or_default()
    }
}
