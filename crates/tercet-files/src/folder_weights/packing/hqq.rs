//! Matrices as HQQ and transformers store them.
//!
//! The matrix is reshaped to `[groups, group size]` (axis 1) or `[group size, groups]` (axis 0).
//! `W_q` packs several of its rows into one: the first part of the rows into the high bits, the
//! last part into the low bits. A weight is `(code - zero) scale`, and zero points are floats. One
//! tensor per setting has the number of bits, the group size, the axis and the packing.

use tercet_ir::DType;

use super::dense::{dense, float_dtype, round_to};
use super::integers::{ColumnGroups, IntegerMatrix};
use super::matrix::PackedMatrixTensors;
use crate::foreign::clip;
use crate::weight::ModelWeight;

/// Name end of the quantized values.
pub(super) const CODES: &str = "W_q";

/// Name ends of the tensors of a weight.
const PARTS: [&str; 20] = [
    CODES,
    "nbits",
    "group_size",
    "shape",
    "scale",
    "zero",
    "zero_scale",
    "axis",
    "packing",
    "unpack_view_dtype",
    "view_as_float",
    "quant_scale",
    "quant_zero",
    "compute_dtype",
    "offload_meta",
    "encoded_state_dict",
    "stores_quant_config",
    "channel_wise",
    "optimize",
    "round_zero",
];

/// The weight to which a stored tensor belongs.
pub(super) fn weight_of(name: &str) -> Option<String> {
    let (base, end) = name.rsplit_once('.')?;
    PARTS.contains(&end).then(|| format!("{base}.weight"))
}

/// The packing of rows.
#[derive(Clone, Copy)]
struct RowPacking {
    bits: u32,
    /// Number of matrix rows that one packed row contains.
    parts: usize,
    /// Bytes of a packed value.
    bytes: usize,
}

impl RowPacking {
    fn from_name(name: &str) -> Option<RowPacking> {
        let (bits, parts, bytes) = match name {
            "8bit_u8" => (8, 1, 1),
            "4bit_u8" => (4, 2, 1),
            "3bit_32" => (3, 10, 4),
            "2bit_u8" => (2, 4, 1),
            "1bit_u8" => (1, 8, 1),
            _ => return None,
        };
        Some(RowPacking { bits, parts, bytes })
    }

    /// The packing of codes with this number of bits.
    fn of_bits(bits: f64) -> Option<RowPacking> {
        let name = match bits {
            5.0 | 6.0 | 8.0 => "8bit_u8",
            4.0 => "4bit_u8",
            3.0 => "3bit_32",
            // Stored as F32.
            x if x == 2.0 || (x - 1.58).abs() < 1e-3 => "2bit_u8",
            1.0 => "1bit_u8",
            _ => return None,
        };
        RowPacking::from_name(name)
    }
}

/// The codes of the reshaped matrix.
struct RowPackedCodes<'a> {
    bytes: &'a [u8],
    packing: RowPacking,
    /// Shape of the reshaped matrix.
    shape: [usize; 2],
    /// Number of rows of `W_q`.
    packed_rows: usize,
}

impl RowPackedCodes<'_> {
    /// The code at a row and column of the reshaped matrix.
    fn get(&self, row: usize, column: usize) -> u8 {
        let RowPacking { bits, parts, bytes } = self.packing;
        let (part, row) = (row / self.packed_rows, row % self.packed_rows);
        let first = (row * self.shape[1] + column) * bytes;
        let stored = self.bytes[first..first + bytes].iter().rev();
        let value = stored.fold(0u32, |value, byte| value << 8 | u32::from(*byte));
        let shift = bits * (parts - 1 - part) as u32;
        (value >> shift & ((1 << bits) - 1)) as u8
    }
}

