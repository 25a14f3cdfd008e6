//! Zeroed, aligned memory; large allocations use huge pages.
//!
//! Kernels access more memory at once than the TLB covers with pages of 4 KiB. A page fault on the
//! first write to a page also costs more than packing its content. With `madvise(MADV_HUGEPAGE)`,
//! Linux maps 512 of these pages per fault.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use bytemuck::Pod;
use bytemuck::allocation::try_zeroed_slice_box;
use tercet_ir::RunError;

use crate::args::PackedForm;
use crate::plan::ALIGN_BYTES;

pub(crate) type AlignedWord = u128;

/// Zeroed bytes, aligned to 64 bytes. The system maps zero pages on first touch, so memory that a
/// run does not reach costs nothing.
#[derive(Default)]
pub struct AlignedBuffer {
    memory: AlignedMemory,
    start: usize,
    len: usize,
}

enum AlignedMemory {
    Usual(Box<[AlignedWord]>),
    #[cfg(target_os = "linux")]
    Large(memmap2::MmapMut),
}

impl Default for AlignedMemory {
    fn default() -> AlignedMemory {
        AlignedMemory::Usual(Box::default())
    }
}

impl AlignedMemory {
    /// Zeroed memory of at least `len` bytes.
    fn zeroed(len: usize) -> Option<AlignedMemory> {
        #[cfg(target_os = "linux")]
        {
            /// Allocation size from which huge pages are used. A huge page has 2 MiB, or 32 MiB on
            /// some processors.
            const LARGE: usize = 4 << 20;
            if len >= LARGE {
                let pages = memmap2::MmapOptions::new().len(len).map_anon().ok()?;
                // If huge pages are unavailable, ordinary pages are used.
                pages.advise(memmap2::Advice::HugePage).ok();
                return Some(AlignedMemory::Large(pages));
            }
        }
        let words = len
            .checked_add(ALIGN_BYTES)?
            .div_ceil(size_of::<AlignedWord>());
        try_zeroed_slice_box(words).ok().map(AlignedMemory::Usual)
    }

    fn bytes(&self) -> &[u8] {
        match self {
            AlignedMemory::Usual(words) => bytemuck::cast_slice(words),
            #[cfg(target_os = "linux")]
            AlignedMemory::Large(pages) => pages,
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            AlignedMemory::Usual(words) => bytemuck::cast_slice_mut(words),
            #[cfg(target_os = "linux")]
            AlignedMemory::Large(pages) => pages,
        }
    }
}

impl AlignedBuffer {
    /// A buffer of `len` bytes.
    ///
    /// # Errors
    /// [`RunError::OutOfMemory`] if the allocation fails.
    pub(crate) fn zeroed(len: usize, what: &'static str) -> Result<AlignedBuffer, RunError> {
        let bytes = len as u64;
        AlignedBuffer::try_zeroed(len).ok_or(RunError::OutOfMemory { what, bytes })
    }

    /// A buffer of `len` bytes; `None` if the allocation fails.
    fn try_zeroed(len: usize) -> Option<AlignedBuffer> {
        if len == 0 {
            return Some(AlignedBuffer::default());
        }
        let memory = AlignedMemory::zeroed(len)?;
        let start = memory.bytes().as_ptr().align_offset(ALIGN_BYTES);
        Some(AlignedBuffer { memory, start, len })
    }

    /// All bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.memory.bytes()[self.start..self.start + self.len]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory.bytes_mut()[self.start..self.start + self.len]
    }
}

/// A [`AlignedBuffer`] of typed elements, for operands that are packed once.
pub struct AlignedPages<T> {
    buffer: AlignedBuffer,
    elements: PhantomData<T>,
}

impl<T: Pod> AlignedPages<T> {
    /// Memory of `len` zeroed elements; `None` if the allocation fails.
    pub fn zeroed(len: usize) -> Option<AlignedPages<T>> {
        Some(AlignedPages {
            buffer: AlignedBuffer::try_zeroed(len.checked_mul(size_of::<T>())?)?,
            elements: PhantomData,
        })
    }
}

impl<T: Pod> Deref for AlignedPages<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        bytemuck::cast_slice(self.buffer.bytes())
    }
}

impl<T: Pod> DerefMut for AlignedPages<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        bytemuck::cast_slice_mut(self.buffer.bytes_mut())
    }
}

impl<T: Pod + Send + Sync> PackedForm for AlignedPages<T> {
    fn bytes(&self) -> &[u8] {
        self.buffer.bytes()
    }
}
