//! Zeroed memory, in large pages where there is much of it.
//!
//! Kernels walk through more memory at once than the processor keeps addresses of pages of 4 KiB of. And a page is handed out when it is
//! first written, which costs more than packing what lies in it: of Linux, who says that it may gets 512 of them at once.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use bytemuck::Pod;
use bytemuck::allocation::try_zeroed_slice_box;
use tercet_ir::RunError;

use crate::plan::ALIGN_BYTES;

pub(crate) type Word = u128;

/// Zeroed bytes at a 64-byte boundary. The system hands out zero pages on first touch, so that
/// what a run does not reach costs nothing.
#[derive(Default)]
pub(crate) struct Buffer {
    memory: Memory,
    start: usize,
    len: usize,
}

enum Memory {
    Usual(Box<[Word]>),
    #[cfg(target_os = "linux")]
    Large(memmap2::MmapMut),
}

impl Default for Memory {
    fn default() -> Memory {
        Memory::Usual(Box::default())
    }
}

impl Memory {
    /// Zeroed memory of at least so many bytes.
    fn zeroed(len: usize) -> Option<Memory> {
        #[cfg(target_os = "linux")]
        {
            /// Bytes from which memory has several large pages, of 2 MiB, or of 32 with the pages of some processors.
            const LARGE: usize = 4 << 20;
            if len >= LARGE {
                let pages = memmap2::MmapOptions::new().len(len).map_anon().ok()?;
                // Without large pages it is memory as any.
                pages.advise(memmap2::Advice::HugePage).ok();
                return Some(Memory::Large(pages));
            }
        }
        let words = len.checked_add(ALIGN_BYTES)?.div_ceil(size_of::<Word>());
        try_zeroed_slice_box(words).ok().map(Memory::Usual)
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Memory::Usual(words) => bytemuck::cast_slice(words),
            #[cfg(target_os = "linux")]
            Memory::Large(pages) => pages,
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Memory::Usual(words) => bytemuck::cast_slice_mut(words),
            #[cfg(target_os = "linux")]
            Memory::Large(pages) => pages,
        }
    }
}

impl Buffer {
    /// A buffer of `len` bytes.
    ///
    /// # Errors
    /// [`RunError::OutOfMemory`] when the system has no room.
    pub(crate) fn zeroed(len: usize, what: &'static str) -> Result<Buffer, RunError> {
        let bytes = len as u64;
        Buffer::try_zeroed(len).ok_or(RunError::OutOfMemory { what, bytes })
    }

    /// A buffer of `len` bytes; nothing when the system has no room.
    fn try_zeroed(len: usize) -> Option<Buffer> {
        if len == 0 {
            return Some(Buffer::default());
        }
        let memory = Memory::zeroed(len)?;
        let start = memory.bytes().as_ptr().align_offset(ALIGN_BYTES);
        Some(Buffer { memory, start, len })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.memory.bytes()[self.start..self.start + self.len]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory.bytes_mut()[self.start..self.start + self.len]
    }
}

/// A [`Buffer`] of elements: what is packed once and kept.
pub(crate) struct Pages<T> {
    buffer: Buffer,
    elements: PhantomData<T>,
}

impl<T: Pod> Pages<T> {
    /// Memory of `len` elements; nothing where the system has no room.
    pub(crate) fn zeroed(len: usize) -> Option<Pages<T>> {
        Some(Pages {
            buffer: Buffer::try_zeroed(len.checked_mul(size_of::<T>())?)?,
            elements: PhantomData,
        })
    }
}

impl<T: Pod> Deref for Pages<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        bytemuck::cast_slice(self.buffer.bytes())
    }
}

impl<T: Pod> DerefMut for Pages<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        bytemuck::cast_slice_mut(self.buffer.bytes_mut())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_any_size_is_zeroed_and_written() {
        for len in [0, 1, 1000, (1 << 20) - 1, 1 << 20, (1 << 20) + 3] {
            let mut pages = Pages::<f32>::zeroed(len).unwrap();
            assert_eq!(pages.len(), len);
            assert!(pages.iter().all(|x| x.to_bits() == 0));
            pages
                .iter_mut()
                .enumerate()
                .for_each(|(i, x)| *x = i as f32);
            assert!(pages.iter().enumerate().all(|(i, x)| *x == i as f32));
        }
    }

    #[test]
    fn memory_that_is_not_there_is_nothing() {
        assert!(Pages::<f32>::zeroed(usize::MAX / 4).is_none());
        assert!(Pages::<i32>::zeroed(usize::MAX).is_none());
    }
}
