//! Uploads through buffers that stay.
//!
//! For each write wgpu takes a new buffer, whose pages the system has to find and clear; the weights of a model are
//! hundreds of writes. Here two buffers take turns: the host fills one while the device copies from the other.

use crate::buffers::create_buffer;
use crate::device::{DeviceFault, WgpuDevice};

/// The bytes of each.
const BYTES: usize = 8 << 20;

/// From here on a write goes this way: smaller ones wgpu gathers itself.
pub(crate) const WORTH_BYTES: usize = 256 << 10;

/// The two buffers of a device, there from the first upload on.
#[derive(Debug, Default)]
pub(crate) struct UploadStaging {
    turns: [Option<UploadBuffer>; 2],
    next: usize,
}

#[derive(Debug)]
struct UploadBuffer {
    buffer: wgpu::Buffer,
    /// The copy after which it is mapped again; it is, without one.
    sent: Option<wgpu::SubmissionIndex>,
}

impl UploadStaging {
    /// Writes whole words into a buffer, ahead of what is submitted next. Blocks while both buffers are in use.
    ///
    /// # Errors
    /// What wgpu says; the buffers are then made anew.
    pub(crate) fn upload(
        &mut self,
        gpu: &WgpuDevice,
        to: &wgpu::Buffer,
        offset_bytes: u64,
        bytes: &[u8],
    ) -> Result<(), DeviceFault> {
        let mut at = offset_bytes;
        for chunk in bytes.chunks(BYTES) {
            // Gone if anything fails.
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
        // Nothing uses it yet: it is mapped when the device is next asked.
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
