//! The tensors of one quantized matrix, and the conversion of float formats to blocks after
//! consistency checks.

use tercet_ir::{DType, Scheme, Tensor, TensorType};

use super::{Packing, bitsandbytes, hqq, pack};
use crate::folder_weights::HfWeights;
use crate::safetensors::{SafeDtype, SafeTensorInfo, SafeTensors};
use crate::weight::{ModelWeight, safetensors_tensor};

pub(super) type SafeTensorRef<'a> = (&'a SafeTensors, &'a SafeTensorInfo);

/// The tensors of one quantized matrix.
pub(super) struct PackedMatrixTensors<'a> {
    weights: &'a HfWeights,
    packing: Packing,
    /// The tensor name up to `.weight`.
    pub(super) base: &'a str,
    /// The quantized values.
    pub(super) codes: SafeTensorRef<'a>,
}

/// Scales by row and group of columns.
pub(super) struct GroupScales {
    pub(super) values: Vec<f32>,
    pub(super) shape: [usize; 2],
    pub(super) dtype: DType,
}

impl<'a> PackedMatrixTensors<'a> {
    /// The tensors of the weight `name`, if it is stored as several tensors.
    pub(super) fn find(weights: &'a HfWeights, name: &'a str) -> Option<PackedMatrixTensors<'a>> {
        let packing = weights.packing?;
        let base = name.strip_suffix(".weight")?;
        let find = |end: &str| weights.find_as_read(&format!("{base}.{end}"));
        let has_scale = || {
            find("weight_scale")
                .or_else(|| find("weight_scale_inv"))
                .is_some()
        };
        let narrow = [SafeDtype::I8, SafeDtype::F8_E4M3, SafeDtype::F8_E5M2];
        // A matrix of a narrow type whose scale is missing still counts as quantized, so that the
        // damaged file is an error and its codes are not read as numbers.
        let is_codes =
            |stored: &SafeTensorRef<'_>| has_scale() || narrow.contains(&stored.1.dtype());
        let codes = match packing {
            Packing::Bitsandbytes => bitsandbytes::codes(find),
            Packing::Hqq => find(hqq::CODES),
            _ => find("qweight")
                .or_else(|| find("weight_packed"))
                .or_else(|| find("weight").filter(is_codes)),
        };
        Some(PackedMatrixTensors {
            weights,
            packing,
            base,
            codes: codes?,
        })
    }

    /// The matrix as blocks `[rows, row bytes]`, or as floats.
    pub(super) fn weight(&self) -> Result<ModelWeight, String> {
        let made = match self.packing {
            Packing::Gptq {
                bits,
                group,
                zeros,
                is_planar,
            } => self.gptq(bits, group, zeros, is_planar),
            Packing::Awq { group } => self.awq(group),
            Packing::Float8 => self.float8(),
            Packing::Words(spec) => self.words(spec),
            Packing::Bytes(spec) => self.bytes(spec),
            Packing::Nvfp4 => self.nvfp4(),
            Packing::Mxfp4 => self.mxfp4(),
            Packing::Bitsandbytes => self.bitsandbytes(),
            Packing::Hqq => self.hqq(),
        };
        made.map_err(|e| format!("`{}`: {e}", self.base))
    }

    /// The tensor with this end of its name, if there is one.
    pub(super) fn find_part(&self, end: &str) -> Option<SafeTensorRef<'a>> {
        self.weights.find_as_read(&format!("{}.{end}", self.base))
    }

    pub(super) fn part(&self, end: &str) -> Result<SafeTensorRef<'a>, String> {
        self.find_part(end).ok_or_else(|| format!("has no `{end}`"))
    }

    /// The bytes of a matrix of this dtype, and its shape.
    pub(super) fn matrix(
        &self,
        (file, info): SafeTensorRef<'a>,
        dtype: SafeDtype,
    ) -> Result<(&'a [u8], [usize; 2]), String> {
        let &[rows, columns] = info.shape() else {
            return Err(format!("`{}` is not a matrix", info.name()));
        };
        if rows == 0 || columns == 0 {
            return Err(format!("`{}` has no elements", info.name()));
        }
        match info.dtype() == dtype {
            true => Ok((file.data(info), [rows, columns])),
            false => {
                let (found, wanted) = (info.dtype().name(), dtype.name());
                Err(format!("`{}` is {found}; expected {wanted}", info.name()))
            }
        }
    }

    pub(super) fn words_of(
        &self,
        stored: SafeTensorRef<'a>,
    ) -> Result<(Vec<u32>, [usize; 2]), String> {
        let (bytes, shape) = self.matrix(stored, SafeDtype::I32)?;
        let (words, _) = bytes.as_chunks::<4>();
        let words = words.iter().map(|word| u32::from_le_bytes(*word));
        Ok((words.collect(), shape))
    }

    /// Reads scales of any float type. A vector or a single number counts as a matrix of one
    /// column.
    pub(super) fn scales(&self, end: &str) -> Result<GroupScales, String> {
        let (file, info) = self.part(end)?;
        let shape = match *info.shape() {
            [] => [1, 1],
            [rows] => [rows, 1],
            [rows, columns] => [rows, columns],
            _ => return Err(format!("`{end}` has {} axes", info.shape().len())),
        };
        let tensor = safetensors_tensor(file, info).map_err(|e| e.to_string())?;
        let dtype = tensor.dtype();
        if !matches!(dtype, DType::F32 | DType::F16 | DType::BF16) {
            return Err(format!("`{end}` is {dtype}; expected f32, f16 or bf16"));
        }
        let values: Vec<f32> = tensor.to_f64s().iter().map(|x| *x as f32).collect();
        match values.iter().all(|x| x.is_finite()) {
            true => Ok(GroupScales {
                values,
                shape,
                dtype,
            }),
            false => Err(format!("`{end}` has values that are not finite")),
        }
    }

    /// Reads integers, or floats with integer values.
    pub(super) fn integers(&self, end: &str) -> Result<(Vec<i64>, &'a [usize]), String> {
        let (file, info) = self.part(end)?;
        let tensor = safetensors_tensor(file, info).map_err(|e| e.to_string())?;
        let values = tensor.to_f64s();
        match values.iter().find(|x| x.fract() != 0.0 || !x.is_finite()) {
            None => Ok((values.iter().map(|x| *x as i64).collect(), info.shape())),
            Some(found) => Err(format!("`{end}` has {found}; expected integers")),
        }
    }

    fn float8(&self) -> Result<ModelWeight, String> {
        let info = self.codes.1;
        let scheme = match info.dtype() {
            SafeDtype::F8_E4M3 => Scheme::Fp8E4m3,
            SafeDtype::F8_E5M2 => Scheme::Fp8E5m2,
            other => {
                return Err(format!(
                    "`weight` is {}, not F8_E4M3 or F8_E5M2",
                    other.name()
                ));
            }
        };
        let (bytes, [rows, columns]) = self.matrix(self.codes, info.dtype())?;
        let inverse = self.part("weight_scale_inv").is_ok();
        let end = if inverse {
            "weight_scale_inv"
        } else {
            "weight_scale"
        };
        let scales = self.scales(end)?;
        let [high, wide] = scales.shape;
        let tile = [tile(rows, high), tile(columns, wide)];
        let ([Some(row_tile), Some(column_tile)], true) = (tile, column_fits(tile[1], wide)) else {
            return Err(format!(
                "`{end}` has shape {:?}, which does not match a matrix of {rows} x {columns}",
                scales.shape
            ));
        };
        let scale =
            |row: usize, column: usize| scales.values[row / row_tile * wide + column / column_tile];
        let blocks = pack::float8(bytes, [rows, columns], &scale)?;
        weight(scheme, blocks, [rows, columns])
    }

    fn nvfp4(&self) -> Result<ModelWeight, String> {
        let (codes, [rows, half]) = self.matrix(self.codes, SafeDtype::U8)?;
        let (scales, shape) = self.matrix(self.part("weight_scale")?, SafeDtype::F8_E4M3)?;
        expect("weight_scale", shape, [rows, 2 * half / 16])?;
        let blocks = pack::float4(codes, scales, [rows, 2 * half], 16, 4)?;
        weight(Scheme::Nvfp4, blocks, [rows, 2 * half])
    }

    fn mxfp4(&self) -> Result<ModelWeight, String> {
        let (codes, [rows, half]) = self.matrix(self.codes, SafeDtype::U8)?;
        let (scales, shape) = self.matrix(self.part("weight_scale")?, SafeDtype::U8)?;
        expect("weight_scale", shape, [rows, 2 * half / 32])?;
        let blocks = pack::float4(codes, scales, [rows, 2 * half], 32, 1)?;
        weight(Scheme::Mxfp4, blocks, [rows, 2 * half])
    }

    /// The additional factor of all values of [`Packing::Nvfp4`].
    pub(super) fn factor(&self) -> Result<f32, String> {
        let global = self.scales("weight_global_scale")?;
        match global.values[..] {
            [global] if global != 0.0 && (1.0 / global).is_finite() => Ok(1.0 / global),
            _ => Err(format!(
                "`{}`: `weight_global_scale` is not a number to divide by",
                self.base
            )),
        }
    }
}

