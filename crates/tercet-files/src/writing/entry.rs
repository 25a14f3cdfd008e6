//! Tensors to be written to a file.

use std::borrow::Cow;

use tercet_ir::DType;

use super::SaveError;
use crate::gguf::GgmlType;
use crate::safetensors::SafeDtype;
use crate::weight::scheme_of;

/// The storage type of a tensor in a written file.
///
/// ```
/// use tercet_files::gguf::GgmlType;
/// use tercet_files::writing::SavedTensorStorage;
/// let storage = SavedTensorStorage::Ggml(GgmlType::F16);
/// assert_eq!((storage.name(), storage.encode(&[1.0])), ("F16", Some(vec![0, 60])));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SavedTensorStorage {
    /// A type of a safetensors file.
    Safe(SafeDtype),
    /// A type of a GGUF file.
    Ggml(GgmlType),
}

impl SavedTensorStorage {
    /// The name of the type in its format.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            SavedTensorStorage::Safe(dtype) => dtype.name(),
            SavedTensorStorage::Ggml(ty) => ty.name(),
        }
    }

    /// Encodes values in this storage type. `None` if the type is not supported for writing, or if
    /// a finite value is out of its range.
    #[must_use]
    pub fn encode(self, values: &[f32]) -> Option<Vec<u8>> {
        let dtype =
            match self {
                SavedTensorStorage::Safe(SafeDtype::F32)
                | SavedTensorStorage::Ggml(GgmlType::F32) => DType::F32,
                SavedTensorStorage::Safe(SafeDtype::F16)
                | SavedTensorStorage::Ggml(GgmlType::F16) => DType::F16,
                SavedTensorStorage::Safe(SafeDtype::BF16)
                | SavedTensorStorage::Ggml(GgmlType::BF16) => DType::BF16,
                SavedTensorStorage::Safe(SafeDtype::F64)
                | SavedTensorStorage::Ggml(GgmlType::F64) => DType::F64,
                SavedTensorStorage::Ggml(ty) => return scheme_of(ty)?.quantize(values).ok(),
                SavedTensorStorage::Safe(_) => return None,
            };
        let beyond = |x: &f32| x.is_finite() && half::f16::from_f32(*x).is_infinite();
        if dtype == DType::F16 && values.iter().any(beyond) {
            return None;
        }
        let bytes = |to: &mut dyn FnMut(f32)| values.iter().for_each(|x| to(*x));
        let mut out = Vec::with_capacity(values.len() * dtype.size_bytes());
        match dtype {
            DType::F16 => bytes(&mut |x| out.extend(half::f16::from_f32(x).to_le_bytes())),
            DType::BF16 => bytes(&mut |x| out.extend(half::bf16::from_f32(x).to_le_bytes())),
            DType::F64 => bytes(&mut |x| out.extend(f64::from(x).to_le_bytes())),
            _ => bytes(&mut |x| out.extend(x.to_le_bytes())),
        }
        Some(out)
    }
}

/// Function that produces the bytes of a tensor.
pub type TensorBytesFn<'a> = Box<dyn Fn() -> Result<Cow<'a, [u8]>, SaveError> + 'a>;

/// A tensor to be written. The tensor's bytes are produced on demand, so only one tensor is in
/// memory at a time.
///
/// ```
/// use tercet_files::safetensors::SafeDtype;
/// use tercet_files::writing::{SavedTensorEntry, SavedTensorStorage};
/// let storage = SavedTensorStorage::Safe(SafeDtype::U8);
/// let entry = SavedTensorEntry::new("x", storage, &[3], &[1, 2, 3]);
/// assert_eq!((entry.name.as_str(), entry.len_bytes), ("x", 3));
/// ```
pub struct SavedTensorEntry<'a> {
    /// The name in the file.
    pub name: String,
    /// The storage type.
    pub storage: SavedTensorStorage,
    /// The shape, in row-major order.
    pub shape: Vec<usize>,
    /// The number of bytes that `bytes` returns.
    pub len_bytes: usize,
    /// Produces the bytes.
    pub bytes: TensorBytesFn<'a>,
}

impl<'a> SavedTensorEntry<'a> {
    /// An entry with existing bytes.
    pub fn new(
        name: impl Into<String>,
        storage: SavedTensorStorage,
        shape: &[usize],
        bytes: &'a [u8],
    ) -> SavedTensorEntry<'a> {
        SavedTensorEntry {
            name: name.into(),
            storage,
            shape: shape.to_vec(),
            len_bytes: bytes.len(),
            bytes: Box::new(move || Ok(Cow::Borrowed(bytes))),
        }
    }
}

impl SavedTensorEntry<'_> {
    /// Checks that the bytes have the announced length.
    pub(crate) fn expect_len(&self, bytes: &[u8], path: &std::path::Path) -> Result<(), SaveError> {
        match bytes.len() == self.len_bytes {
            true => Ok(()),
            false => Err(SaveError::Header {
                path: path.to_path_buf(),
                reason: format!(
                    "tensor `{}` has {} bytes; expected {}",
                    self.name,
                    bytes.len(),
                    self.len_bytes
                ),
            }),
        }
    }
}
