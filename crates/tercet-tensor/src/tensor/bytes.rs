//! Access to the bytes of a tensor: owned or borrowed, aligned for the dtype or not.

use super::{Tensor, TensorError, TensorStorage, TensorWord, zeroed_words};
use std::sync::Arc;

impl Tensor {
    /// The raw bytes, aligned for the dtype.
    pub fn bytes(&self) -> &[u8] {
        match &self.storage {
            TensorStorage::Shared {
                aligned: Some(copy),
                ..
            } => {
                let words = copy.get_or_init(|| {
                    self.copied()
                        .unwrap_or_else(|e| panic!("{e}: see `Tensor::align`"))
                });
                &bytemuck::cast_slice(words)[..self.ty.size_bytes()]
            }
            TensorStorage::Owned(_) | TensorStorage::Shared { .. } => self.loose_bytes(),
        }
    }

    /// The raw bytes without alignment, for readers that do not need it; never copies.
    pub fn loose_bytes(&self) -> &[u8] {
        match &self.storage {
            TensorStorage::Owned(words) => &bytemuck::cast_slice(words)[..self.ty.size_bytes()],
            TensorStorage::Shared { owner, range, .. } => &(**owner).as_ref()[range.clone()],
        }
    }

    /// True if [`Tensor::bytes`] would make an aligned copy.
    pub fn is_loose(&self) -> bool {
        match &self.storage {
            TensorStorage::Shared { aligned, .. } => {
                aligned.as_ref().is_some_and(|c| c.get().is_none())
            }
            TensorStorage::Owned(_) => false,
        }
    }

    /// Makes the aligned copy in advance that [`Tensor::bytes`] would otherwise make.
    ///
    /// # Errors
    /// [`TensorError::OutOfMemory`] when the copy does not fit in memory.
    pub fn align(&self) -> Result<(), TensorError> {
        if let TensorStorage::Shared {
            aligned: Some(copy),
            ..
        } = &self.storage
            && copy.get().is_none()
        {
            // Another thread may have set the copy first.
            let _ = copy.set(self.copied()?);
        }
        Ok(())
    }

    fn copied(&self) -> Result<Vec<TensorWord>, TensorError> {
        let mut words = zeroed_words(&self.ty)?;
        let bytes = self.loose_bytes();
        bytemuck::cast_slice_mut(&mut words)[..bytes.len()].copy_from_slice(bytes);
        Ok(words)
    }

    /// The raw bytes for writing; shared memory is copied first. `Bool` bytes must remain 0 or 1.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let len = self.ty.size_bytes();
        if let TensorStorage::Shared { .. } = self.storage {
            let mut words = vec![0 as TensorWord; len.div_ceil(size_of::<TensorWord>())];
            bytemuck::cast_slice_mut(&mut words)[..len].copy_from_slice(self.loose_bytes());
            self.storage = TensorStorage::Owned(Arc::new(words));
        }
        match &mut self.storage {
            TensorStorage::Owned(words) => {
                &mut bytemuck::cast_slice_mut(Arc::make_mut(words).as_mut_slice())[..len]
            }
            TensorStorage::Shared { .. } => unreachable!("shared storage was copied above"),
        }
    }
}
