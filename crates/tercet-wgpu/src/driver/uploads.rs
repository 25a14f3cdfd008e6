//! Host-to-device uploads into the buffers of a program.

use std::sync::Arc;

use tercet_plan::ProgramBuffer;

use super::{CHUNK_BYTES, UNSENT_BYTES, WgpuDriver};
use crate::device::{DeviceFault, lock};
use crate::staging::WORTH_BYTES;

impl WgpuDriver {
    /// Writes bytes into a buffer of the program.
    pub(super) fn upload(
        &mut self,
        buffer: ProgramBuffer,
        offset_bytes: u64,
        bytes: &[u8],
    ) -> Result<(), DeviceFault> {
        match self.buffers.get(buffer).cloned() {
            Some(to) => self.upload_to(&to, offset_bytes, bytes),
            None => Ok(()), // No slot uses it.
        }
    }

    /// Writes bytes in chunks and pads an incomplete last word with zeros.
    pub(super) fn upload_to(
        &mut self,
        to: &wgpu::Buffer,
        offset_bytes: u64,
        bytes: &[u8],
    ) -> Result<(), DeviceFault> {
        let gpu = Arc::clone(&self.gpu);
        let (whole, rest) = bytes.split_at(bytes.len() / 4 * 4);
        let mut at = offset_bytes;
        // Browsers map buffers only between tasks, so the reusable staging buffers cannot be used
        // there.
        if whole.len() >= WORTH_BYTES && !cfg!(target_arch = "wasm32") {
            lock(&gpu.staging).upload(&gpu, to, at, whole)?;
            at += whole.len() as u64;
        } else {
            for chunk in whole.chunks(CHUNK_BYTES) {
                gpu.scoped(|| gpu.queue.write_buffer(to, at, chunk))?;
                at += chunk.len() as u64;
                self.unsent += chunk.len() as u64;
                if self.unsent >= UNSENT_BYTES {
                    self.send()?;
                }
            }
        }
        if !rest.is_empty() {
            let mut word = [0; 4];
            word[..rest.len()].copy_from_slice(rest);
            gpu.scoped(|| gpu.queue.write_buffer(to, at, &word))?;
        }
        Ok(())
    }

    /// Submits pending writes and, on native platforms, waits for them.
    pub(super) fn send(&mut self) -> Result<(), DeviceFault> {
        self.unsent = 0;
        let gpu = &self.gpu;
        let submission = gpu.scoped(|| gpu.queue.submit([]))?;
        match cfg!(target_arch = "wasm32") {
            true => Ok(()),
            false => gpu.poll(Some(&submission)),
        }
    }
}
