//! Tensors of [`Weights`], checked against the expected shapes.

use half::{bf16, f16};
use rayon::prelude::*;
use tercet::{DType, Scheme, Tensor, TensorError, TensorType};

use super::ModelError;
pub use crate::weights::Weights;
use tercet_files::weight::{ModelWeight, WeightError, gguf_weight, safetensors_tensor};

/// A matrix in a storage format that matmuls accept.
pub(super) enum WeightMatrix {
    /// F32 `[rows, columns]`.
    Dense(Tensor),
    /// Quantized blocks as U8 `[rows, row bytes]`, or F16/BF16 `[rows, columns]`.
    Packed(Scheme, Tensor),
}

impl Weights {
    /// The tensor of this name in its storage format, without its [`factor`](Self::factor) applied.
    ///
    /// # Errors
    /// [`ModelError::MissingWeight`]; [`ModelError::Weight`] for an unsupported storage format.
    pub fn get(&self, name: &str) -> Result<ModelWeight, ModelError> {
        let missing = || ModelError::MissingWeight {
            tensor: name.to_string(),
        };
        match self {
            Weights::Gguf(gguf) => {
                let info = gguf.tensor(name).map_err(|_| missing())?;
                Ok(gguf_weight(gguf, info)?)
            }
            Weights::Hf(weights) => {
                if let Some(packed) = weights.packed(name).map_err(unsupported)? {
                    return Ok(packed);
                }
                let (file, info) = weights.find_as_read(name).ok_or_else(missing)?;
                Ok(ModelWeight::Dense(safetensors_tensor(file, info)?))
            }
            // Dummy weights need a shape, see `shaped`.
            Weights::Dummy(_) => Err(missing()),
        }
    }

    /// Per-tensor scale of a weight, stored in a separate one-element tensor; `None` if the file
    /// has none. NVFP4 files use it to keep the block scales within their 8-bit range.
    ///
    /// # Errors
    /// [`ModelError::WeightShape`] if the scale is not one element, [`ModelError::Unsupported`] if
    /// it is not finite, and the errors of [`Self::get`].
    pub fn factor(&self, name: &str) -> Result<Option<f32>, ModelError> {
        let gguf = match self {
            Weights::Gguf(gguf) => gguf,
            Weights::Hf(weights) => return weights.packed_factor(name).map_err(unsupported),
            Weights::Dummy(_) => return Ok(None),
        };
        let Some(of) = Weights::factors_of(name)
            .into_iter()
            .find(|f| gguf.has_tensor(f))
        else {
            return Ok(None);
        };
        let found = self.get(&of)?;
        let shape = found.shape().to_vec();
        let one = match found {
            ModelWeight::Dense(tensor) => tensor.to_f64s(),
            ModelWeight::Packed { .. } => Vec::new(),
        };
        let &[factor] = one.as_slice() else {
            return Err(ModelError::WeightShape {
                tensor: of,
                expected: vec![1],
                found: shape,
            });
        };
        match (factor as f32).is_finite() {
            true => Ok(Some(factor as f32)),
            false => Err(ModelError::Unsupported(format!(
                "tensor `{of}`: the scale {factor} of a weight is not finite"
            ))),
        }
    }

    /// Names of the per-tensor scale in GGUF files.
    #[must_use]
    pub fn factors_of(name: &str) -> [String; 2] {
        let base = name.strip_suffix(".weight").unwrap_or(name);
        [format!("{base}.scale"), format!("{name}.scale")]
    }

    pub(super) fn shaped(&self, name: &str, shape: &[usize]) -> Result<ModelWeight, ModelError> {
        if let Weights::Dummy(made_up) = self {
            return made_up.weight(name, shape);
        }
        let weight = self.get(name)?;
        if weight.shape() != shape {
            return Err(ModelError::WeightShape {
                tensor: name.to_string(),
                expected: shape.to_vec(),
                found: weight.shape().to_vec(),
            });
        }
        Ok(weight)
    }

    /// The matrix of this name without its per-tensor scale; F16 and BF16 stay in their stored
    /// format.
    pub(super) fn matrix(
        &self,
        name: &str,
        [rows, cols]: [usize; 2],
    ) -> Result<WeightMatrix, ModelError> {
        // GGUF files store a matrix with one row as a vector.
        if rows == 1
            && self.get(name).is_ok_and(|w| w.shape() == [cols])
            && let ModelWeight::Dense(vector) = self.shaped(name, &[cols])?
        {
            let row = vector.reshaped(&[1, cols]);
            return matrix(
                name,
                ModelWeight::Dense(row.map_err(|e| bytes_error(name, e))?),
            );
        }
        matrix(name, self.shaped(name, &[rows, cols])?)
    }

