//! Matrices as bitsandbytes stores them.
//!
//! 4 bits: `weight` has two codes per byte, the first in the high half, in row-major order.
//! `weight.quant_map` has the 16 values of the codes, `weight.absmax` a factor per block of
//! elements. The factors may be quantized as well (`nested_*`). A JSON object in
//! `weight.quant_state.bitsandbytes__nf4` (or `__fp4`) has shape, block sizes and dtype.
//!
//! 8 bits: `weight` has signed bytes, `SCB` the maximum magnitude of each row.

use serde::Deserialize;
use tercet_ir::DType;
use tercet_ir::MAX_RANK;

use super::dense::{dense, float_dtype};
use super::matrix::{PackedMatrixTensors, SafeTensorRef};
use crate::foreign::clip;
use crate::safetensors::SafeDtype;
use crate::weight::ModelWeight;

/// Name ends of the tensors of a 4-bit weight, after `weight.`.
const PARTS: [&str; 4] = ["absmax", "quant_map", "nested_absmax", "nested_quant_map"];
/// Name ends of the JSON objects, after `weight.`, each with the type of the codes.
const STATES: [(&str, &str); 2] = [
    ("quant_state.bitsandbytes__nf4", "nf4"),
    ("quant_state.bitsandbytes__fp4", "fp4"),
];
/// The block sizes that bitsandbytes supports are the powers of two in this range.
const BLOCKS: std::ops::RangeInclusive<usize> = 32..=4096;
/// Approximate number of elements that are converted at a time.
const CHUNK: usize = 1 << 14;

/// The JSON object of a 4-bit weight.
#[derive(Deserialize)]
struct QuantState {
    quant_type: Option<String>,
    blocksize: usize,
    dtype: String,
    shape: Vec<usize>,
    nested_blocksize: Option<usize>,
    nested_offset: Option<f64>,
}

/// The weight to which a stored tensor belongs.
pub(super) fn weight_of(name: &str) -> Option<String> {
    if let Some((base, end)) = name.rsplit_once(".weight.") {
        let is_part = PARTS.contains(&end) || end.starts_with("quant_state.");
        return is_part.then(|| format!("{base}.weight"));
    }
    let (base, end) = name.rsplit_once('.')?;
    matches!(end, "SCB" | "weight_format").then(|| format!("{base}.weight"))
}

/// The tensor `weight` of quantized values; `find` looks up a tensor by the end of its name.
/// Unquantized weights are floats without other tensors.
pub(super) fn codes<'a>(
    find: impl Fn(&str) -> Option<SafeTensorRef<'a>>,
) -> Option<SafeTensorRef<'a>> {
    let has_parts = has_state(&find) || find("SCB").is_some();
    let is_codes = |stored: &SafeTensorRef<'_>| {
        has_parts || matches!(stored.1.dtype(), SafeDtype::U8 | SafeDtype::I8)
    };
    find("weight").filter(is_codes)
}

/// Whether a weight has tensors of the 4-bit formats.
fn has_state<'a>(find: impl Fn(&str) -> Option<SafeTensorRef<'a>>) -> bool {
    let states = STATES.iter().map(|(end, _)| *end);
    let mut ends = PARTS.into_iter().chain(states);
    ends.any(|end| find(&format!("weight.{end}")).is_some())
}

/// Checks a number of elements that share a factor.
fn block_size(key: &str, size: usize) -> Result<usize, String> {
    match size.is_power_of_two() && BLOCKS.contains(&size) {
        true => Ok(size),
        false => Err(format!(
            "the {key} {size} is not a power of two from {} to {}",
            BLOCKS.start(),
            BLOCKS.end()
        )),
    }
}

