//! Tensors in separate buffers, which executables of one device copy from and into.

use std::sync::{Arc, Mutex, PoisonError};

use ash::vk;
use tercet_ir::RunError;
use tercet_plan::{ReadbackRange, SharedBuffer};

use super::VulkanDriver;
use crate::backend::VulkanContext;
use crate::device::TimelineValue;
use crate::error::VulkanError;
use crate::memory::{BufferMemory, VulkanBuffer};

/// A device buffer with one tensor.
///
/// ```
/// use tercet_ir::RunError;
/// use tercet_plan::SharedBuffer;
/// use tercet_vulkan::VulkanShared;
/// /// Copies the first 16 bytes to the host.
/// fn read(tensor: &VulkanShared) -> Result<Vec<u8>, RunError> {
///     assert_eq!(tensor.device(), "vulkan");
///     let mut bytes = Vec::new();
///     tensor.read(16, &mut |part| bytes.extend_from_slice(part))?;
///     Ok(bytes)
/// }
/// ```
pub struct VulkanShared {
    memory: VulkanBuffer,
    /// The last submission that copies from or into the buffer.
    last: Mutex<TimelineValue>,
    shared: Arc<VulkanContext>,
}

impl Drop for VulkanShared {
    fn drop(&mut self) {
        let last = *self.last.get_mut().unwrap_or_else(PoisonError::into_inner);
        // Ignore errors: a lost device has no pending work.
        let _ = self.shared.device.wait(last);
    }
}

impl VulkanShared {
    fn new(shared: &Arc<VulkanContext>, bytes: u64) -> Result<VulkanShared, VulkanError> {
        let what = "a tensor on the device";
        Ok(VulkanShared {
            memory: VulkanBuffer::new(&shared.device, BufferMemory::Device, bytes, what)?,
            last: Mutex::new(TimelineValue::default()),
            shared: Arc::clone(shared),
        })
    }

    fn used_by(&self, ticket: TimelineValue) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        *last = (*last).max(ticket);
    }

    fn read_bytes(&self, bytes: u64, take: &mut dyn FnMut(&[u8])) -> Result<(), VulkanError> {
        let device = &self.shared.device;
        device.check_lost()?;
        let to = VulkanBuffer::new(device, BufferMemory::Host, bytes, "readback buffer")?;
        let region = vk::BufferCopy::default().size(bytes);
        let ticket = self.shared.staging.copy(&[(&self.memory, &to, region)])?;
        self.used_by(ticket);
        device.wait(ticket)?;
        take(&to.bytes()[..bytes as usize]);
        Ok(())
    }
}

impl SharedBuffer for VulkanShared {
    fn device(&self) -> &'static str {
        "vulkan"
    }

    fn read(&self, bytes: u64, take: &mut dyn FnMut(&[u8])) -> Result<(), RunError> {
        Ok(self.read_bytes(bytes, take)?)
    }
}

impl VulkanDriver {
    /// Copies a range into a new tensor.
    pub(super) fn copy_out(&mut self, range: ReadbackRange) -> Result<VulkanShared, VulkanError> {
        let made = VulkanShared::new(&self.shared, range.bytes)?;
        if range.bytes > 0 {
            let region = vk::BufferCopy::default()
                .src_offset(range.offset_bytes)
                .size(range.bytes);
            let from = self.buffers.memory(range.buffer);
            let ticket = self.shared.staging.copy(&[(from, &made.memory, region)])?;
            self.last = self.last.max(ticket);
            made.used_by(ticket);
        }
        Ok(made)
    }

    /// Uploads bytes into a new tensor.
    pub(super) fn copy_up(&mut self, bytes: &[u8]) -> Result<VulkanShared, VulkanError> {
        let made = VulkanShared::new(&self.shared, bytes.len().next_multiple_of(4) as u64)?;
        self.counters.upload_bytes += bytes.len() as u64;
        made.used_by(self.shared.staging.upload(&made.memory, 0, bytes)?);
        Ok(made)
    }

    /// Copies the beginning of a tensor into a range.
    pub(super) fn copy_in(
        &mut self,
        from: &VulkanShared,
        range: ReadbackRange,
    ) -> Result<(), VulkanError> {
        self.shared.device.check_lost()?;
        let region = vk::BufferCopy::default()
            .dst_offset(range.offset_bytes)
            .size(range.bytes);
        let to = self.buffers.memory(range.buffer);
        let ticket = self.shared.staging.copy(&[(&from.memory, to, region)])?;
        self.last = self.last.max(ticket);
        from.used_by(ticket);
        Ok(())
    }

    pub(super) fn owns(&self, shared: &VulkanShared) -> bool {
        Arc::ptr_eq(&self.shared.device, &shared.shared.device)
    }
}
