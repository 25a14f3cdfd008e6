//! The bytes of a tensor: owned, or where somebody else has them, aligned for the dtype or not.

use super::{Storage, Tensor, TensorError, Word, zeroed_words};
use std::sync::Arc;

impl Tensor {
    /// The raw bytes, aligned for the dtype.
    pub fn bytes(&self) -> &[u8] {
        match &self.storage {
            Storage::Shared {
                aligned: Some(copy),
                ..
            } => {
                let words = copy.get_or_init(|| {
                    self.copied()
                        .unwrap_or_else(|e| panic!("{e}: see `Tensor::align`"))
                });
                &bytemuck::cast_slice(words)[..self.ty.size_bytes()]
            }
            Storage::Owned(_) | Storage::Shared { .. } => self.loose_bytes(),
        }
    }

    /// The raw bytes where they lie, for readers that need them not aligned: never a copy.
    pub fn loose_bytes(&self) -> &[u8] {
        match &self.storage {
            Storage::Owned(words) => &bytemuck::cast_slice(words)[..self.ty.size_bytes()],
            Storage::Shared { owner, range, .. } => &(**owner).as_ref()[range.clone()],
        }
    }

    /// Whether [`Tensor::bytes`] would copy.
    pub fn is_loose(&self) -> bool {
        match &self.storage {
            Storage::Shared { aligned, .. } => aligned.as_ref().is_some_and(|c| c.get().is_none()),
            Storage::Owned(_) => false,
        }
    }

    /// Makes the copy that [`Tensor::bytes`] gives, where it would make one.
    ///
    /// # Errors
    /// [`TensorError::OutOfMemory`] when there is no room for it.
    pub fn align(&self) -> Result<(), TensorError> {
        if let Storage::Shared {
            aligned: Some(copy),
            ..
        } = &self.storage
            && copy.get().is_none()
        {
            // Another thread may have been faster.
            let _ = copy.set(self.copied()?);
        }
        Ok(())
    }

    fn copied(&self) -> Result<Vec<Word>, TensorError> {
        let mut words = zeroed_words(&self.ty)?;
        let bytes = self.loose_bytes();
        bytemuck::cast_slice_mut(&mut words)[..bytes.len()].copy_from_slice(bytes);
        Ok(words)
    }

    /// The raw bytes for writing; shared memory is copied first. `Bool` bytes must stay 0 or 1.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let len = self.ty.size_bytes();
        if let Storage::Shared { .. } = self.storage {
            let mut words = vec![0 as Word; len.div_ceil(size_of::<Word>())];
            bytemuck::cast_slice_mut(&mut words)[..len].copy_from_slice(self.loose_bytes());
            self.storage = Storage::Owned(Arc::new(words));
        }
        match &mut self.storage {
            Storage::Owned(words) => {
                &mut bytemuck::cast_slice_mut(Arc::make_mut(words).as_mut_slice())[..len]
            }
            Storage::Shared { .. } => unreachable!("shared storage was copied above"),
        }
    }
}
