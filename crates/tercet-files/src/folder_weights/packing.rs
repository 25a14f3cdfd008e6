//! Quantized weights of folders: GPTQ, AWQ, FP8, compressed-tensors, bitsandbytes and HQQ.
//!
//! A matrix `[rows, columns]` is stored as several tensors: quantized values, scales and zero
//! points. The tensors are converted once, when the model is opened:
//!
//! - to the blocks of a [`Scheme`](tercet_ir::Scheme), if the blocks represent every value exactly;
//! - else to floats of the dtype that the reference implementation dequantizes to, bit by bit the
//!   same values.
//!
//! Activations are not quantized, even if the configuration requests it; results are then more
//! exact.
//!
//! Formats: GPTQ, arXiv 2210.17323, as stored by AutoGPTQ and GPTQModel; AWQ, arXiv 2306.00978, in
//! AutoAWQ's `gemm` version; bitsandbytes, arXiv 2208.07339 and 2305.14314; HQQ; the
//! `quantization_config` of `transformers` (`fp8`, `compressed-tensors`).

mod bitsandbytes;
mod config;
mod dense;
mod hqq;
mod integers;
mod layouts;
mod matrix;
mod pack;

use serde_json::{Map, Value};

use super::HfWeights;
use crate::weight::{ModelWeight, WeightError};

/// A setting of `quantization_config` that is not supported.
///
/// ```
/// use tercet_files::folder_weights::check_quantization;
/// let config = serde_json::json!({"quant_method": "unheard-of"});
/// let error = check_quantization(config.as_object().unwrap()).unwrap_err();
/// assert_eq!(error.found, "the method `unheard-of`");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{found} is not supported; supported: {supported}")]
pub struct UnsupportedQuantization {
    /// The unsupported setting.
    pub found: String,
    /// The supported formats.
    pub supported: &'static str,
}

/// Checks that the quantization of `quantization_config` is supported.
///
/// # Errors
/// [`UnsupportedQuantization`].
pub fn check_quantization(config: &Map<String, Value>) -> Result<(), UnsupportedQuantization> {
    match Packing::read(config) {
        Ok(_) => Ok(()),
        Err(found) => Err(UnsupportedQuantization {
            found,
            supported: config::SUPPORTED,
        }),
    }
}

/// The storage format of a folder's quantized matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Packing {
    /// GPTQ: quantized values packed along the columns, scales and zero points per group of
    /// columns.
    Gptq {
        bits: u32,
        group: ColumnGroup,
        zeros: ZeroStorage,
        /// Whether the bits of a value are split over words.
        is_planar: bool,
    },
    /// AWQ: quantized values `[columns, rows / 8]`, eight rows per word in a permuted order.
    Awq { group: ColumnGroup },
    /// 8-bit floats with one scale per tensor, row or tile.
    Float8,
    /// Integers packed into words along the columns.
    Words(IntegerSpec),
    /// Signed bytes.
    Bytes(IntegerSpec),
    /// NVFP4: 4-bit floats, with an 8-bit float scale per 16 values and one factor per tensor.
    Nvfp4,
    /// MXFP4: 4-bit floats, with a power-of-two scale per 32 values.
    Mxfp4,
    /// bitsandbytes: 4-bit codebooks, or signed bytes with one scale per row.
    Bitsandbytes,
    /// HQQ: integers of 1 to 8 bits with float zero points.
    Hqq,
}

/// The columns that share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ColumnGroup {
    /// A fixed number of columns per scale, at least 1.
    Columns(usize),
    /// All columns of a row.
    Row,
}

impl ColumnGroup {
    fn len(self, columns: usize) -> usize {
        match self {
            ColumnGroup::Columns(len) => len,
            ColumnGroup::Row => columns.max(1),
        }
    }
}

/// The relation of GPTQ's stored zero points to the actual ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ZeroStorage {
    /// Equal.
    Equal,
    /// Each stored zero point is 1 less than the actual one, modulo its range.
    LessOne,
    /// The writer subtracted 1 from each zero point by one subtraction on the whole word, so
    /// borrows passed between them.
    LessOneByWord,
}

/// The integers of a compressed-tensors folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IntegerSpec {
    bits: u32,
    has_zeros: bool,
    /// Rows and columns that share a scale, if scales are per tile.
    tile: Option<[usize; 2]>,
}

/// Name suffixes of the tensors that together store one `weight`.
const PARTS: [&str; 14] = [
    "qweight",
    "qzeros",
    "scales",
    "g_idx",
    "weight_packed",
    "weight_scale",
    "weight_scale_inv",
    "weight_shape",
    "weight_zero_point",
    "weight_g_idx",
    "weight_global_scale",
    "input_scale",
    "input_global_scale",
    "activation_scale",
];

impl Packing {
    /// The name of the weight to which a stored tensor belongs, as the builder requests it.
    fn weight_of(self, name: &str) -> Option<String> {
        match self {
            Packing::Bitsandbytes => bitsandbytes::weight_of(name),
            Packing::Hqq => hqq::weight_of(name),
            _ => {
                let (base, end) = name.rsplit_once('.')?;
                PARTS.contains(&end).then(|| format!("{base}.weight"))
            }
        }
    }
}

impl HfWeights {
    /// The weight to which this tensor belongs, if it is part of a quantized weight.
    pub(crate) fn is_packed_part(&self, name: &str) -> Option<String> {
        let weight = self.packing?.weight_of(name)?;
        self.is_packed(&weight).then_some(weight)
    }

    /// Whether this weight is stored as several tensors.
    #[must_use]
    pub fn is_packed(&self, name: &str) -> bool {
        matrix::PackedMatrixTensors::find(self, name).is_some()
    }

    /// The weight of this name as blocks or floats, if it is stored as several tensors.
    ///
    /// # Errors
    /// [`WeightError::Quantized`] if the tensors are inconsistent.
    pub fn packed(&self, name: &str) -> Result<Option<ModelWeight>, WeightError> {
        let Some(parts) = matrix::PackedMatrixTensors::find(self, name) else {
            return Ok(None);
        };
        parts
            .weight()
            .map(Some)
            .map_err(WeightError::quantized(name))
    }

    /// The factor of all elements of this weight, if the folder stores one in a separate tensor.
    ///
    /// # Errors
    /// [`WeightError::Quantized`] if the global scale is 0 or if its reciprocal is not finite.
    pub fn packed_factor(&self, name: &str) -> Result<Option<f32>, WeightError> {
        let is_nvfp4 = self.packing == Some(Packing::Nvfp4);
        match matrix::PackedMatrixTensors::find(self, name).filter(|_| is_nvfp4) {
            Some(parts) => {
                let factor = parts.factor().map_err(WeightError::quantized(name))?;
                Ok(Some(factor))
            }
            None => Ok(None),
        }
    }
}