impl PackedMatrixTensors<'_> {
    pub(super) fn bitsandbytes(&self) -> Result<ModelWeight, String> {
        let is_bytes = self.codes.1.dtype() == SafeDtype::I8;
        match has_state(|end| self.find_part(end)) || !is_bytes {
            true => self.four_bits(),
            false => self.eight_bits(),
        }
    }

    fn four_bits(&self) -> Result<ModelWeight, String> {
        let state = self.state()?;
        let dtype = float_dtype(&state.dtype)
            .ok_or_else(|| format!("the dtype `{}` of its quant_state", clip(&state.dtype)))?;
        let block = block_size("blocksize", state.blocksize)?;
        let counted = state
            .shape
            .iter()
            .try_fold(1usize, |n, len| n.checked_mul(*len));
        let (file, info) = self.codes;
        let codes = file.data(info);
        let count = counted
            .filter(|n| *n > 0 && n.div_ceil(2) == codes.len() && state.shape.len() <= MAX_RANK)
            .ok_or_else(|| {
                format!(
                    "`weight` has {} bytes, which do not match two values per byte of the shape \
                     {:?} of its quant_state",
                    codes.len(),
                    state.shape
                )
            })?;
        let map = self.table("weight.quant_map", 16)?;
        let factors = self.factors(&state, count.div_ceil(block))?;
        let chunk = block * (CHUNK / block).max(1);
        dense(dtype, &state.shape, chunk, |first, to| {
            let blocks = to.chunks_mut(block).zip(&factors[first / block..]);
            for (at, (to, factor)) in blocks.enumerate() {
                let mut values = [0.0; 16];
                for (value, level) in values.iter_mut().zip(&map) {
                    *value = level * factor;
                }
                let codes = &codes[(first + at * block) / 2..];
                for (to, code) in to.chunks_mut(2).zip(codes) {
                    to[0] = values[usize::from(code >> 4)];
                    if let Some(to) = to.get_mut(1) {
                        *to = values[usize::from(code & 15)];
                    }
                }
            }
        })
    }

    /// The JSON object of a 4-bit weight.
    fn state(&self) -> Result<QuantState, String> {
        let found = STATES.iter().find_map(|(end, kind)| {
            let stored = self.find_part(&format!("weight.{end}"))?;
            Some((stored, *end, *kind))
        });
        let Some(((file, info), end, kind)) = found else {
            return Err(format!("has no `weight.{}`", STATES[0].0));
        };
        let state: QuantState = serde_json::from_slice(file.data(info))
            .map_err(|e| format!("`weight.{end}` is not the JSON object of a weight: {e}"))?;
        match state.quant_type.as_deref() {
            None => Ok(state),
            Some(own) if own == kind => Ok(state),
            Some(other) => Err(format!(
                "`weight.{end}` has the quant_type `{}`; expected `{kind}`",
                clip(other)
            )),
        }
    }

    /// `len` finite numbers.
    fn table(&self, end: &str, len: usize) -> Result<Vec<f32>, String> {
        let found = self.scales(end)?;
        match found.values.len() == len {
            true => Ok(found.values),
            false => Err(format!(
                "`{end}` has {} elements; expected {len}",
                found.values.len()
            )),
        }
    }

    /// The factors of `count` blocks.
    fn factors(&self, state: &QuantState, count: usize) -> Result<Vec<f32>, String> {
        const NAME: &str = "weight.absmax";
        let (file, info) = self.part(NAME)?;
        if info.dtype() != SafeDtype::U8 {
            return self.table(NAME, count);
        }
        let codes = file.data(info);
        if codes.len() != count {
            return Err(format!(
                "`{NAME}` has {} elements; expected {count}",
                codes.len()
            ));
        }
        let (Some(size), Some(offset)) = (state.nested_blocksize, state.nested_offset) else {
            return Err("its quant_state has no nested_blocksize or nested_offset".to_string());
        };
        let size = block_size("nested_blocksize", size)?;
        let map = self.table("weight.nested_quant_map", 256)?;
        let factors = self.table("weight.nested_absmax", count.div_ceil(size))?;
        let offset = offset as f32;
        let of = |(at, code): (usize, &u8)| map[usize::from(*code)] * factors[at / size] + offset;
        let found: Vec<f32> = codes.iter().enumerate().map(of).collect();
        match found.iter().all(|x| x.is_finite()) {
            true => Ok(found),
            false => Err(format!("`{NAME}` has values that are not finite")),
        }
    }

    fn eight_bits(&self) -> Result<ModelWeight, String> {
        /// 1 / 127, the scale of a row of maximum magnitude 1.
        const UNIT: f32 = 1.0 / 127.0;
        let (bytes, [rows, columns]) = self.matrix(self.codes, SafeDtype::I8)?;
        if self.find_part("weight_format").is_some() {
            let (format, _) = self.integers("weight_format")?;
            if format[..] != [0] {
                return Err(format!(
                    "`weight_format` is {format:?}, a layout of one GPU; expected 0, row-major"
                ));
            }
        }
        let factors = self.table("SCB", rows)?;
        // A row's factor is its greatest magnitude, so F16 fits if all factors do. Rounding to F16
        // loses less than the 8-bit quantization did.
        let is_half = factors.iter().all(|x| x.abs() <= f32::from(half::f16::MAX));
        let dtype = if is_half { DType::F16 } else { DType::F32 };
        dense(dtype, &[rows, columns], columns, |first, to| {
            let factor = factors[first / columns];
            for (to, byte) in to.iter_mut().zip(&bytes[first..]) {
                *to = f32::from(*byte as i8) * factor * UNIT;
            }
        })
    }
}