    /// Expert matrices `[experts, rows, columns]`, read from one tensor or from one tensor per
    /// expert.
    pub(super) fn experts(
        &self,
        names: &[String],
        [count, rows, cols]: [usize; 3],
    ) -> Result<WeightMatrix, ModelError> {
        if let ([name], Weights::Dummy(_)) = (names, self) {
            return self
                .matrix(name, [count * rows, cols])?
                .stacked(name, count);
        }
        match names {
            [name] => matrix(name, self.shaped(name, &[count, rows, cols])?),
            names => self.joined(names, [rows, cols]),
        }
    }

    /// Concatenates matrices of one storage format and shape, for folders with one tensor per
    /// expert. The data is copied.
    fn joined(
        &self,
        names: &[String],
        [rows, cols]: [usize; 2],
    ) -> Result<WeightMatrix, ModelError> {
        let mut whole: Option<(Option<Scheme>, Tensor)> = None;
        for (at, name) in names.iter().enumerate() {
            let (scheme, one) = match self.shaped(name, &[rows, cols])? {
                ModelWeight::Dense(one) => (None, one),
                ModelWeight::Packed { scheme, blocks, .. } => (Some(scheme), blocks),
            };
            let (first, whole) = match &mut whole {
                Some(whole) => whole,
                none => {
                    let ty = [&[names.len()], one.shape()].concat();
                    let ty = TensorType::new(one.dtype(), &ty);
                    let zeros = Tensor::zeros(ty).map_err(|e| bytes_error(name, e))?;
                    none.insert((scheme, zeros))
                }
            };
            if *first != scheme || whole.dtype() != one.dtype() {
                return Err(ModelError::Unsupported(format!(
                    "tensor `{name}` has another storage format or shape than the tensor of the first expert"
                )));
            }
            let len = one.bytes().len();
            whole.bytes_mut()[at * len..][..len].copy_from_slice(one.bytes());
        }
        match whole {
            Some((Some(scheme), blocks)) => Ok(WeightMatrix::Packed(scheme, blocks)),
            Some((None, whole)) => matrix(&names[0], ModelWeight::Dense(whole)),
            None => Err(ModelError::Unsupported(
                "the model has 0 experts; expected at least 1".to_string(),
            )),
        }
    }

    /// A small tensor as F32 `[rows, width]`; leading axes of length 1 are ignored.
    ///
    /// # Errors
    /// The errors of [`Self::dense_f32`].
    pub fn rows_f32(&self, name: &str, [rows, width]: [usize; 2]) -> Result<Tensor, ModelError> {
        let mut own = vec![rows, width];
        if let Ok(found) = self.get(name) {
            let found = found.shape();
            if after_ones(found) == after_ones(&own) {
                own = found.to_vec();
            }
        }
        let tensor = self.dense_f32(name, &own)?;
        tensor
            .reshaped(&[rows, width])
            .map_err(|e| bytes_error(name, e))
    }

    /// A small tensor as F32 with its per-tensor scale applied, for example a norm gain or a bias.
    ///
    /// # Errors
    /// [`ModelError::WeightShape`] for another shape, and the errors of [`Self::get`].
    pub fn dense_f32(&self, name: &str, shape: &[usize]) -> Result<Tensor, ModelError> {
        match self.shaped(name, shape)? {
            ModelWeight::Dense(tensor) => to_f32(name, &tensor),
            ModelWeight::Packed {
                scheme,
                blocks,
                shape,
            } => {
                let ty = TensorType::new(DType::F32, &shape);
                let failed = |e| bytes_error(name, e);
                let mut tensor = Tensor::zeros(ty).map_err(failed)?;
                let values = tensor.as_slice_mut::<f32>().map_err(failed)?;
                let done = scheme.dequantize(blocks.bytes(), values);
                done.map_err(|e| ModelError::Unsupported(format!("tensor `{name}`: {e}")))?;
                if let Some(factor) = self.factor(name)? {
                    values.iter_mut().for_each(|value| *value *= factor);
                }
                Ok(tensor)
            }
        }
    }
}

/// A shape without its leading axes of length 1.
fn after_ones(shape: &[usize]) -> &[usize] {
    let ones = shape.iter().take_while(|n| **n == 1).count();
    &shape[ones..]
}

fn unsupported(error: WeightError) -> ModelError {
    ModelError::Unsupported(error.to_string())
}

