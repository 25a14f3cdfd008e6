//! Weights of a model, from either kind of file, checked against the shapes that a builder expects.

use tercet::{DType, Scheme, Tensor, TensorError, TensorType};

use super::ModelError;
use super::made_up::MadeUp;
use crate::gguf::Gguf;
use crate::hf::HfWeights;
use crate::weight::{Weight, gguf_weight, safetensors_tensor};

/// A matrix as contractions take it.
pub(super) enum Matrix {
    /// F32 `[rows, columns]`.
    Dense(Tensor),
    /// Blocks, U8 `[rows, row bytes]`, or F16/BF16 `[rows, columns]`.
    Packed(Scheme, Tensor),
}

/// The weights of a model file or folder. Tensors are views of the mapped files.
#[derive(Clone, Debug)]
pub enum Weights {
    /// Of a GGUF file.
    Gguf(Gguf),
    /// Of a Hugging Face folder.
    Hf(HfWeights),
    /// Made up, in a storage of choice: a model of any size without a file, to measure with.
    MadeUp(MadeUp),
}

impl Weights {
    /// True if there is a tensor of this name.
    pub fn has(&self, name: &str) -> bool {
        match self {
            Weights::Gguf(gguf) => gguf.has_tensor(name),
            Weights::Hf(weights) => weights.find_as_read(name).is_some() || weights.is_packed(name),
            // Names of the bare encoder.
            Weights::MadeUp(_) => !name.starts_with("bert."),
        }
    }

    /// The tensor of this name in its storage, without its [`factor`](Self::factor).
    ///
    /// # Errors
    /// [`ModelError::MissingWeight`]; [`ModelError::Weight`] for a storage that is not read.
    pub fn get(&self, name: &str) -> Result<Weight, ModelError> {
        let missing = || ModelError::MissingWeight {
            tensor: name.to_string(),
        };
        match self {
            Weights::Gguf(gguf) => {
                let info = gguf.tensor(name).map_err(|_| missing())?;
                Ok(gguf_weight(gguf, info)?)
            }
            Weights::Hf(weights) => {
                if let Some(packed) = weights.packed(name).map_err(unsupported(name))? {
                    return Ok(packed);
                }
                let (file, info) = weights.find_as_read(name).ok_or_else(missing)?;
                Ok(Weight::Dense(safetensors_tensor(file, info)?))
            }
            // What is made up follows the shape asked for: see `shaped`.
            Weights::MadeUp(_) => Err(missing()),
        }
    }