impl PackedMatrixTensors<'_> {
    pub(super) fn hqq(&self) -> Result<ModelWeight, String> {
        for setting in ["quant_scale", "quant_zero"] {
            if self.find_part(setting).is_some() && self.number(setting)? != 0.0 {
                return Err(format!("`{setting}`: quantized scales and zero points"));
            }
        }
        let (shape, _) = self.integers("shape")?;
        let sizes: Vec<usize> = shape
            .iter()
            .filter_map(|n| usize::try_from(*n).ok())
            .collect();
        let (&[rows, columns], 2) = (sizes.as_slice(), shape.len()) else {
            return Err(format!("`shape` is {shape:?}; expected rows and columns"));
        };
        let count = rows.checked_mul(columns).filter(|n| *n > 0);
        let count = count.ok_or_else(|| format!("`shape` is {shape:?}"))?;
        let group = self.number("group_size")?;
        if group < 1.0 || group.fract() != 0.0 || count as f64 % group != 0.0 {
            return Err(format!(
                "`group_size` is {group}; expected a divisor of the {count} weights"
            ));
        }
        let group = group as usize;
        let groups = count / group;
        // Whether a group is a row of the reshaped matrix.
        let (reshaped, is_row) = match self.number("axis")? {
            1.0 => ([groups, group], true),
            0.0 => ([group, groups], false),
            other => return Err(format!("`axis` is {other}; expected 0 or 1")),
        };
        let codes = self.codes_by_rows(reshaped)?;
        let stored = self.scales("scale")?;
        let dtype = self.compute_dtype()?.unwrap_or(stored.dtype);
        let mut scales = self.of_groups("scale", groups)?;
        let mut zeros = self.of_groups("zero", groups)?;
        round_to(dtype, &mut scales);
        round_to(dtype, &mut zeros);
        let is_integer = |x: &f32| x.fract() == 0.0 && x.abs() < 1024.0;
        if is_row && columns.is_multiple_of(group) && zeros.iter().all(is_integer) {
            let each = columns / group;
            let code =
                |row: usize, column: usize| codes.get(row * each + column / group, column % group);
            return IntegerMatrix {
                shape: [rows, columns],
                bits: codes.packing.bits,
                dtype,
                groups: ColumnGroups::Runs(group),
                group_count: each,
                code: &code,
                scale: &|row, at| scales[row * each + at],
                zero: &|row, at| zeros[row * each + at] as i32,
            }
            .weight();
        }
        dense(dtype, &[rows, columns], columns, |first, to| {
            let place = |at: usize| [at / reshaped[1], at % reshaped[1]];
            let group_of = |[row, column]: [usize; 2]| if is_row { row } else { column };
            for (at, to) in to.iter_mut().enumerate() {
                let [row, column] = place(first + at);
                *to = f32::from(codes.get(row, column)) - zeros[group_of([row, column])];
            }
            // The reference implementation computes the difference in this dtype.
            round_to(dtype, to);
            for (at, to) in to.iter_mut().enumerate() {
                *to *= scales[group_of(place(first + at))];
            }
        })
    }

    /// One number.
    fn number(&self, end: &str) -> Result<f64, String> {
        let (file, info) = self.part(end)?;
        let tensor = crate::weight::safetensors_tensor(file, info).map_err(|e| e.to_string())?;
        match tensor.to_f64s()[..] {
            [number] if number.is_finite() => Ok(number),
            _ => Err(format!("`{end}` is not one number")),
        }
    }

    /// Text with one character per element.
    fn characters(&self, end: &str) -> Result<Option<String>, String> {
        if self.find_part(end).is_none() {
            return Ok(None);
        }
        let (codes, _) = self.integers(end)?;
        let letters = codes.iter().map(|c| u8::try_from(*c).ok().map(char::from));
        match letters.collect() {
            Some(text) => Ok(Some(text)),
            None => Err(format!("`{end}` is not a text")),
        }
    }

    fn codes_by_rows(&self, shape: [usize; 2]) -> Result<RowPackedCodes<'_>, String> {
        let packing = match self.characters("packing")? {
            Some(name) => RowPacking::from_name(&name)
                .ok_or_else(|| format!("the packing `{}`", clip(&name)))?,
            None => {
                let bits = self.number("nbits")?;
                RowPacking::of_bits(bits).ok_or_else(|| format!("`nbits` is {bits}"))?
            }
        };
        let (file, info) = self.codes;
        // If the rows do not fill the last word, only the packing of 3-bit codes pads it with
        // zeros; the other packings are then an error.
        let is_whole = shape[0].is_multiple_of(packing.parts) || packing.bits == 3;
        let packed_rows = shape[0].div_ceil(packing.parts);
        let wanted = packed_rows
            .checked_mul(shape[1])
            .and_then(|n| n.checked_mul(packing.bytes));
        let bytes = file.data(info);
        if !is_whole || wanted != Some(bytes.len()) {
            return Err(format!(
                "`{CODES}` has {} bytes, which do not match codes of {} bits in the shape {shape:?}",
                bytes.len(),
                packing.bits
            ));
        }
        Ok(RowPackedCodes {
            bytes,
            packing,
            shape,
            packed_rows,
        })
    }

    /// The numbers of all groups; a tensor with a single number applies to every group.
    fn of_groups(&self, end: &str, groups: usize) -> Result<Vec<f32>, String> {
        let found = self.scales(end)?.values;
        match found[..] {
            [one] => Ok(vec![one; groups]),
            _ if found.len() == groups => Ok(found),
            _ => Err(format!(
                "`{end}` has {} elements; expected {groups}",
                found.len()
            )),
        }
    }

    /// The dtype of the reference's arithmetic, if it is stored.
    fn compute_dtype(&self) -> Result<Option<DType>, String> {
        let Some(name) = self.characters("compute_dtype")? else {
            return Ok(None);
        };
        let bare = name.strip_prefix("torch.").unwrap_or(&name);
        match float_dtype(bare) {
            Some(dtype) => Ok(Some(dtype)),
            None => Err(format!("the compute_dtype `{}`", clip(&name))),
        }
    }
}
