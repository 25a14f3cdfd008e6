//! Quantized weights of folders: GPTQ, AWQ, FP8 and compressed-tensors, converted to blocks of a
//! [`Scheme`].
//!
//! A matrix `[rows, columns]` is stored as several tensors: quantized values, scales and zero
//! points. They are rearranged once, when the model is opened, without loss: a scale that the
//! scheme's dtype cannot represent exactly is an error. Activations are not quantized, even if the
//! configuration requests it; results are then more exact.
//!
//! Formats: GPTQ, arXiv 2210.17323, as stored by AutoGPTQ; AWQ, arXiv 2306.00978, in AutoAWQ's
//! `gemm` version; the `quantization_config` of `transformers` (`fp8`, `compressed-tensors`).

mod matrix;
mod pack;

use serde_json::{Map, Value};

use super::HfWeights;
use crate::weight::ModelWeight;

/// The storage format of a folder's quantized matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Packing {
    /// GPTQ: quantized values `[columns / values per word, rows]`, scales and zero points per group
    /// of columns.
    Gptq {
        bits: u32,
        /// Number of columns that share a scale.
        group: usize,
        /// Whether the stored zero points are 1 less than the actual ones.
        less_one: bool,
    },
    /// AWQ: quantized values `[columns, rows / 8]`, eight rows per word in a permuted order.
    Awq {
        /// Number of columns that share a scale.
        group: usize,
    },
    /// 8-bit floats with one scale per tensor, row or tile.
    Float8,
    /// Integers `[rows, columns / values per word]`, with an implicit zero point at half their
    /// range.
    Words { bits: u32 },
    /// Signed bytes with one scale per row.
    Bytes,
    /// NVFP4: 4-bit floats, with an 8-bit float scale per 16 values and one factor per tensor.
    Nvfp4,
    /// MXFP4: 4-bit floats, with a power-of-two scale per 32 values.
    Mxfp4,
}

/// Name suffixes of the tensors that together store one `weight`.
const PARTS: [&str; 13] = [
    "qweight",
    "qzeros",
    "scales",
    "g_idx",
    "weight_packed",
    "weight_scale",
    "weight_scale_inv",
    "weight_shape",
    "weight_zero_point",
    "weight_global_scale",
    "input_scale",
    "input_global_scale",
    "activation_scale",
];

/// The supported formats, for error messages.
pub(crate) const SUPPORTED: &str = "an unquantised checkpoint, a GGUF file, GPTQ and AWQ of 4 bits (GPTQ of 8, too), fp8, or \
     compressed-tensors (pack-quantized, int-quantized, float-quantized, nvfp4 or mxfp4)";

impl Packing {
    /// Reads a `quantization_config`.
    ///
    /// # Errors
    /// The unsupported setting.
    pub(crate) fn read(config: &Map<String, Value>) -> Result<Packing, String> {
        let text = |key: &str| config.get(key).and_then(Value::as_str);
        match text("quant_method") {
            Some("gptq") => gptq(config),
            Some("awq") => awq(config),
            Some("fp8" | "fbgemm_fp8") => Ok(Packing::Float8),
            Some("compressed-tensors") => compressed(config),
            Some(other) => Err(format!("the method `{other}`")),
            None => Err("a quantization_config without a quant_method".to_string()),
        }
    }

    /// The name of the weight to which a stored tensor belongs, as the builder requests it.
    fn weight_of(name: &str) -> Option<String> {
        let (base, end) = name.rsplit_once('.')?;
        PARTS.contains(&end).then(|| format!("{base}.weight"))
    }
}

fn number(config: &Map<String, Value>, key: &str) -> Option<i64> {
    config.get(key).and_then(Value::as_i64)
}

/// Checks that the block format can represent a group size, the number of columns that share a
/// scale.
fn group(size: Option<i64>) -> Result<usize, String> {
    match size {
        Some(n) if n >= 32 && n % 32 == 0 => Ok(n as usize),
        Some(-1) => Err("one scale for a row of integers with zero points".to_string()),
        Some(n) => Err(format!("groups of {n}, not a multiple of 32")),
        None => Err("groups of unknown size".to_string()),
    }
}

