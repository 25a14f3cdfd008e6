//! Gathers small inputs into one write, because each wgpu write costs a staging buffer and a copy.

use std::ops::Range;

/// Maximum size of an input buffer whose inputs are gathered into one write.
pub const GATHERED_BYTES: u64 = 64 << 10;

/// The host copy of the input buffer, including bytes not yet written to the device.
#[derive(Debug, Default)]
pub struct InputBuffer {
    /// All bytes of the buffer; empty if the buffer is too large to gather, or before the first
    /// write.
    bytes: Vec<u8>,
    /// The byte range that the device does not have yet.
    dirty: Range<usize>,
    /// True if copies on the device also write the buffer. The host copy is then incomplete, so
    /// inputs are written one by one.
    device_written: bool,
}

impl InputBuffer {
    /// Stores bytes for a buffer of `size` bytes and pads an incomplete last word with zeros. False
    /// if the buffer is too large to gather.
    pub fn take(&mut self, size: u64, offset_bytes: u64, bytes: &[u8]) -> bool {
        if size > GATHERED_BYTES || self.device_written {
            return false;
        }
        self.bytes.resize(size as usize, 0);
        let start = offset_bytes as usize;
        let end = start + bytes.len();
        let whole = end.next_multiple_of(4);
        let Some(to) = self.bytes.get_mut(start..whole) else {
            return false; // Out of range; the device reports it.
        };
        to.fill(0);
        to[..bytes.len()].copy_from_slice(bytes);
        self.dirty = match self.dirty.is_empty() {
            true => start..whole,
            false => self.dirty.start.min(start)..self.dirty.end.max(whole),
        };
        true
    }

    /// The bytes to write and their offset.
    pub fn dirty_bytes(&self) -> Option<(u64, &[u8])> {
        let range = self.dirty.clone();
        let bytes = self.bytes.get(range.clone())?;
        (!bytes.is_empty()).then_some((range.start as u64, bytes))
    }

    /// Records that copies on the device also write the buffer.
    pub fn is_foreign(&mut self) {
        self.device_written = true;
        self.bytes = Vec::new();
    }

    /// Records that the device has all bytes.
    pub fn mark_clean(&mut self) {
        self.dirty = 0..0;
    }
}
