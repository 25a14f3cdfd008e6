//! Dense host tensors: typed bytes in row-major order, cheap to clone. Tensors can share a memory
//! map.

mod bytes;
mod error;
mod identity;

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use bytemuck::allocation::try_zeroed_slice_box;
use half::{bf16, f16};

use crate::dtype::{DType, Element, bf16_from_f64, f16_from_f64};
use crate::types::TensorType;

pub use self::error::TensorError;
pub use self::identity::TensorIdentity;

/// Memory that a tensor can borrow without copying, for example a mapped model file.
///
/// ```
/// use std::sync::Arc;
/// use tercet_tensor::{DType, Tensor, TensorType};
/// // Any bytes, for example of a mapped file.
/// let owner = Arc::new(vec![0u8, 1, 2, 3, 4, 5, 6, 7]);
/// let tensor = Tensor::from_owner(TensorType::new(DType::U8, &[2, 2]), owner, 2..6)?;
/// assert_eq!(tensor.as_slice::<u8>()?, [2, 3, 4, 5]);
/// # Ok::<(), tercet_tensor::TensorError>(())
/// ```
pub trait ByteOwner: AsRef<[u8]> + Send + Sync + 'static {}
impl<T: AsRef<[u8]> + Send + Sync + 'static> ByteOwner for T {}

/// A word of owned storage; 16 bytes keep every dtype aligned.
type TensorWord = u128;

#[derive(Clone)]
enum TensorStorage {
    Owned(Arc<Vec<TensorWord>>),
    Shared {
        owner: Arc<dyn ByteOwner>,
        range: Range<usize>,
        /// An aligned copy, made on first access if the range is not aligned for the dtype.
        aligned: Option<Arc<OnceLock<Vec<TensorWord>>>>,
    },
}

/// A dense, row-major, typed tensor in host memory.
///
/// Clones share the memory. If the memory is shared, [`Tensor::bytes_mut`] copies it before
/// writing.
///
/// ```
/// use tercet_tensor::{DType, Tensor};
/// let t = Tensor::from_slice(&[2, 2], &[1f32, 2.0, 3.0, 4.0])?;
/// assert_eq!(t.dtype(), DType::F32);
/// assert_eq!(t.as_slice::<f32>()?[3], 4.0);
/// # Ok::<(), tercet_tensor::TensorError>(())
/// ```
#[derive(Clone)]
pub struct Tensor {
    ty: TensorType,
    storage: TensorStorage,
}

/// The size in bytes of a dense tensor of this type.
///
/// # Errors
/// [`TensorError`] if the number of bytes or elements overflows.
pub fn checked_bytes(ty: &TensorType) -> Result<usize, TensorError> {
    ty.shape
        .iter()
        .try_fold(ty.dtype.size_bytes(), |n, &d| n.checked_mul(d))
        .filter(|&n| n <= isize::MAX as usize)
        // A zero axis hides an overflow of the other axes; strides still need their product.
        .filter(|_| {
            ty.shape
                .iter()
                .filter(|&&d| d > 0)
                .try_fold(8usize, |n, &d| n.checked_mul(d))
                .is_some()
        })
        .ok_or_else(|| TensorError::Overflow { ty: ty.clone() })
}

/// Zeroed words for a tensor type. The system allocates the pages on first access.
fn zeroed_words(ty: &TensorType) -> Result<Vec<TensorWord>, TensorError> {
    let bytes = checked_bytes(ty)?;
    let words = try_zeroed_slice_box(bytes.div_ceil(size_of::<TensorWord>()));
    let words: Box<[TensorWord]> = words.map_err(|()| TensorError::OutOfMemory {
        ty: ty.clone(),
        bytes: bytes as u64,
    })?;
    Ok(words.into_vec())
}

fn zeroed(ty: &TensorType) -> Result<TensorStorage, TensorError> {
    Ok(TensorStorage::Owned(Arc::new(zeroed_words(ty)?)))
}

impl Tensor {
    /// A tensor of zeros.
    ///
    /// # Errors
    /// [`TensorError::Overflow`] when the type is larger than the address space,
    /// [`TensorError::OutOfMemory`] when the allocation fails.
    pub fn zeros(ty: TensorType) -> Result<Tensor, TensorError> {
        let storage = zeroed(&ty)?;
        Ok(Tensor { ty, storage })
    }

