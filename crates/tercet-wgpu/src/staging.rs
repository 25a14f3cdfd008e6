//! Uploads through reusable staging buffers.
//!
//! wgpu allocates a new staging buffer for each write, and the operating system must map and clear
//! its pages. Loading a model takes hundreds of writes. Two reusable buffers alternate instead: the
//! host fills one while the device copies from the other.

use crate::buffers::create_buffer;
use crate::device::{DeviceFault, WgpuDevice};

/// The size of each staging buffer in bytes.
const BYTES: usize = 8 << 20;

/// Minimum size of a write that uses these buffers; wgpu batches smaller writes itself.
pub(crate) const WORTH_BYTES: usize = 256 << 10;

/// The two staging buffers of a device; created by the first upload.
#[derive(Debug, Default)]
pub(crate) struct UploadStaging {
    turns: [Option<UploadBuffer>; 2],
    next: usize,
}

#[derive(Debug)]
struct UploadBuffer {
    buffer: wgpu::Buffer,
    /// The copy from this buffer that must finish before it is mapped again. `None` if the buffer
    /// is mapped.
    sent: Option<wgpu::SubmissionIndex>,
}

impl UploadStaging {
    /// Writes complete words into a buffer, before the next submission. Blocks while both staging
    /// buffers are in use.
    ///
    /// # Errors
    /// The error that wgpu reports; the next upload creates new staging buffers.
    pub(crate) fn upload(
        &mut self,
        gpu: &WgpuDevice,
        to: &wgpu::Buffer,
        offset_bytes: u64,
        bytes: &[u8],
    ) -> Result<(), DeviceFault> {
        let mut at = offset_bytes;
        for chunk in bytes.chunks(BYTES) {
            // The buffer is taken out of its slot, so that a failure below discards it.
            let turn = self.turns[self.next].take();
            let turn = turn.map_or_else(|| UploadBuffer::new(gpu), Ok)?;
            self.turns[self.next] = Some(turn.copy(gpu, to, at, chunk)?);
            self.next = 1 - self.next;
            at += chunk.len() as u64;
        }
        Ok(())
    }
}

impl UploadBuffer {
    fn new(gpu: &WgpuDevice) -> Result<UploadBuffer, DeviceFault> {
        let usage = wgpu::BufferUsages::MAP_WRITE | wgpu::BufferUsages::COPY_SRC;
        let made = create_buffer(gpu, "a staging buffer", BYTES as u64, usage);
        let buffer = made.map_err(|e| e.fault)?;
        // No submission uses the buffer, so the next poll maps it.
        gpu.scoped(|| buffer.map_async(wgpu::MapMode::Write, .., |_| {}))?;
        gpu.poll(None)?;
        Ok(UploadBuffer { buffer, sent: None })
    }

    fn copy(
        mut self,
        gpu: &WgpuDevice,
        to: &wgpu::Buffer,
        at: u64,
        chunk: &[u8],
    ) -> Result<UploadBuffer, DeviceFault> {
        if let Some(sent) = self.sent.take() {
            gpu.poll(Some(&sent))?;
        }
        let bytes = chunk.len() as u64;
        let unmapped = |e: wgpu::MapRangeError| DeviceFault::Refused(e.to_string());
        (self.buffer.get_mapped_range_mut(..bytes))
            .map_err(unmapped)?
            .copy_from_slice(chunk);
        let sent = gpu.scoped(|| {
            self.buffer.unmap();
            let mut encoder = gpu.device.create_command_encoder(&Default::default());
            encoder.copy_buffer_to_buffer(&self.buffer, 0, to, at, bytes);
            let sent = gpu.queue.submit([encoder.finish()]);
            self.buffer.map_async(wgpu::MapMode::Write, .., |_| {});
            sent
        })?;
        self.sent = Some(sent);
        Ok(self)
    }
}
