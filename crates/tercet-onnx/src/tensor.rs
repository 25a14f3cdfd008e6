//! Decodes tensors of a file. The elements of a tensor are in the message or in an external file.
//!
//! Memory use is proportional to the bytes read: if the declared sizes do not match the present
//! elements, decoding fails. External files must be inside the model's folder (`external`).

use bytes::Bytes;
use std::sync::Arc;

use tercet_ir::{DType, Tensor, TensorType};

use crate::elem::{self, Narrow, OnnxDType};
use crate::external::ExternalDataFolder;
use crate::proto::TensorProto;
use crate::strings::StringTable;

/// `TensorProto.DataLocation.EXTERNAL`.
const EXTERNAL: i32 = 1;

/// The validated sizes of a tensor.
pub(crate) fn sizes(dims: &[i64]) -> Result<Vec<usize>, String> {
    if dims.len() > tercet_ir::MAX_RANK {
        return Err(format!(
            "{} axes, at most {} are supported",
            dims.len(),
            tercet_ir::MAX_RANK
        ));
    }
    let sizes: Option<Vec<usize>> = dims.iter().map(|d| usize::try_from(*d).ok()).collect();
    let sizes = sizes.ok_or_else(|| format!("sizes {dims:?} are negative"))?;
    let bits = sizes
        .iter()
        .filter(|n| **n > 0)
        .try_fold(64usize, |n, d| n.checked_mul(*d));
    bits.map(|_| ())
        .ok_or_else(|| format!("sizes {dims:?} overflow"))?;
    Ok(sizes)
}

/// The tensor of a message, and its dtype if the graph emulates it in another dtype.
pub(crate) fn decode(
    proto: &TensorProto,
    folder: &ExternalDataFolder,
    strings: &StringTable,
) -> Result<(Tensor, Option<Narrow>), String> {
    match elem::elem(proto.data_type.unwrap_or(0).into())? {
        OnnxDType::Plain(_) => Ok((plain(proto, folder)?, None)),
        OnnxDType::EmulatedDType(Narrow::Text) => Ok((strings.tensor(proto)?, Some(Narrow::Text))),
        OnnxDType::EmulatedDType(narrow) => Ok((carried(proto, folder, narrow)?, Some(narrow))),
    }
}

/// The tensor of a message whose dtype the graph has.
pub(crate) fn plain(proto: &TensorProto, folder: &ExternalDataFolder) -> Result<Tensor, String> {
    let dtype = elem::dtype(proto.data_type.unwrap_or(0).into())?;
    let ty = TensorType::new(dtype, &sizes(&proto.dims)?);
    if proto.data_location == Some(EXTERNAL) {
        let bytes = folder.read(&proto.external_data, ty.saturating_bytes())?;
        return from_bytes(ty, bytes);
    }
    match &proto.raw_data {
        Some(raw) => from_bytes(ty, raw.clone()),
        None => from_fields(ty, proto),
    }
}

/// A tensor of narrow elements, converted to their carrier.
fn carried(
    proto: &TensorProto,
    folder: &ExternalDataFolder,
    narrow: Narrow,
) -> Result<Tensor, String> {
    let ty = TensorType::new(narrow.carrier(), &sizes(&proto.dims)?);
    let (n, bits) = (ty.numel(), narrow.bits());
    let size_bytes = n.checked_mul(bits).ok_or("sizes overflow")?.div_ceil(8);
    let bytes = match (proto.data_location == Some(EXTERNAL), &proto.raw_data) {
        (true, _) => folder.read(&proto.external_data, size_bytes as u64)?,
        (false, Some(raw)) => raw.clone(),
        (false, None) => from_lists(proto, bits),
    };
    if bytes.len() != size_bytes {
        let (name, found) = (narrow.name(), bytes.len());
        return Err(format!(
            "{n} elements of {name} need {size_bytes} bytes, the file has {found}"
        ));
    }
    let code = |i: usize| match bits {
        // The first element is in the lowest bits of a byte.
        2 | 4 => {
            let (per_byte, mask) = (8 / bits, (1u64 << bits) - 1);
            (u64::from(bytes[i / per_byte]) >> (i % per_byte * bits)) & mask
        }
        _ => {
            let width = bits / 8;
            let own = &bytes[i * width..(i + 1) * width];
            own.iter()
                .rev()
                .fold(0, |code, b| (code << 8) | u64::from(*b))
        }
    };
    let made = if narrow == Narrow::U64 {
        let values: Vec<i64> = (0..n).map(|i| code(i) as i64).collect();
        Tensor::from_i64s(ty, &values)
    } else {
        let values: Vec<f64> = (0..n).map(|i| narrow.value(code(i))).collect();
        Tensor::from_f64s(ty, &values)
    };
    made.map_err(|e| tercet_ir::one_line(&e))
}

/// The bytes of elements that are stored in number lists. In number lists, elements of less than a
/// byte are already packed.
fn from_lists(proto: &TensorProto, bits: usize) -> Bytes {
    let bytes: Vec<u8> = match bits {
        64 => proto
            .uint64_data
            .iter()
            .flat_map(|x| x.to_le_bytes())
            .collect(),
        16 => {
            let halves = proto.int32_data.iter().map(|x| *x as u16);
            halves.flat_map(u16::to_le_bytes).collect()
        }
        _ => proto.int32_data.iter().map(|x| *x as u8).collect(),
    };
    bytes.into()
}

fn from_bytes(ty: TensorType, bytes: Bytes) -> Result<Tensor, String> {
    let len = bytes.len();
    Tensor::from_owner(ty, Arc::new(bytes), 0..len).map_err(|e| tercet_ir::one_line(&e))
}

/// Reads elements from the number list for this dtype.
fn from_fields(ty: TensorType, proto: &TensorProto) -> Result<Tensor, String> {
    let n = ty.numel();
    let count = |found: usize| match found == n {
        true => Ok(()),
        false => Err(format!("{ty} has {n} elements, the file has {found}")),
    };
    let made = match ty.dtype {
        DType::F32 => {
            count(proto.float_data.len())?;
            Tensor::from_slice(&ty.shape, &proto.float_data)
        }
        DType::F64 => {
            count(proto.double_data.len())?;
            Tensor::from_slice(&ty.shape, &proto.double_data)
        }
        DType::I64 => {
            count(proto.int64_data.len())?;
            Tensor::from_slice(&ty.shape, &proto.int64_data)
        }
        DType::U32 => {
            count(proto.uint64_data.len())?;
            let values: Vec<u32> = proto.uint64_data.iter().map(|x| *x as u32).collect();
            Tensor::from_slice(&ty.shape, &values)
        }
        // The low 16 bits of each number are the element.
        DType::F16 | DType::BF16 => {
            count(proto.int32_data.len())?;
            let halves = proto.int32_data.iter().map(|x| *x as u16);
            let bytes: Vec<u8> = halves.flat_map(u16::to_le_bytes).collect();
            Tensor::from_bytes(ty, &bytes)
        }
        DType::I32 | DType::I16 | DType::I8 | DType::U8 | DType::Bool => {
            count(proto.int32_data.len())?;
            let values: Vec<i64> = proto.int32_data.iter().map(|x| i64::from(*x)).collect();
            Tensor::from_i64s(ty, &values)
        }
    };
    made.map_err(|e| tercet_ir::one_line(&e))
}