    /// What all elements of the tensor of this name are to be multiplied with, where the file has it: one number
    /// in a tensor beside it. Writers of NVFP4 blocks scale weights so that the scales of blocks fit their
    /// 8 bits.
    ///
    /// # Errors
    /// [`ModelError::WeightShape`] where it is not one number, [`ModelError::Unsupported`] where that is not finite,
    /// and those of [`Self::get`].
    pub fn factor(&self, name: &str) -> Result<Option<f32>, ModelError> {
        let gguf = match self {
            Weights::Gguf(gguf) => gguf,
            Weights::Hf(weights) => return weights.packed_factor(name).map_err(unsupported(name)),
            Weights::MadeUp(_) => return Ok(None),
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
            Weight::Dense(tensor) => tensor.to_f64s(),
            Weight::Packed { .. } => Vec::new(),
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
                "tensor `{of}`: the factor {factor} of a weight is not a finite number"
            ))),
        }
    }

    /// The names under which GGUF files have the factor of a tensor.
    pub(crate) fn factors_of(name: &str) -> [String; 2] {
        let base = name.strip_suffix(".weight").unwrap_or(name);
        [format!("{base}.scale"), format!("{name}.scale")]
    }

    pub(super) fn shaped(&self, name: &str, shape: &[usize]) -> Result<Weight, ModelError> {
        if let Weights::MadeUp(made_up) = self {
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

    /// The matrix of this name, without its factor; F16 and BF16 stay as stored.
    pub(super) fn matrix(
        &self,
        name: &str,
        [rows, cols]: [usize; 2],
    ) -> Result<Matrix, ModelError> {
        // GGUF files have one row as a vector.
        if rows == 1
            && self.get(name).is_ok_and(|w| w.shape() == [cols])
            && let Weight::Dense(vector) = self.shaped(name, &[cols])?
        {
            let row = vector.reshaped(&[1, cols]);
            return matrix(name, Weight::Dense(row.map_err(|e| bytes_error(name, e))?));
        }
        matrix(name, self.shaped(name, &[rows, cols])?)
    }

    /// The matrices of experts, `[experts, rows, columns]`: one tensor, or one each.
    pub(super) fn experts(
        &self,
        names: &[String],
        [count, rows, cols]: [usize; 3],
    ) -> Result<Matrix, ModelError> {
        if let ([name], Weights::MadeUp(_)) = (names, self) {
            return self
                .matrix(name, [count * rows, cols])?
                .stacked(name, count);
        }
        match names {
            [name] => matrix(name, self.shaped(name, &[count, rows, cols])?),
            names => self.joined(names, [rows, cols]),
        }
    }

    /// Matrices of one storage and shape behind each other. They are copied: folders have one for each expert.
    fn joined(&self, names: &[String], [rows, cols]: [usize; 2]) -> Result<Matrix, ModelError> {
        let mut whole: Option<(Option<Scheme>, Tensor)> = None;
        for (at, name) in names.iter().enumerate() {
            let (scheme, one) = match self.shaped(name, &[rows, cols])? {
                Weight::Dense(one) => (None, one),
                Weight::Packed { scheme, blocks, .. } => (Some(scheme), blocks),
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
                    "tensor `{name}` is stored otherwise than that of the first expert"
                )));
            }
            let len = one.bytes().len();
            whole.bytes_mut()[at * len..][..len].copy_from_slice(one.bytes());
        }
        match whole {
            Some((Some(scheme), blocks)) => Ok(Matrix::Packed(scheme, blocks)),
            Some((None, whole)) => matrix(&names[0], Weight::Dense(whole)),
            None => Err(ModelError::Unsupported("a model of no experts".to_string())),
        }
    }

    /// A small tensor as F32 `[rows, width]`, whatever leading axes of 1 it has.
    pub(crate) fn rows_f32(
        &self,
        name: &str,
        [rows, width]: [usize; 2],
    ) -> Result<Tensor, ModelError> {
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

    /// A small tensor of this name as F32, its factor applied: a norm's gain, a bias.
    pub(crate) fn dense_f32(&self, name: &str, shape: &[usize]) -> Result<Tensor, ModelError> {
        match self.shaped(name, shape)? {
            Weight::Dense(tensor) => to_f32(name, &tensor),
            Weight::Packed {
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

/// A shape without its leading axes of 1.
fn after_ones(shape: &[usize]) -> &[usize] {
    let ones = shape.iter().take_while(|n| **n == 1).count();
    &shape[ones..]
}

fn unsupported(name: &str) -> impl Fn(String) -> ModelError {
    move |reason| ModelError::Unsupported(format!("tensor `{name}`: {reason}"))
}

pub(super) fn matrix(name: &str, weight: Weight) -> Result<Matrix, ModelError> {
    match weight {
        Weight::Packed { scheme, blocks, .. } => Ok(Matrix::Packed(scheme, blocks)),
        Weight::Dense(t) if t.dtype() == DType::F16 => Ok(Matrix::Packed(Scheme::F16, t)),
        Weight::Dense(t) if t.dtype() == DType::BF16 => Ok(Matrix::Packed(Scheme::BF16, t)),
        Weight::Dense(t) => to_f32(name, &t).map(Matrix::Dense),
    }
}

impl Matrix {
    /// Rows of all groups behind each other.
    pub(super) fn unstacked(self, name: &str) -> Result<Matrix, ModelError> {
        let flat = |t: Tensor| {
            let [groups, rows, cols] = [0, 1, 2].map(|axis| t.shape()[axis]);
            t.reshaped(&[groups * rows, cols])
                .map_err(|e| bytes_error(name, e))
        };
        Ok(match self {
            Matrix::Dense(t) => Matrix::Dense(flat(t)?),
            Matrix::Packed(scheme, t) => Matrix::Packed(scheme, flat(t)?),
        })
    }

    /// Rows in `count` groups, as an axis before them.
    fn stacked(self, name: &str, count: usize) -> Result<Matrix, ModelError> {
        let stack = |t: Tensor| {
            let [rows, cols] = [t.shape()[0] / count, t.shape()[1]];
            let ty = TensorType::new(t.dtype(), &[count, rows, cols]);
            Tensor::from_bytes(ty, t.bytes()).map_err(|e| bytes_error(name, e))
        };
        Ok(match self {
            Matrix::Dense(t) => Matrix::Dense(stack(t)?),
            Matrix::Packed(scheme, t) => Matrix::Packed(scheme, stack(t)?),
        })
    }
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