    /// A tensor with a copy of `data`.
    ///
    /// # Errors
    /// [`TensorError::Length`] when the length of `data` differs from the element count of `shape`.
    pub fn from_slice<T: Element>(shape: &[usize], data: &[T]) -> Result<Tensor, TensorError> {
        let ty = TensorType::new(T::DTYPE, shape);
        checked_bytes(&ty)?;
        if ty.numel() != data.len() {
            let expected = ty.numel();
            let found = data.len();
            return Err(TensorError::Length {
                ty,
                expected,
                found,
                unit: "elements",
            });
        }
        Tensor::from_bytes(ty, bytemuck::cast_slice(data))
    }

    /// Takes the type of another tensor and shares its memory, as cloning does. The call allocates
    /// nothing if the rank is unchanged.
    pub fn share(&mut self, other: &Tensor) {
        self.ty.dtype = other.ty.dtype;
        self.ty.shape.clone_from(&other.ty.shape);
        self.storage = other.storage.clone();
    }

    /// Frees the element memory; the tensor becomes empty. The memory of the shape is retained for
    /// reuse.
    pub fn release(&mut self) {
        static NOTHING: std::sync::OnceLock<Arc<Vec<TensorWord>>> = std::sync::OnceLock::new();
        self.ty.shape.clear();
        self.ty.shape.push(0);
        self.storage = TensorStorage::Owned(Arc::clone(NOTHING.get_or_init(Arc::default)));
    }

    /// A rank 0 tensor.
    pub fn scalar<T: Element>(value: T) -> Tensor {
        Tensor::from_slice(&[], &[value]).expect("invariant: one element fits a scalar")
    }

    /// A `Bool` tensor.
    ///
    /// # Errors
    /// [`TensorError::Length`] when the length of `data` differs from the element count of `shape`.
    pub fn from_bools(shape: &[usize], data: &[bool]) -> Result<Tensor, TensorError> {
        let bytes: Vec<u8> = data.iter().map(|&b| u8::from(b)).collect();
        Tensor::from_bytes(TensorType::new(DType::Bool, shape), &bytes)
    }

    /// A tensor with a copy of raw little-endian bytes. `Bool` bytes other than 0 become 1.
    ///
    /// # Errors
    /// [`TensorError::Length`] when the number of bytes does not match `ty`.
    pub fn from_bytes(ty: TensorType, bytes: &[u8]) -> Result<Tensor, TensorError> {
        let expected = checked_bytes(&ty)?;
        if expected != bytes.len() {
            let found = bytes.len();
            return Err(TensorError::Length {
                ty,
                expected,
                found,
                unit: "bytes",
            });
        }
        let is_bool = ty.dtype == DType::Bool;
        let mut t = Tensor::zeros(ty)?;
        let out = t.bytes_mut();
        out.copy_from_slice(bytes);
        if is_bool {
            out.iter_mut().for_each(|b| *b = u8::from(*b != 0));
        }
        Ok(t)
    }

    /// A tensor over `range` of memory owned by `owner`. The tensor shares the memory without a
    /// copy if all byte values are valid (every dtype but `Bool`). If the range is not aligned for
    /// the dtype, the first call of [`Tensor::bytes`] copies it, once for all clones.
    ///
    /// # Errors
    /// [`TensorError::Length`] when the range is outside the memory or does not match `ty`.
    pub fn from_owner(
        ty: TensorType,
        owner: Arc<dyn ByteOwner>,
        range: Range<usize>,
    ) -> Result<Tensor, TensorError> {
        let expected = checked_bytes(&ty)?;
        let bytes = (*owner)
            .as_ref()
            .get(range.clone())
            .filter(|b| b.len() == expected);
        let Some(bytes) = bytes else {
            let found = range
                .len()
                .min((*owner).as_ref().len().saturating_sub(range.start));
            return Err(TensorError::Length {
                ty,
                expected,
                found,
                unit: "bytes",
            });
        };
        if ty.dtype == DType::Bool {
            return Tensor::from_bytes(ty, bytes);
        }
        let is_aligned = bytes.as_ptr().align_offset(ty.dtype.size_bytes()) == 0;
        Ok(Tensor {
            ty,
            storage: TensorStorage::Shared {
                owner,
                range,
                aligned: (!is_aligned).then(Arc::default),
            },
        })
    }

    /// The tensor's dtype and sizes.
    pub fn ty(&self) -> &TensorType {
        &self.ty
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.ty.dtype
    }

