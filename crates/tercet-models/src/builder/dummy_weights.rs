//! Dummy weights: random weights of any shape, without a file.

use tercet::{DType, Scheme, Tensor, TensorType};
use tercet_ir::fill::{InputFill, random_blocks};

use super::ModelError;
use super::weights::bytes_error;
use crate::weight::ModelWeight;

/// Number of random blocks in the pattern that tensors are filled with; longer tensors repeat the
/// pattern.
const PATTERN_BLOCKS: usize = 4099;

/// Bound of the uniform random values. The bound is typical of trained matrices, so activations in
/// F16 do not overflow.
const WIDTH: f64 = 0.05;
const DENSE: InputFill = InputFill::Uniform(-WIDTH, WIDTH);

/// Dummy weights that depend only on a tensor's name and shape. Matrices are random, gains are ones
/// and biases are zeros.
///
/// ```
/// # let dims = tercet_models::DecoderDims {
/// #     hidden: 64, layers: 2, heads: 4, kv_heads: 2, head_dim: 16, ffn: 96, vocab: 300,
/// #     context: 128,
/// # };
/// # let spec = tercet_models::DecoderSpec::llama(dims);
/// # let weights = tercet_models::Weights::Dummy(tercet_models::DummyWeights::dense());
/// use tercet::Scheme;
/// use tercet_models::{Decoder, DecoderOptions, DummyWeights, Weights};
/// let packed = Weights::Dummy(DummyWeights::packed(Scheme::Q8_0));
/// let dense = Weights::Dummy(DummyWeights::dense());
/// let packed = Decoder::build(&spec, &packed, DecoderOptions::new(&spec))?;
/// let dense = Decoder::build(&spec, &dense, DecoderOptions::new(&spec))?;
/// assert!(packed.model.param_bytes() < dense.model.param_bytes());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct DummyWeights {
    /// Storage format of the matrices; `None` means F32.
    scheme: Option<Scheme>,
    pattern: Vec<u8>,
}

impl DummyWeights {
    /// Dummy weights with F32 matrices.
    pub fn dense() -> DummyWeights {
        let ty = TensorType::new(DType::F32, &[PATTERN_BLOCKS]);
        DummyWeights {
            scheme: None,
            pattern: DENSE.tensor("made up", ty).bytes().to_vec(),
        }
    }

    /// Dummy weights with matrices in this storage format. A matrix is F16 if its row length is not
    /// a multiple of the block size.
    pub fn packed(scheme: Scheme) -> DummyWeights {
        let bytes = scheme.block_bytes() * PATTERN_BLOCKS;
        let storage = scheme.storage();
        let pattern = if storage.is_float() {
            let ty = TensorType::new(storage, &[bytes / storage.size_bytes()]);
            DENSE.tensor("made up", ty).bytes().to_vec()
        } else {
            random_blocks("made up", scheme, bytes, WIDTH)
        };
        DummyWeights {
            scheme: Some(scheme),
            pattern,
        }
    }

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
