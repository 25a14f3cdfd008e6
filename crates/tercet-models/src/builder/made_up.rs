//! Weights of any shape without a file.

use tercet::{DType, Scheme, Tensor, TensorType};
use tercet_ir::case::Fill;

use super::ModelError;
use super::weights::bytes_error;
use crate::weight::Weight;

/// Blocks that are drawn at random; longer tensors repeat them.
const PATTERN_BLOCKS: usize = 4099;

/// As wide as trained matrices are, so that nothing overflows in F16.
const WIDTH: Fill = Fill::Uniform(-0.05, 0.05);

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
            pattern: WIDTH.tensor("made up", ty).bytes().to_vec(),
        }
    }

    /// Matrices in this storage; F16 where a row is no whole number of its blocks.
    pub fn packed(scheme: Scheme) -> MadeUp {
        let bytes = scheme.block_bytes() * PATTERN_BLOCKS;
        let n = bytes / scheme.storage().size_bytes();
        let ty = TensorType::new(scheme.storage(), &[n]);
        let drawn = match scheme.storage().is_float() {
            true => WIDTH,
            false => Fill::Blocks(scheme),
        };
        MadeUp {
            scheme: Some(scheme),
            pattern: drawn.tensor("made up", ty).bytes().to_vec(),
        }
    }

    pub(super) fn weight(&self, name: &str, shape: &[usize]) -> Result<Weight, ModelError> {
        let &[rows, cols] = shape else {
            let value = if name.ends_with("bias") { 0f32 } else { 1.0 };
            let values = vec![value; shape.iter().product()];
            let gain = Tensor::from_slice(shape, &values);
            return gain.map(Weight::Dense).map_err(|e| bytes_error(name, e));
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
        let mut bytes = Vec::with_capacity(ty.size_bytes());
        while bytes.len() < ty.size_bytes() {
            let n = cycle.len().min(ty.size_bytes() - bytes.len());
            bytes.extend_from_slice(&cycle[..n]);
        }
        Tensor::from_bytes(ty, &bytes).map_err(|e| bytes_error(name, e))
    }
}