/// The number of rows or columns that share one scale: all of them, 1, or 128, the tile size of
/// such files.
fn tile(len: usize, scales: usize) -> Option<usize> {
    const TILE: usize = 128;
    match scales {
        1 => Some(len.max(1)),
        n if n == len => Some(1),
        n if n == len.div_ceil(TILE) => Some(TILE),
        _ => None,
    }
}

/// Whether the columns that share a scale are whole blocks.
fn column_fits(tile: Option<usize>, scales: usize) -> bool {
    scales == 1 || tile.is_some_and(|t| t % 128 == 0)
}

pub(super) fn expect(end: &str, found: [usize; 2], wanted: [usize; 2]) -> Result<(), String> {
    match found == wanted {
        true => Ok(()),
        false => Err(format!("`{end}` has shape {found:?}; expected {wanted:?}")),
    }
}

fn weight(
    scheme: Scheme,
    blocks: Vec<u8>,
    [rows, columns]: [usize; 2],
) -> Result<ModelWeight, String> {
    let row_bytes = columns / scheme.block_len() * scheme.block_bytes();
    let ty = TensorType::new(DType::U8, &[rows, row_bytes]);
    let blocks = Tensor::from_bytes(ty, &blocks).map_err(|e| e.to_string())?;
    Ok(ModelWeight::Packed {
        scheme,
        blocks,
        shape: vec![rows, columns],
    })
}