fn gptq(config: &Map<String, Value>) -> Result<Packing, String> {
    let bits = match number(config, "bits") {
        Some(bits @ (4 | 8)) => bits as u32,
        other => return Err(format!("GPTQ of {other:?} bits")),
    };
    let format = config.get("checkpoint_format").and_then(Value::as_str);
    let less_one = match format {
        None | Some("gptq") => true,
        Some("gptq_v2") => false,
        Some(other) => return Err(format!("GPTQ's checkpoint_format `{other}`")),
    };
    Ok(Packing::Gptq {
        bits,
        group: group(number(config, "group_size"))?,
        less_one,
    })
}

fn awq(config: &Map<String, Value>) -> Result<Packing, String> {
    if number(config, "bits").or(number(config, "w_bit")) != Some(4) {
        return Err("AWQ of other than 4 bits".to_string());
    }
    let version = config.get("version").and_then(Value::as_str);
    if version.is_some_and(|v| !v.eq_ignore_ascii_case("gemm")) {
        return Err(format!("AWQ's version {version:?}"));
    }
    let size = number(config, "group_size").or(number(config, "q_group_size"));
    Ok(Packing::Awq {
        group: group(size)?,
    })
}

fn compressed(config: &Map<String, Value>) -> Result<Packing, String> {
    if config.get("kv_cache_scheme").is_some_and(|v| !v.is_null()) {
        return Err("a kv_cache_scheme".to_string());
    }
    let groups = config.get("config_groups").and_then(Value::as_object);
    let mut weights = groups.into_iter().flatten().map(|(_, g)| g.get("weights"));
    let (Some(Some(Value::Object(weights))), None) = (weights.next(), weights.next()) else {
        return Err("config_groups with other than one group of weights".to_string());
    };
    let is_symmetric = weights.get("symmetric").and_then(Value::as_bool);
    if is_symmetric == Some(false) {
        return Err("compressed-tensors with zero points".to_string());
    }
    if weights.get("actorder").is_some_and(|v| !v.is_null()) {
        return Err("compressed-tensors with an actorder".to_string());
    }
    let bits = number(weights, "num_bits");
    match (config.get("format").and_then(Value::as_str), bits) {
        (Some("pack-quantized"), Some(bits @ (4 | 8))) => Ok(Packing::Words { bits: bits as u32 }),
        (Some("int-quantized"), Some(8)) => Ok(Packing::Bytes),
        (Some("float-quantized" | "naive-quantized"), Some(8)) => Ok(Packing::Float8),
        (Some("nvfp4-pack-quantized"), Some(4)) => Ok(Packing::Nvfp4),
        (Some("mxfp4-pack-quantized"), Some(4)) => Ok(Packing::Mxfp4),
        (format, bits) => Err(format!(
            "compressed-tensors' format {format:?} of {bits:?} bits"
        )),
    }
}

impl HfWeights {
    /// The weight to which this tensor belongs, if it is part of a quantized weight.
    pub(crate) fn is_packed_part(&self, name: &str) -> Option<String> {
        let weight = Packing::weight_of(name)?;
        self.is_packed(&weight).then_some(weight)
    }

    /// Whether this weight is stored as several tensors.
    pub(crate) fn is_packed(&self, name: &str) -> bool {
        self.packing.is_some() && matrix::PackedMatrixTensors::find(self, name).is_some()
    }

    /// The weight of this name as blocks, if it is stored as several tensors.
    ///
    /// # Errors
    /// The inconsistency between the tensors, or the value that the blocks cannot represent.
    pub(crate) fn packed(&self, name: &str) -> Result<Option<ModelWeight>, String> {
        let Some(packing) = self.packing else {
            return Ok(None);
        };
        let Some(parts) = matrix::PackedMatrixTensors::find(self, name) else {
            return Ok(None);
        };
        parts.weight(packing).map(Some)
    }

    /// The factor of all elements of this weight, if the folder stores one in a separate tensor.
    ///
    /// # Errors
    /// A message if the factor is not a number other than 0.
    pub(crate) fn packed_factor(&self, name: &str) -> Result<Option<f32>, String> {
        let is_nvfp4 = self.packing == Some(Packing::Nvfp4);
        match matrix::PackedMatrixTensors::find(self, name).filter(|_| is_nvfp4) {
            Some(parts) => parts.factor().map(Some),
            None => Ok(None),
        }
    }
}
