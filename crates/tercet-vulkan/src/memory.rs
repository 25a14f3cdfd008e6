//! Buffers with memory of their own.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ash::vk;
use gpu_allocator::vulkan::{Allocation, AllocationCreateDesc, AllocationScheme};
use gpu_allocator::{AllocationError, MemoryLocation};

use crate::device::VulkanDevice;
use crate::error::VulkanError;

/// Where the memory of a buffer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BufferMemory {
    /// The device's own memory.
    Device,
    /// Memory that the host writes and the device reads, the device's own where that is possible.
    Shared,
    /// The host's memory, fast to read and to write for the host.
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

/// A buffer. Whoever drops it has waited for the last submission that uses it.
pub(crate) struct VulkanBuffer {
    pub(crate) buffer: vk::Buffer,
    allocation: Option<Allocation>,
    pub(crate) bytes: u64,
    device: Arc<VulkanDevice>,
}

impl Drop for VulkanBuffer {
    fn drop(&mut self) {
        // SAFETY: no submission uses the buffer any more, as the type demands.
        unsafe { self.device.raw.destroy_buffer(self.buffer, None) };
        if let Some(allocation) = self.allocation.take() {
            // An error would mean a foreign allocation: nothing to be done about it here.
            let _ = self.device.allocator().free(allocation);
            self.device
                .used_bytes
                .fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

impl VulkanBuffer {
    /// A buffer of at least `bytes`, used in any way a program needs; `what` is for errors.
    pub(crate) fn new(
        device: &Arc<VulkanDevice>,
        place: BufferMemory,
        bytes: u64,
        what: &'static str,
    ) -> Result<VulkanBuffer, VulkanError> {
        device.check_lost()?;
        // A little more, so that an empty slot at the end can be bound.
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
        // SAFETY: a valid description.
        let buffer = unsafe { device.raw.create_buffer(&info, None) }
            .map_err(device.failed("vkCreateBuffer"))?;
        let mut memory = VulkanBuffer {
            buffer,
            allocation: None,
            bytes: size,
            device: Arc::clone(device),
        };
        // SAFETY: the buffer was just made.
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

    /// The bytes of memory that the host sees; empty for [`BufferMemory::Device`].
    pub(crate) fn bytes(&self) -> &[u8] {
        let slice = self.allocation.as_ref().and_then(Allocation::mapped_slice);
        slice.unwrap_or_default()
    }

    /// As [`VulkanBuffer::bytes`], to write. The device does not use the buffer meanwhile.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        let slice = self
            .allocation
            .as_mut()
            .and_then(Allocation::mapped_slice_mut);
        slice.unwrap_or_default()
    }
}
