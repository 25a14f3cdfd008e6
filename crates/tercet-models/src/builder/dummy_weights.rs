//! Weights of any shape without a file.

use tercet::{DType, Scheme, Tensor, TensorType};
use tercet_ir::case::{Fill, random_blocks};

use super::ModelError;
use super::weights::bytes_error;
use crate::weight::Weight;

/// Blocks that are drawn at random; longer tensors repeat them.
const PATTERN_BLOCKS: usize = 4099;

/// As wide as trained matrices are, so that nothing overflows in F16.
const WIDTH: f64 = 0.05;
const DENSE: Fill = Fill::Uniform(-WIDTH, WIDTH);

/// Weights that follow a name and a shape only: matrices are random in a storage, gains are ones,
/// biases zeros.
#[derive(Clone, Debug)]
pub struct MadeUp {
    /// The storage; `None` for F32.
    scheme: Option<Scheme>,
    pattern: Vec<u8>,
}

impl MadeUp {
    /// Matrices in F32.
    pub fn dense() -> MadeUp {
        let ty = TensorType::new(DType::F32, &[PATTERN_BLOCKS]);
        MadeUp {
            scheme: None,
            pattern: DENSE.tensor("made up", ty).bytes().to_vec(),
        }
    }

    /// Matrices in this storage; F16 where a row is no whole number of its blocks.
    pub fn packed(scheme: Scheme) -> MadeUp {
        let bytes = scheme.block_bytes() * PATTERN_BLOCKS;
        let storage = scheme.storage();
        let pattern = if storage.is_float() {
            let ty = TensorType::new(storage, &[bytes / storage.size_bytes()]);
            DENSE.tensor("made up", ty).bytes().to_vec()
        } else {
            random_blocks("made up", scheme, bytes, WIDTH)
        };
        MadeUp {
            scheme: Some(scheme),
            pattern,
        }
    }

    pub(super) fn weight(&self, name: &str, shape: &[usize]) -> Result<Weight, ModelError> {
        let &[rows, cols] = shape else {
            let value = if name.ends_with("bias") { 0f32 } else { 1.0 };
            let failed = |e| bytes_error(name, e);
            let mut gain = Tensor::zeros(TensorType::new(DType::F32, shape)).map_err(failed)?;
            gain.as_slice_mut().map_err(failed)?.fill(value);
            return Ok(Weight::Dense(gain));
        };
        let Some(scheme) = self.scheme else {
            let matrix = self.tensor(name, TensorType::new(DType::F32, shape), 4)?;
            return Ok(Weight::Dense(matrix));
        };
        let Some(stored) = scheme.stored_len(cols) else {
            return MadeUp::packed(Scheme::F16).weight(name, shape);
        };
        let ty = TensorType::new(scheme.storage(), &[rows, stored]);
        let blocks = self.tensor(name, ty, scheme.block_bytes())?;
        Ok(match scheme.storage().is_float() {
            true => Weight::Dense(blocks),
            false => Weight::Packed {
                scheme,
                blocks,
                shape: shape.to_vec(),
            },
        })
    }

    /// The pattern, repeated from a block that the name chooses.
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
