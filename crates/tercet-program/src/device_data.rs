//! Tensors as devices without 64-bit integers store them: I64 as I32, checked on upload.

use tercet_ir::{DType, RunError, Tensor, TensorType};

/// The dtype that values of `dtype` have on the device: I32 for I64, otherwise `dtype`.
pub fn device_dtype(dtype: DType) -> DType {
    match dtype {
        DType::I64 => DType::I32,
        DType::F32
        | DType::F16
        | DType::BF16
        | DType::F64
        | DType::I32
        | DType::U32
        | DType::I16
        | DType::I8
        | DType::U8
        | DType::Bool => dtype,
    }
}

/// Size of a tensor in bytes as the device stores it, without padding.
pub(crate) fn device_bytes(ty: &TensorType) -> usize {
    ty.numel() * device_dtype(ty.dtype).size_bytes()
}

/// The bytes of a tensor as the device stores them. If the device bytes differ from the host bytes,
/// they are written to `scratch`.
pub(crate) fn encode<'a>(
    what: &'static str,
    name: &str,
    tensor: &'a Tensor,
    scratch: &'a mut Vec<u8>,
) -> Result<&'a [u8], RunError> {
    if tensor.dtype() != DType::I64 {
        return Ok(tensor.loose_bytes());
    }
    tensor.align()?;
    scratch.clear();
    for value in tensor.to_i64s() {
        let narrow = i32::try_from(value).map_err(|_| RunError::Narrow {
            what,
            name: name.to_string(),
            value,
        })?;
        scratch.extend_from_slice(&narrow.to_le_bytes());
    }
    Ok(scratch)
}

/// Fills a tensor from device bytes; trailing padding is ignored.
pub(crate) fn decode(bytes: &[u8], tensor: &mut Tensor) {
    if tensor.dtype() != DType::I64 {
        let out = tensor.bytes_mut();
        let n = out.len();
        out.copy_from_slice(&bytes[..n]);
        return;
    }
    let words = bytes.chunks_exact(4);
    for (out, b) in tensor.bytes_mut().chunks_exact_mut(8).zip(words) {
        let value = i32::from_le_bytes([b[0], b[1], b[2], b[3]]);
        out.copy_from_slice(&i64::from(value).to_le_bytes());
    }
}
