//! Small inputs, gathered: each write of wgpu makes a buffer and a copy of its own.

use std::ops::Range;

/// Buffers of inputs up to this size are written whole, in one go.
const GATHERED_BYTES: u64 = 64 << 10;

/// What the buffer of inputs holds, or will when it is written next.
#[derive(Debug, Default)]
pub(crate) struct InputBuffer {
    /// All of its bytes; none if they are many, or before the first.
    bytes: Vec<u8>,
    /// Those that the device does not have yet.
    dirty: Range<usize>,
    /// Copies on the device wrote into the buffer, too: it holds what is not known here, and nothing is gathered.
    device_written: bool,
}

impl InputBuffer {
    /// Takes bytes for a buffer of `size`, a last word that is not whole filled with zeros; false if the buffer is
    /// too large to be gathered.
    pub(crate) fn take(&mut self, size: u64, offset_bytes: u64, bytes: &[u8]) -> bool {
        if size > GATHERED_BYTES || self.device_written {
            return false;
        }
        self.bytes.resize(size as usize, 0);
        let start = offset_bytes as usize;
        let end = start + bytes.len();
        let whole = end.next_multiple_of(4);
        let Some(to) = self.bytes.get_mut(start..whole) else {
            return false; // The device refuses what lies outside.
        };
        to.fill(0);
        to[..bytes.len()].copy_from_slice(bytes);
        self.dirty = match self.dirty.is_empty() {
            true => start..whole,
            false => self.dirty.start.min(start)..self.dirty.end.max(whole),
        };
        true
    }

    /// What is to be written, and where it starts.
    pub(crate) fn dirty_bytes(&self) -> Option<(u64, &[u8])> {
        let range = self.dirty.clone();
        let bytes = self.bytes.get(range.clone())?;
        (!bytes.is_empty()).then_some((range.start as u64, bytes))
    }

    /// The device writes into the buffer by itself from now on.
    pub(crate) fn is_foreign(&mut self) {
        self.device_written = true;
        self.bytes = Vec::new();
    }

    /// The device has all.
    pub(crate) fn mark_clean(&mut self) {
        self.dirty = 0..0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_become_one() {
        let mut inputs = InputBuffer::default();
        assert_eq!(inputs.dirty_bytes(), None);
        assert!(inputs.take(16, 8, &[1, 2, 3, 4]));
        assert_eq!(inputs.dirty_bytes(), Some((8, &[1, 2, 3, 4][..])));
        assert!(inputs.take(16, 0, &[5, 6]));
        let all = [5, 6, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4];
        assert_eq!(inputs.dirty_bytes(), Some((0, &all[..])));
        inputs.mark_clean();
        assert_eq!(inputs.dirty_bytes(), None);
        // What lies between two later writes is what was written before.
        assert!(inputs.take(16, 4, &[7]));
        assert!(inputs.take(16, 12, &[8, 8, 8, 8]));
        let all = [7, 0, 0, 0, 1, 2, 3, 4, 8, 8, 8, 8];
        assert_eq!(inputs.dirty_bytes(), Some((4, &all[..])));
    }

    #[test]
    fn what_the_device_wrote_is_not_written_over() {
        let mut inputs = InputBuffer::default();
        assert!(inputs.take(16, 0, &[1, 2, 3, 4]));
        inputs.mark_clean();
        inputs.is_foreign();
        assert!(!inputs.take(16, 12, &[1]));
        assert_eq!(inputs.dirty_bytes(), None);
    }

    #[test]
    fn large_buffers_and_what_lies_outside_are_not_gathered() {
        let mut inputs = InputBuffer::default();
        assert!(!inputs.take(GATHERED_BYTES + 4, 0, &[1]));
        assert!(!inputs.take(16, 16, &[1]));
        assert_eq!(inputs.dirty_bytes(), None);
    }
}
