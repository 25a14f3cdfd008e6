//! The `quantization_config` of a folder. Each setting that changes the meaning of the stored
//! tensors is applied or refused.

use serde_json::{Map, Value};

use super::{ColumnGroup, IntegerSpec, Packing, ZeroStorage};
use crate::clip;

/// The supported formats, for error messages.
pub(super) const SUPPORTED: &str = "an unquantised checkpoint, a GGUF file, GPTQ of 2 to 8 bits, AWQ of 4 bits, fp8, \
     bitsandbytes (nf4, fp4, int8), hqq, or compressed-tensors (pack-quantized, int-quantized, \
     float-quantized, nvfp4 or mxfp4)";

impl Packing {
    /// Reads a `quantization_config`.
    ///
    /// # Errors
    /// The unsupported setting.
    pub(crate) fn read(config: &Map<String, Value>) -> Result<Packing, String> {
        let loads = |key: &str| config.get(key).and_then(Value::as_bool) == Some(true);
        match text(config, "quant_method") {
            Some("gptq") => gptq(config),
            Some("awq") => awq(config),
            Some("fp8" | "fbgemm_fp8") => Ok(Packing::Float8),
            Some("compressed-tensors") => compressed(config),
            Some("hqq") => Ok(Packing::Hqq),
            Some("bitsandbytes" | "bitsandbytes_4bit" | "bitsandbytes_8bit") => {
                bitsandbytes(config)
            }
            Some(other) => Err(format!("the method `{other}`")),
            // Older configurations of bitsandbytes have no `quant_method`.
            None if loads("load_in_4bit") || loads("load_in_8bit") => bitsandbytes(config),
            None => Err("a quantization_config without a quant_method".to_string()),
        }
    }
}

fn text<'a>(config: &'a Map<String, Value>, key: &str) -> Option<&'a str> {
    config.get(key).and_then(Value::as_str)
}

fn number(config: &Map<String, Value>, key: &str) -> Option<i64> {
    config.get(key).and_then(Value::as_i64)
}

/// A group size, the number of columns that share a scale; -1 stands for all.
fn group(size: Option<i64>) -> Result<ColumnGroup, String> {
    match size {
        Some(-1) => Ok(ColumnGroup::Row),
        Some(n) if n > 0 => Ok(ColumnGroup::Columns(n as usize)),
        Some(n) => Err(format!("groups of {n} columns")),
        None => Err("groups of unknown size".to_string()),
    }
}

fn gptq(config: &Map<String, Value>) -> Result<Packing, String> {
    let bits = match number(config, "bits") {
        Some(bits @ 2..=8) => bits as u32,
        Some(other) => return Err(format!("GPTQ of {other} bits; 2 to 8 are supported")),
        None => return Err("GPTQ without a number of `bits`".to_string()),
    };
    let form = text(config, "checkpoint_format").or_else(|| text(config, "format"));
    let zeros = match form {
        None | Some("gptq") if is_by_gptqmodel(config) => ZeroStorage::LessOneByWord,
        None | Some("gptq") => ZeroStorage::LessOne,
        Some("gptq_v2" | "gptq_p") => ZeroStorage::Equal,
        Some(other) => return Err(format!("GPTQ's checkpoint_format `{other}`")),
    };
    Ok(Packing::Gptq {
        bits,
        group: group(number(config, "group_size"))?,
        zeros,
        is_planar: form == Some("gptq_p"),
    })
}

/// Whether GPTQModel wrote the folder. GPTQModel subtracts 1 from all zero points of a word by one
/// subtraction.
fn is_by_gptqmodel(config: &Map<String, Value>) -> bool {
    let names = |value: &Value| value.as_str().is_some_and(|s| s.starts_with("gptqmodel"));
    let meta = config.get("meta").and_then(|meta| meta.get("quantizer"));
    meta.is_some_and(|found| match found {
        Value::Array(all) => all.iter().any(names),
        one => names(one),
    })
}

fn awq(config: &Map<String, Value>) -> Result<Packing, String> {
    if number(config, "bits").or(number(config, "w_bit")) != Some(4) {
        return Err("AWQ of other than 4 bits".to_string());
    }
    let version = text(config, "version");
    if let Some(version) = version.filter(|v| !v.eq_ignore_ascii_case("gemm")) {
        return Err(format!(
            "AWQ's version `{}`; only `gemm` is supported",
            clip(version)
        ));
    }
    let size = number(config, "group_size").or(number(config, "q_group_size"));
    Ok(Packing::Awq {
        group: group(size)?,
    })
}

fn bitsandbytes(config: &Map<String, Value>) -> Result<Packing, String> {
    let is_set = |key: &str| config.get(key).and_then(Value::as_bool) == Some(true);
    if is_set("load_in_4bit") && is_set("load_in_8bit") {
        return Err("bitsandbytes with both load_in_4bit and load_in_8bit".to_string());
    }
    // The result is the same for both types, because each weight also stores its own type.
    match text(config, "bnb_4bit_quant_type") {
        None | Some("nf4" | "fp4") => Ok(Packing::Bitsandbytes),
        Some(other) => Err(format!("bitsandbytes' bnb_4bit_quant_type `{other}`")),
    }
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
    let bits = number(weights, "num_bits");
    let is_float = text(weights, "type") == Some("float");
    match (text(config, "format"), is_float, bits) {
        (Some("pack-quantized"), false, Some(bits @ 1..=8)) => {
            Ok(Packing::Words(integers(weights, bits)?))
        }
        (Some("int-quantized" | "naive-quantized"), false, Some(bits @ 1..=8)) => {
            Ok(Packing::Bytes(integers(weights, bits)?))
        }
        (Some("float-quantized" | "naive-quantized"), true, Some(8)) => Ok(Packing::Float8),
        (Some("nvfp4-pack-quantized"), true, Some(4)) => Ok(Packing::Nvfp4),
        (Some("mxfp4-pack-quantized"), true, Some(4)) => Ok(Packing::Mxfp4),
        (format, ..) => {
            let format = clip(format.unwrap_or("none"));
            let bits = bits.map_or("unknown".to_string(), |bits| bits.to_string());
            Err(format!(
                "compressed-tensors' format `{format}` of {bits} bits"
            ))
        }
    }
}

/// Reads the arguments of integer weights.
fn integers(weights: &Map<String, Value>, bits: i64) -> Result<IntegerSpec, String> {
    let tile = match weights.get("block_structure").filter(|v| !v.is_null()) {
        None => None,
        Some(found) => {
            let size = |at: usize| found.get(at).and_then(Value::as_u64).filter(|n| *n > 0);
            let (Some(rows), Some(columns)) = (size(0), size(1)) else {
                return Err(format!("the block_structure {found}"));
            };
            Some([rows as usize, columns as usize])
        }
    };
    Ok(IntegerSpec {
        bits: bits as u32,
        has_zeros: weights.get("symmetric").and_then(Value::as_bool) == Some(false),
        tile,
    })
}
