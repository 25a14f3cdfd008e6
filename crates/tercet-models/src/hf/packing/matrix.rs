//! Conversion of the tensors of one quantized matrix to blocks, after consistency checks.

use tercet::{DType, Scheme, Tensor, TensorType};

use super::super::HfWeights;
use super::Packing;
use super::pack::{self, QuantCodeFn, QuantGroupGrid};
use crate::safetensors::{SafeDtype, SafeTensorInfo, SafeTensors};
use crate::weight::{ModelWeight, safetensors_tensor};

type SafeTensorRef<'a> = (&'a SafeTensors, &'a SafeTensorInfo);

/// The tensors of one quantized matrix.
pub(super) struct PackedMatrixTensors<'a> {
    weights: &'a HfWeights,
    /// The tensor name up to `.weight`.
    base: &'a str,
    /// The quantized values.
    codes: SafeTensorRef<'a>,
}

/// Scales by row and group of columns.
struct GroupScales {
    values: Vec<f32>,
    shape: [usize; 2],
}

impl<'a> PackedMatrixTensors<'a> {
    /// The parts of the weight of this name, if it is stored as several tensors.
    pub(super) fn find(weights: &'a HfWeights, name: &'a str) -> Option<PackedMatrixTensors<'a>> {
        let base = name.strip_suffix(".weight")?;
        let find = |end: &str| weights.find_as_read(&format!("{base}.{end}"));
        let has_scale = || {
            find("weight_scale")
                .or_else(|| find("weight_scale_inv"))
                .is_some()
        };
        let narrow = [SafeDtype::I8, SafeDtype::F8_E4M3, SafeDtype::F8_E5M2];
        // A narrow type without a scale belongs to a damaged file; its values are not plain
        // numbers.
        let is_codes =
            |stored: &SafeTensorRef<'_>| has_scale() || narrow.contains(&stored.1.dtype());
        let codes = find("qweight")
            .or_else(|| find("weight_packed"))
            .or_else(|| find("weight").filter(is_codes))?;
        Some(PackedMatrixTensors {
            weights,
            base,
            codes,
        })
    }

    /// The matrix as blocks `[rows, row bytes]`.
    pub(super) fn weight(&self, packing: Packing) -> Result<ModelWeight, String> {
        let made = match packing {
            Packing::Gptq {
                bits,
                group,
                less_one,
            } => self.gptq(bits, group, less_one),
            Packing::Awq { group } => self.awq(group),
            Packing::Float8 => self.float8(),
            Packing::Words { bits } => self.words(bits),
            Packing::Bytes => self.bytes(),
            Packing::Nvfp4 => self.nvfp4(),
            Packing::Mxfp4 => self.mxfp4(),
        };
        made.map_err(|e| format!("`{}`: {e}", self.base))
    }

    fn part(&self, end: &str) -> Result<SafeTensorRef<'a>, String> {
        let found = self.weights.find_as_read(&format!("{}.{end}", self.base));
        found.ok_or_else(|| format!("has no `{end}`"))
    }

    /// The bytes of a matrix of this dtype, and its shape.
    fn matrix(
        &self,
        (file, info): SafeTensorRef<'a>,
        dtype: SafeDtype,
    ) -> Result<(&'a [u8], [usize; 2]), String> {
        let &[rows, columns] = info.shape() else {
            return Err(format!("`{}` is not a matrix", info.name()));
        };
        match info.dtype() == dtype {
            true => Ok((file.data(info), [rows, columns])),
            false => {
                let (found, wanted) = (info.dtype().name(), dtype.name());
                Err(format!("`{}` is {found}; expected {wanted}", info.name()))
            }
        }
    }

    fn words_of(&self, stored: SafeTensorRef<'a>) -> Result<(Vec<u32>, [usize; 2]), String> {
        let (bytes, shape) = self.matrix(stored, SafeDtype::I32)?;
        let (words, _) = bytes.as_chunks::<4>();
        let words = words.iter().map(|word| u32::from_le_bytes(*word));
        Ok((words.collect(), shape))
    }

    /// Reads scales of any float type. A vector or a single number counts as a matrix of one
    /// column.
    fn scales(&self, end: &str) -> Result<GroupScales, String> {
        let (file, info) = self.part(end)?;
        let shape = match *info.shape() {
            [] => [1, 1],
            [rows] => [rows, 1],
            [rows, columns] => [rows, columns],
            _ => return Err(format!("`{end}` has {} axes", info.shape().len())),
        };
        let tensor = safetensors_tensor(file, info).map_err(|e| e.to_string())?;
        if !matches!(tensor.dtype(), DType::F32 | DType::F16 | DType::BF16) {
            return Err(format!("`{end}` is {}", tensor.dtype()));
        }
        let values: Vec<f32> = tensor.to_f64s().iter().map(|x| *x as f32).collect();
        match values.iter().all(|x| x.is_finite()) {
            true => Ok(GroupScales { values, shape }),
            false => Err(format!("`{end}` has values that are not finite")),
        }
    }

    /// Checks that the group index of each column follows from its position (no activation
    /// reordering).
    fn check_order(&self, group: usize) -> Result<(), String> {
        let Ok((file, info)) = self.part("g_idx") else {
            return Ok(());
        };
        let index = safetensors_tensor(file, info).map_err(|e| e.to_string())?;
        let is_own = |(at, g): (usize, i64)| usize::try_from(g).is_ok_and(|g| g == at / group);
        match index.to_i64s().into_iter().enumerate().all(is_own) {
            true => Ok(()),
            false => {
                let what = "columns are in the order of their activations (desc_act); use a \
                 checkpoint without desc_act";
                Err(what.to_string())
            }
        }
    }

    fn gptq(&self, bits: u32, group: usize, less_one: bool) -> Result<ModelWeight, String> {
        self.check_order(group)?;
        let per = (32 / bits) as usize;
        let (words, [word_rows, rows]) = self.words_of(self.codes)?;
        let (zeros, zero_shape) = self.words_of(self.part("qzeros")?)?;
        let columns = word_rows * per;
        let scales = self.scales("scales")?;
        let groups = columns.div_ceil(group);
        expect("scales", scales.shape, [groups, rows])?;
        expect("qzeros", zero_shape, [groups, rows.div_ceil(per)])?;
        let mask = (1 << bits) - 1;
        let code = |row: usize, column: usize| {
            (words[column / per * rows + row] >> (bits as usize * (column % per)) & mask) as u8
        };
        let zero = |row: usize, at: usize| {
            let word = zeros[at * zero_shape[1] + row / per];
            (word >> (bits as usize * (row % per)) & mask) + u32::from(less_one)
        };
        let grid = QuantGroupGrid {
            group,
            scale: &|row, at| scales.values[at * rows + row],
            zero: &zero,
        };
        integers([rows, columns], bits, &code, &grid)
    }

    fn awq(&self, group: usize) -> Result<ModelWeight, String> {
        /// Position of each row within its word.
        const PLACES: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];
        let (words, [columns, word_rows]) = self.words_of(self.codes)?;
        let (zeros, zero_shape) = self.words_of(self.part("qzeros")?)?;
        let rows = word_rows * 8;
        let scales = self.scales("scales")?;
        let groups = columns.div_ceil(group);
        expect("scales", scales.shape, [groups, rows])?;
        expect("qzeros", zero_shape, [groups, word_rows])?;
        let of = |words: &[u32], row: usize, at: usize| {
            words[at * word_rows + row / 8] >> (4 * PLACES[row % 8]) & 15
        };
        let grid = QuantGroupGrid {
            group,
            scale: &|row, at| scales.values[at * rows + row],
            zero: &|row, at| of(&zeros, row, at),
        };
        let code = |row: usize, column: usize| of(&words, row, column) as u8;
        integers([rows, columns], 4, &code, &grid)
    }

    /// Scales by row and group; the tensor determines the number of groups.
    fn by_row(&self, rows: usize, columns: usize) -> Result<(GroupScales, usize), String> {
        let scales = self.scales("weight_scale")?;
        let groups = scales.shape[1];
        let group = columns.checked_div(groups).unwrap_or(0);
        if scales.shape[0] != rows || group * groups != columns || group % 32 != 0 {
            let found = scales.shape;
            return Err(format!(
                "`weight_scale` has shape {found:?}, which does not match a matrix of {rows} x \
                 {columns}"
            ));
        }
        Ok((scales, group))
    }

    fn words(&self, bits: u32) -> Result<ModelWeight, String> {
        let per = (32 / bits) as usize;
        let (words, [rows, word_columns]) = self.words_of(self.codes)?;
        let columns = word_columns * per;
        let (scales, group) = self.by_row(rows, columns)?;
        let mask = (1 << bits) - 1;
        let code = |row: usize, column: usize| {
            let word = words[row * word_columns + column / per];
            (word >> (bits as usize * (column % per)) & mask) as u8
        };
        let grid = QuantGroupGrid {
            group,
            scale: &|row, at| scales.values[row * scales.shape[1] + at],
            zero: &|_, _| 1 << (bits - 1),
        };
        integers([rows, columns], bits, &code, &grid)
    }

    fn bytes(&self) -> Result<ModelWeight, String> {
        let (bytes, [rows, columns]) = self.matrix(self.codes, SafeDtype::I8)?;
        let (scales, group) = self.by_row(rows, columns)?;
        let grid = QuantGroupGrid {
            group,
            scale: &|row, at| scales.values[row * scales.shape[1] + at],
            zero: &|_, _| 128,
        };
        let code = |row: usize, column: usize| bytes[row * columns + column] ^ 0x80;
        integers([rows, columns], 8, &code, &grid)
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

fn expect(end: &str, found: [usize; 2], wanted: [usize; 2]) -> Result<(), String> {
    match found == wanted {
        true => Ok(()),
        false => Err(format!("`{end}` has shape {found:?}; expected {wanted:?}")),
    }
}

/// Converts integers with a scale per group to blocks. Zero points are omitted if all are half the
/// range.
fn integers(
    shape: [usize; 2],
    bits: u32,
    code: QuantCodeFn<'_>,
    grid: &QuantGroupGrid<'_>,
) -> Result<ModelWeight, String> {
    let (scheme, blocks) = pack::integers(shape, bits, code, grid)?;
    weight(scheme, blocks, shape)
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