    /// The sizes, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.ty.shape
    }

    /// The number of elements.
    pub fn numel(&self) -> usize {
        self.ty.numel()
    }

    /// The elements as a slice of their Rust type.
    ///
    /// # Errors
    /// [`TensorError::DType`] when the tensor has another dtype.
    pub fn as_slice<T: Element>(&self) -> Result<&[T], TensorError> {
        self.expect_dtype(T::DTYPE)?;
        Ok(bytemuck::cast_slice(self.bytes()))
    }

    /// The elements as a mutable slice of their Rust type.
    ///
    /// # Errors
    /// [`TensorError::DType`] when the tensor has another dtype.
    pub fn as_slice_mut<T: Element>(&mut self) -> Result<&mut [T], TensorError> {
        self.expect_dtype(T::DTYPE)?;
        Ok(bytemuck::cast_slice_mut(self.bytes_mut()))
    }

    fn expect_dtype(&self, expected: DType) -> Result<(), TensorError> {
        if self.ty.dtype == expected {
            return Ok(());
        }
        Err(TensorError::DType {
            expected,
            found: self.ty.dtype,
        })
    }

    /// A tensor with other sizes that shares the memory.
    ///
    /// # Errors
    /// [`TensorError::Length`] when the number of elements differs.
    pub fn reshaped(&self, shape: &[usize]) -> Result<Tensor, TensorError> {
        let ty = TensorType::new(self.ty.dtype, shape);
        let expected = checked_bytes(&ty)?;
        if expected != self.ty.size_bytes() {
            let (expected, found) = (ty.numel(), self.numel());
            return Err(TensorError::Length {
                ty,
                expected,
                found,
                unit: "elements",
            });
        }
        Ok(Tensor {
            ty,
            storage: self.storage.clone(),
        })
    }

    /// Changes the type in place. The allocation is reused if it is owned, unshared and large
    /// enough. The contents are unspecified afterwards, so the caller must overwrite them.
    ///
    /// # Errors
    /// As [`Tensor::zeros`]; the tensor is then empty.
    pub fn reset_to(&mut self, dtype: DType, shape: &[usize]) -> Result<(), TensorError> {
        if self.ty.dtype != dtype || self.ty.shape != shape {
            self.ty.dtype = dtype;
            self.ty.shape.clear();
            self.ty.shape.extend_from_slice(shape);
        }
        let reused = checked_bytes(&self.ty).map(|bytes| {
            let words = bytes.div_ceil(size_of::<TensorWord>());
            let TensorStorage::Owned(data) = &mut self.storage else {
                return false;
            };
            // The old memory is freed before new memory is allocated. An identity of the tensor
            // ([`Tensor::identity`]) does not prevent the reuse of its memory.
            let reused = Arc::strong_count(data) == 1 && words <= data.capacity();
            if reused {
                Arc::make_mut(data).resize(words, 0);
            }
            reused
        });
        let made = match reused {
            Ok(true) => return Ok(()),
            Ok(false) => {
                self.storage = TensorStorage::Owned(Arc::default());
                zeroed(&self.ty)
            }
            Err(e) => Err(e),
        };
        match made {
            Ok(storage) => {
                self.storage = storage;
                Ok(())
            }
            Err(e) => {
                self.release();
                Err(e)
            }
        }
    }

    /// Every element as `f64`; integers and booleans are converted.
    pub fn to_f64s(&self) -> Vec<f64> {
        let b = self.bytes();
        match self.ty.dtype {
            DType::F32 => each::<f32, _>(b, f64::from),
            DType::F16 => each::<f16, _>(b, f16::to_f64),
            DType::BF16 => each::<bf16, _>(b, bf16::to_f64),
            DType::F64 => each::<f64, _>(b, |x| x),
            DType::I32 => each::<i32, _>(b, f64::from),
            DType::U32 => each::<u32, _>(b, f64::from),
            DType::I64 => each::<i64, _>(b, |x| x as f64),
            DType::I16 => each::<i16, _>(b, f64::from),
            DType::I8 => each::<i8, _>(b, f64::from),
            DType::U8 | DType::Bool => each::<u8, _>(b, f64::from),
        }
    }

    /// Every element as `i64`; floats are truncated and saturate, NaN is 0.
    pub fn to_i64s(&self) -> Vec<i64> {
        let b = self.bytes();
        match self.ty.dtype {
            DType::F32 => each::<f32, _>(b, |x| x as i64),
            DType::F16 => each::<f16, _>(b, |x| x.to_f64() as i64),
            DType::BF16 => each::<bf16, _>(b, |x| x.to_f64() as i64),
            DType::F64 => each::<f64, _>(b, |x| x as i64),
            DType::I32 => each::<i32, _>(b, i64::from),
            DType::U32 => each::<u32, _>(b, i64::from),
            DType::I64 => each::<i64, _>(b, |x| x),
            DType::I16 => each::<i16, _>(b, i64::from),
            DType::I8 => each::<i8, _>(b, i64::from),
            DType::U8 | DType::Bool => each::<u8, _>(b, i64::from),
        }
    }

    /// A tensor of `ty` from `f64` numbers. Floats round to nearest even. Integers truncate and
    /// saturate, with NaN as 0. `Bool` is true if the number is not zero.
    ///
    /// # Errors
    /// [`TensorError::Length`] when the number of values does not match `ty`.
    pub fn from_f64s(ty: TensorType, values: &[f64]) -> Result<Tensor, TensorError> {
        let mut t = Tensor::for_values(ty, values.len())?;
        let d = t.ty.dtype;
        let out = t.bytes_mut();
        match d {
            DType::F32 => fill(out, values, |x| x as f32),
            DType::F16 => fill(out, values, f16_from_f64),
            DType::BF16 => fill(out, values, bf16_from_f64),
            DType::F64 => fill(out, values, |x| x),
            DType::I32 => fill(out, values, |x| x as i32),
            DType::U32 => fill(out, values, |x| x as u32),
            DType::I64 => fill(out, values, |x| x as i64),
            DType::I16 => fill(out, values, |x| x as i16),
            DType::I8 => fill(out, values, |x| x as i8),
            DType::U8 => fill(out, values, |x| x as u8),
            DType::Bool => fill(out, values, |x| u8::from(x != 0.0)),
        }
        Ok(t)
    }

    /// A tensor of `ty` from `i64` integers. Narrower integers wrap (two's complement). Floats
    /// round to nearest even. `Bool` is true if the number is not zero.
    ///
    /// # Errors
    /// [`TensorError::Length`] when the number of values does not match `ty`.
    pub fn from_i64s(ty: TensorType, values: &[i64]) -> Result<Tensor, TensorError> {
        let mut t = Tensor::for_values(ty, values.len())?;
        let d = t.ty.dtype;
        let out = t.bytes_mut();
        match d {
            DType::F32 => fill(out, values, |x| x as f32),
            DType::F16 => fill(out, values, |x| f16_from_f64(x as f64)),
            DType::BF16 => fill(out, values, |x| bf16_from_f64(x as f64)),
            DType::F64 => fill(out, values, |x| x as f64),
            DType::I32 => fill(out, values, |x| x as i32),
            DType::U32 => fill(out, values, |x| x as u32),
            DType::I64 => fill(out, values, |x| x),
            DType::I16 => fill(out, values, |x| x as i16),
            DType::I8 => fill(out, values, |x| x as i8),
            DType::U8 => fill(out, values, |x| x as u8),
            DType::Bool => fill(out, values, |x| u8::from(x != 0)),
        }
        Ok(t)
    }

    fn for_values(ty: TensorType, found: usize) -> Result<Tensor, TensorError> {
        checked_bytes(&ty)?;
        let expected = ty.numel();
        if expected != found {
            return Err(TensorError::Length {
                ty,
                expected,
                found,
                unit: "elements",
            });
        }
        Tensor::zeros(ty)
    }
}

