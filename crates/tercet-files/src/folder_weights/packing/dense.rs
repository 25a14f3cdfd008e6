//! Weights that become floats, because no block format represents them exactly.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use rayon::prelude::*;
use tercet_ir::{DType, Tensor, TensorType};

use crate::weight::ModelWeight;

/// Computes a weight in F32 and rounds it to `dtype` (F32, F16 or BF16), to nearest even.
///
/// `fill` writes consecutive elements of the row-major weight, from the index that it gets. `fill`
/// is called in parallel, with `chunk` elements at a time.
pub(super) fn dense(
    dtype: DType,
    shape: &[usize],
    chunk: usize,
    fill: impl Fn(usize, &mut [f32]) + Sync,
) -> Result<ModelWeight, String> {
    let mut tensor = Tensor::zeros(TensorType::new(dtype, shape)).map_err(|e| e.to_string())?;
    let chunk = chunk.max(1);
    macro_rules! rounded {
        ($T:ty) => {
            tensor
                .as_slice_mut::<$T>()
                .map_err(|e| e.to_string())?
                .par_chunks_mut(chunk)
                .enumerate()
                .for_each_init(Vec::new, |wide, (at, to)| {
                    wide.resize(to.len(), 0.0);
                    fill(at * chunk, wide);
                    to.convert_from_f32_slice(wide);
                })
        };
    }
    match dtype {
        DType::F32 => tensor
            .as_slice_mut::<f32>()
            .map_err(|e| e.to_string())?
            .par_chunks_mut(chunk)
            .enumerate()
            .for_each(|(at, to)| fill(at * chunk, to)),
        DType::F16 => rounded!(f16),
        DType::BF16 => rounded!(bf16),
        other => return Err(format!("weights cannot be dequantized to {other}")),
    }
    Ok(ModelWeight::Dense(tensor))
}

/// Rounds values to `dtype` (F32, F16 or BF16) and back.
pub(super) fn round_to(dtype: DType, values: &mut [f32]) {
    const LEN: usize = 64;
    for part in values.chunks_mut(LEN) {
        match dtype {
            DType::F16 => {
                let narrow = &mut [f16::ZERO; LEN][..part.len()];
                narrow.convert_from_f32_slice(part);
                narrow.convert_to_f32_slice(part);
            }
            DType::BF16 => {
                let narrow = &mut [bf16::ZERO; LEN][..part.len()];
                narrow.convert_from_f32_slice(part);
                narrow.convert_to_f32_slice(part);
            }
            _ => (),
        }
    }
}

/// The dtype that PyTorch calls `float16`, `bfloat16` or `float32`.
pub(super) fn float_dtype(name: &str) -> Option<DType> {
    match name {
        "float16" => Some(DType::F16),
        "bfloat16" => Some(DType::BF16),
        "float32" => Some(DType::F32),
        _ => None,
    }
}
