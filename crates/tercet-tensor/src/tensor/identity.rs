//! Detects whether a tensor's contents changed, without reading its elements.

use std::sync::{Arc, Weak};

use super::{ByteOwner, Tensor, TensorStorage, TensorWord};

/// The identity of a tensor's contents; it does not hold their memory. If
/// [`TensorIdentity::is`] returns true for a tensor, its bytes are unchanged. Writing to
/// the tensor's memory or dropping it invalidates the identity.
///
/// ```
/// use tercet_tensor::Tensor;
/// let mut tensor = Tensor::from_slice(&[2], &[1f32, 2.0])?;
/// let identity = tensor.identity();
/// assert!(identity.is(&tensor) && identity.is(&tensor.clone()));
/// tensor.as_slice_mut::<f32>()?[0] = 3.0;
/// assert!(!identity.is(&tensor));
/// # Ok::<(), tercet_tensor::TensorError>(())
/// ```
#[derive(Clone)]
pub struct TensorIdentity {
    memory: TensorIdentityKind,
    bytes: usize,
}

#[derive(Clone)]
enum TensorIdentityKind {
    // A weak reference prevents the reuse of the allocation's address and in-place writes to it.
    Owned(Weak<Vec<TensorWord>>),
    Shared(Weak<dyn ByteOwner>, usize),
}

impl TensorIdentity {
    /// True if the tensor has the same memory and no write occurred since the identity was taken.
    pub fn is(&self, tensor: &Tensor) -> bool {
        let same = match (&self.memory, &tensor.storage) {
            (TensorIdentityKind::Owned(known), TensorStorage::Owned(words)) => {
                std::ptr::eq(known.as_ptr(), Arc::as_ptr(words))
            }
            (
                TensorIdentityKind::Shared(known, start),
                TensorStorage::Shared { owner, range, .. },
            ) => std::ptr::addr_eq(known.as_ptr(), Arc::as_ptr(owner)) && *start == range.start,
            (TensorIdentityKind::Owned(_), TensorStorage::Shared { .. })
            | (TensorIdentityKind::Shared(..), TensorStorage::Owned(_)) => false,
        };
        same && self.bytes == tensor.ty.size_bytes()
    }
}

impl Tensor {
    /// The identity of the tensor's current contents: see [`TensorIdentity`].
    pub fn identity(&self) -> TensorIdentity {
        TensorIdentity {
            memory: match &self.storage {
                TensorStorage::Owned(words) => TensorIdentityKind::Owned(Arc::downgrade(words)),
                TensorStorage::Shared { owner, range, .. } => {
                    TensorIdentityKind::Shared(Arc::downgrade(owner), range.start)
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
