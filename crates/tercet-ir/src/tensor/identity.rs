//! Whether a tensor is what it was, without a look at its elements.

use std::sync::{Arc, Weak};

use super::{ByteOwner, Storage, Tensor, Word};

/// The contents that a tensor had, without the memory that held them: a tensor that [is](Identity::is) them holds the same
/// bytes still. Whoever writes into that tensor's memory, or drops it, gives it another identity.
#[derive(Clone)]
pub struct Identity {
    memory: Known,
    bytes: usize,
}

#[derive(Clone)]
enum Known {
    // The allocation of a weak reference is not used again, and memory with one is not written in place.
    Owned(Weak<Vec<Word>>),
    Shared(Weak<dyn ByteOwner>, usize),
}

impl Identity {
    /// True if a tensor is in the memory that it was taken of, which nobody has written into since.
    pub fn is(&self, tensor: &Tensor) -> bool {
        let same = match (&self.memory, &tensor.storage) {
            (Known::Owned(known), Storage::Owned(words)) => {
                std::ptr::eq(known.as_ptr(), Arc::as_ptr(words))
            }
            (Known::Shared(known, start), Storage::Shared { owner, range, .. }) => {
                std::ptr::addr_eq(known.as_ptr(), Arc::as_ptr(owner)) && *start == range.start
            }
            (Known::Owned(_), Storage::Shared { .. }) | (Known::Shared(..), Storage::Owned(_)) => {
                false
            }
        };
        same && self.bytes == tensor.ty.size_bytes()
    }
}

impl Tensor {
    /// What tells this tensor's contents, as they are now, from others later: see [`Identity`].
    pub fn identity(&self) -> Identity {
        Identity {
            memory: match &self.storage {
                Storage::Owned(words) => Known::Owned(Arc::downgrade(words)),
                Storage::Shared { owner, range, .. } => {
                    Known::Shared(Arc::downgrade(owner), range.start)
                }
            },
            bytes: self.ty.size_bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, TensorType};

    #[test]
    fn what_is_written_has_another_identity() {
        let mut t = Tensor::from_slice(&[2, 2], &[1f32, 2.0, 3.0, 4.0]).unwrap();
        let known = t.identity();
        let (clone, part) = (t.clone(), t.reshaped(&[4]).unwrap());
        assert!(known.is(&t) && known.is(&clone) && known.is(&part));
        drop((clone, part));
        let before = t.bytes().as_ptr();
        t.bytes_mut()[0] = 7;
        assert!(!known.is(&t));
        assert_eq!(t.bytes().as_ptr(), before, "nothing was copied");
        let known = t.identity();
        t.reset_to(DType::F32, &[2]).unwrap();
        assert!(!known.is(&t));
        assert_eq!(t.bytes().as_ptr(), before);
        let known = t.identity();
        let copy = Tensor::from_bytes(t.ty().clone(), t.bytes()).unwrap();
        drop(t);
        assert!(!known.is(&copy));
        let owner: Arc<dyn ByteOwner> = Arc::new(vec![0u8; 32]);
        let ty = TensorType::new(DType::U8, &[4]);
        let part =
            |start: usize| Tensor::from_owner(ty.clone(), owner.clone(), start..start + 4).unwrap();
        let known = part(4).identity();
        assert!(known.is(&part(4)) && !known.is(&part(8)));
    }
}
