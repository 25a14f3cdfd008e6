//! Tensors of [`DummyWeights`].

use tercet::{DType, Scheme, Tensor, TensorType};

use super::ModelError;
use super::weights::bytes_error;
use crate::weights::{DummyWeights, PATTERN_BLOCKS};
use tercet_files::weight::ModelWeight;

impl DummyWeights {
    pub(super) fn weight(&self, name: &str, shape: &[usize]) -> Result<ModelWeight, ModelError> {
        let &[rows, cols] = shape else {
            let value = if name.ends_with("bias") { 0f32 } else { 1.0 };
            let failed = |e| bytes_error(name, e);
            let mut gain = Tensor::zeros(TensorType::new(DType::F32, shape)).map_err(failed)?;
            gain.as_slice_mut().map_err(failed)?.fill(value);
            return Ok(ModelWeight::Dense(gain));
        };
        let Some(scheme) = self.scheme else {
            let matrix = self.tensor(name, TensorType::new(DType::F32, shape), 4)?;
            return Ok(ModelWeight::Dense(matrix));
        };
        let Some(stored) = scheme.stored_len(cols) else {
            return DummyWeights::packed(Scheme::F16).weight(name, shape);
        };
        let ty = TensorType::new(scheme.storage(), &[rows, stored]);
        let blocks = self.tensor(name, ty, scheme.block_bytes())?;
        Ok(match scheme.storage().is_float() {
            true => ModelWeight::Dense(blocks),
            false => ModelWeight::Packed {
                scheme,
                blocks,
                shape: shape.to_vec(),
            },
        })
    }

    /// Tensor filled with the repeated pattern; the name selects the first block.
    fn tensor(&self, name: &str, ty: TensorType, block: usize) -> Result<Tensor, ModelError> {
        let start = name.bytes().map(usize::from).sum::<usize>() % PATTERN_BLOCKS * block;
        let cycle = [&self.pattern[start..], &self.pattern[..start]].concat();
        let mut tensor = Tensor::zeros(ty).map_err(|e| bytes_error(name, e))?;
        for part in tensor.bytes_mut().chunks_mut(cycle.len()) {
            part.copy_from_slice(&cycle[..part.len()]);
        }
        Ok(tensor)
    }
}
