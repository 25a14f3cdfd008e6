//! A tensor to be written.

use std::borrow::Cow;

use tercet::DType;

use super::SaveError;
use crate::gguf::GgmlType;
use crate::safetensors::SafeDtype;
use crate::weight::scheme_of;

/// How a tensor is stored in a file that is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Storage {
    /// In a safetensors file.
    Safe(SafeDtype),
    /// In a GGUF file.
    Ggml(GgmlType),
}

impl Storage {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Storage::Safe(dtype) => dtype.name(),
            Storage::Ggml(ty) => ty.name(),
        }
    }

    /// Values in this storage; `None` for one that is not written, and for finite values beyond its range.
    pub(crate) fn encode(self, values: &[f32]) -> Option<Vec<u8>> {
        let dtype = match self {
            Storage::Safe(SafeDtype::F32) | Storage::Ggml(GgmlType::F32) => DType::F32,
            Storage::Safe(SafeDtype::F16) | Storage::Ggml(GgmlType::F16) => DType::F16,
            Storage::Safe(SafeDtype::BF16) | Storage::Ggml(GgmlType::BF16) => DType::BF16,
            Storage::Safe(SafeDtype::F64) | Storage::Ggml(GgmlType::F64) => DType::F64,
            Storage::Ggml(ty) => return scheme_of(ty)?.quantize(values).ok(),
            Storage::Safe(_) => return None,
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

/// What makes the bytes of a tensor.
type Bytes<'a> = Box<dyn Fn() -> Result<Cow<'a, [u8]>, SaveError> + 'a>;

/// A tensor to be written: its bytes are made when its turn comes, so that one is in memory at a time.
pub(crate) struct Entry<'a> {
    pub(crate) name: String,
    pub(crate) storage: Storage,
    /// Row-major.
    pub(crate) shape: Vec<usize>,
    pub(crate) len_bytes: usize,
    pub(crate) bytes: Bytes<'a>,
}

impl<'a> Entry<'a> {
    /// Bytes that are there already.
    pub(crate) fn of(
        name: impl Into<String>,
        storage: Storage,
        shape: &[usize],
        bytes: &'a [u8],
    ) -> Entry<'a> {
        Entry {
            name: name.into(),
            storage,
            shape: shape.to_vec(),
            len_bytes: bytes.len(),
            bytes: Box::new(move || Ok(Cow::Borrowed(bytes))),
        }
    }
}

impl Entry<'_> {
    /// Refuses other bytes than were announced.
    pub(crate) fn expect_len(&self, bytes: &[u8], path: &std::path::Path) -> Result<(), SaveError> {
        match bytes.len() == self.len_bytes {
            true => Ok(()),
            false => Err(SaveError::Header {
                path: path.to_path_buf(),
                reason: format!(
                    "tensor `{}` has {} bytes, {} were announced",
                    self.name,
                    bytes.len(),
                    self.len_bytes
                ),
            }),
        }
    }
}