pub(super) fn matrix(name: &str, weight: ModelWeight) -> Result<WeightMatrix, ModelError> {
    match weight {
        ModelWeight::Packed { scheme, blocks, .. } => Ok(WeightMatrix::Packed(scheme, blocks)),
        ModelWeight::Dense(t) if t.dtype() == DType::F16 => {
            Ok(WeightMatrix::Packed(Scheme::F16, t))
        }
        ModelWeight::Dense(t) if t.dtype() == DType::BF16 => {
            Ok(WeightMatrix::Packed(Scheme::BF16, t))
        }
        ModelWeight::Dense(t) => to_f32(name, &t).map(WeightMatrix::Dense),
    }
}

impl WeightMatrix {
    /// Flattens `[groups, rows, columns]` into `[groups * rows, columns]`.
    pub(super) fn unstacked(self, name: &str) -> Result<WeightMatrix, ModelError> {
        let flat = |t: Tensor| {
            let [groups, rows, cols] = [0, 1, 2].map(|axis| t.shape()[axis]);
            t.reshaped(&[groups * rows, cols])
                .map_err(|e| bytes_error(name, e))
        };
        Ok(match self {
            WeightMatrix::Dense(t) => WeightMatrix::Dense(flat(t)?),
            WeightMatrix::Packed(scheme, t) => WeightMatrix::Packed(scheme, flat(t)?),
        })
    }

    /// The matrix as floats of `dtype` if it consists of wider or other floats and `dtype` has 16
    /// bits; otherwise unchanged. Each element is rounded once, to nearest even.
    pub(super) fn rounded_to(self, name: &str, dtype: DType) -> Result<WeightMatrix, ModelError> {
        let scheme = match dtype {
            DType::F16 => Scheme::F16,
            DType::BF16 => Scheme::BF16,
            _ => return Ok(self),
        };
        let floats = match &self {
            WeightMatrix::Dense(t) => t,
            WeightMatrix::Packed(Scheme::F16 | Scheme::BF16, t) if t.dtype() != dtype => t,
            WeightMatrix::Packed(..) => return Ok(self),
        };
        let rounded = float16_tensor(floats, dtype).map_err(|e| bytes_error(name, e))?;
        Ok(WeightMatrix::Packed(scheme, rounded))
    }

    /// Splits the rows into `count` groups, with a new leading axis.
    fn stacked(self, name: &str, count: usize) -> Result<WeightMatrix, ModelError> {
        let stack = |t: Tensor| {
            let [rows, cols] = [t.shape()[0] / count, t.shape()[1]];
            let ty = TensorType::new(t.dtype(), &[count, rows, cols]);
            Tensor::from_bytes(ty, t.bytes()).map_err(|e| bytes_error(name, e))
        };
        Ok(match self {
            WeightMatrix::Dense(t) => WeightMatrix::Dense(stack(t)?),
            WeightMatrix::Packed(scheme, t) => WeightMatrix::Packed(scheme, stack(t)?),
        })
    }
}

/// The elements of a float tensor in a 16-bit float dtype.
fn float16_tensor(tensor: &Tensor, dtype: DType) -> Result<Tensor, TensorError> {
    /// Number of elements of a parallel task.
    const PART: usize = 1 << 16;
    let mut rounded = Tensor::zeros(TensorType::new(dtype, tensor.shape()))?;
    let size = tensor.dtype().size_bytes();
    let source = tensor.bytes().par_chunks(PART * size);
    let target = rounded.bytes_mut().par_chunks_mut(PART * 2);
    source.zip(target).for_each(|(source, target)| {
        for (from, to) in source.chunks_exact(size).zip(target.chunks_exact_mut(2)) {
            let value = match (tensor.dtype(), from) {
                (DType::F16, &[a, b]) => f16::from_le_bytes([a, b]).to_f32(),
                (DType::BF16, &[a, b]) => bf16::from_le_bytes([a, b]).to_f32(),
                (_, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
                _ => f32::NAN,
            };
            to.copy_from_slice(&match dtype {
                DType::F16 => f16::from_f32(value).to_le_bytes(),
                _ => bf16::from_f32(value).to_le_bytes(),
            });
        }
    });
    Ok(rounded)
}

pub(super) fn bytes_error(name: &str, source: TensorError) -> ModelError {
    ModelError::WeightBytes {
        tensor: name.to_string(),
        source,
    }
}

fn to_f32(name: &str, tensor: &Tensor) -> Result<Tensor, ModelError> {
    if tensor.dtype() == DType::F32 {
        return Ok(tensor.clone());
    }
    let ty = TensorType::new(DType::F32, tensor.shape());
    Tensor::from_f64s(ty, &tensor.to_f64s()).map_err(|e| bytes_error(name, e))
}