fn each<T: Element, R>(bytes: &[u8], f: impl Fn(T) -> R) -> Vec<R> {
    bytemuck::cast_slice::<u8, T>(bytes)
        .iter()
        .map(|&x| f(x))
        .collect()
}

fn fill<S: Copy, T: Element>(out: &mut [u8], values: &[S], f: impl Fn(S) -> T) {
    bytemuck::cast_slice_mut::<u8, T>(out)
        .iter_mut()
        .zip(values)
        .for_each(|(o, &v)| *o = f(v));
}

/// Compares type, shape and bits. NaNs with the same bits are equal; `0.0` and `-0.0` are not.
impl PartialEq for Tensor {
    fn eq(&self, other: &Tensor) -> bool {
        self.ty == other.ty && self.loose_bytes() == other.loose_bytes()
    }
}
impl Eq for Tensor {}

/// Hashes the type and at most 64 bytes of the data. Hashing so few bytes distinguishes most
/// constants without reading large weights.
impl std::hash::Hash for Tensor {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.ty.hash(state);
        let bytes = self.loose_bytes();
        bytes[..bytes.len().min(64)].hash(state);
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 8;
        write!(f, "{}{{", self.ty)?;
        let head = TensorType::new(self.ty.dtype, &[self.numel().min(SHOWN)]);
        let bytes = &self.loose_bytes()[..head.size_bytes()];
        let head = Tensor::from_bytes(head, bytes).map_err(|_| fmt::Error)?;
        for (i, x) in head.to_f64s().iter().enumerate() {
            write!(f, "{}{x}", if i > 0 { ", " } else { "" })?;
        }
        f.write_str(if self.numel() > SHOWN { ", ...}" } else { "}" })
    }
}

#[cfg(test)]
mod tests;
