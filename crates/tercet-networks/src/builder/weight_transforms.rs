//! Layout conversion of Hugging Face matrices that matmuls cannot use as stored. The module handles
//! transposed matrices, interleaved gate and up projections, and scales in a separate tensor. Each
//! conversion copies the matrix once.

use tercet::{DType, Scheme, Tensor, TensorType};

use super::weights::{WeightMatrix, bytes_error, matrix};
use super::{ModelError, Weights};
use tercet_files::weight::ModelWeight;

/// Weights per MXFP4 block.
pub const BLOCK: usize = 32;
/// Bytes of the weights of an MXFP4 block.
pub const CODES: usize = BLOCK / 2;

impl Weights {
    /// The matrix `[rows, columns]` of a tensor that is stored as `[columns, rows]`.
    pub(super) fn transposed_matrix(
        &self,
        name: &str,
        [rows, cols]: [usize; 2],
    ) -> Result<WeightMatrix, ModelError> {
        let stored = plain(name, self.shaped(name, &[cols, rows])?)?;
        let turned = transpose_rows(name, &stored, [1, rows, cols], false)?;
        let turned = turned.reshaped(&[rows, cols]);
        matrix(
            name,
            ModelWeight::Dense(turned.map_err(|e| bytes_error(name, e))?),
        )
    }

    /// Expert matrices `[experts, rows, columns]`. The source is a tensor `[experts, columns,
    /// rows]`, or an MXFP4 pair of tensors with quantized values and scales. With `pairs`, even
    /// rows come before odd rows.
    pub(super) fn transposed_experts(
        &self,
        (name, [blocks, scales]): (&str, &[String; 2]),
        [count, rows, cols]: [usize; 3],
        pairs: bool,
    ) -> Result<WeightMatrix, ModelError> {
        if !self.has(blocks) {
            let stored = plain(name, self.shaped(name, &[count, cols, rows])?)?;
            let turned = transpose_rows(name, &stored, [count, rows, cols], pairs)?;
            return matrix(name, ModelWeight::Dense(turned));
        }
        if !cols.is_multiple_of(BLOCK) {
            return Err(ModelError::Unsupported(format!(
                "tensor `{blocks}`: rows have {cols} weights; expected a multiple of the block size {BLOCK}"
            )));
        }
        let each = cols / BLOCK;
        let codes = plain(blocks, self.shaped(blocks, &[count, rows, each, CODES])?)?;
        let scales_of = plain(scales, self.shaped(scales, &[count, rows, each])?)?;
        for (name, tensor) in [(blocks, &codes), (scales, &scales_of)] {
            if tensor.dtype() != DType::U8 {
                return Err(ModelError::Unsupported(format!(
                    "tensor `{name}` is {}; expected u8 for the values and scales of MXFP4",
                    tensor.dtype()
                )));
            }
        }
        let ty = TensorType::new(DType::U8, &[count, rows, each * (1 + CODES)]);
        let mut packed = Tensor::zeros(ty).map_err(|e| bytes_error(name, e))?;
        let row_bytes = each * (1 + CODES);
        let to = packed.bytes_mut().chunks_exact_mut(rows * row_bytes);
        let from = codes.bytes().chunks_exact(rows * each * CODES);
        let scales = scales_of.bytes().chunks_exact(rows * each);
        for ((to, codes), scales) in to.zip(from).zip(scales) {
            for row in 0..rows {
                let at = place(row, rows, pairs) * row_bytes;
                let codes = codes[row * each * CODES..][..each * CODES].chunks_exact(CODES);
                let to = to[at..][..row_bytes].chunks_exact_mut(1 + CODES);
                for ((to, codes), scale) in to.zip(codes).zip(&scales[row * each..]) {
                    repack(codes, *scale, to);
                }
            }
        }
        Ok(WeightMatrix::Packed(Scheme::Mxfp4, packed))
    }
}

/// Repacks one MXFP4 block: the source packs adjacent weights into a byte, the result packs weight
/// `i` with weight `i + 16`.
pub fn repack(codes: &[u8], scale: u8, to: &mut [u8]) {
    let code = |i: usize| codes[i / 2] >> (4 * (i % 2)) & 0xF;
    to[0] = scale;
    for (i, to) in to[1..].iter_mut().enumerate() {
        *to = code(i) | code(i + CODES) << 4;
    }
}

/// Destination index of a row; with `pairs`, even rows come before odd rows.
fn place(row: usize, rows: usize, pairs: bool) -> usize {
    match pairs {
        true => row % 2 * (rows / 2) + row / 2,
        false => row,
    }
}

fn plain(name: &str, weight: ModelWeight) -> Result<Tensor, ModelError> {
    match weight {
        ModelWeight::Dense(tensor) => Ok(tensor),
        ModelWeight::Packed { scheme, .. } => Err(ModelError::Unsupported(format!(
            "tensor `{name}` is quantized in {} and cannot be transposed; expected f32, f16 or bf16",
            scheme.name()
        ))),
    }
}

/// Transposes `[count, columns, rows]` into `[count, rows, columns]`.
pub fn transpose_rows(
    name: &str,
    stored: &Tensor,
    [count, rows, cols]: [usize; 3],
    pairs: bool,
) -> Result<Tensor, ModelError> {
    let ty = TensorType::new(stored.dtype(), &[count, rows, cols]);
    let mut to = Tensor::zeros(ty).map_err(|e| bytes_error(name, e))?;
    let size = stored.dtype().size_bytes();
    let len = (rows * cols * size).max(1);
    let from = stored.bytes().chunks_exact(len);
    for (to, from) in to.bytes_mut().chunks_exact_mut(len).zip(from) {
        for row in 0..rows {
            let at = place(row, rows, pairs) * cols * size;
            for (col, to) in to[at..][..cols * size].chunks_exact_mut(size).enumerate() {
                to.copy_from_slice(&from[(col * rows + row) * size..][..size]);
            }
        }
    }
    Ok(to)
}

/// Reorders each F32 row of `[n, 2 m]`: even elements come before odd elements.
pub fn part_pairs(name: &str, tensor: &mut Tensor) -> Result<(), ModelError> {
    let len = tensor.shape().last().copied().unwrap_or(1).max(1);
    let elements = tensor.as_slice_mut::<f32>();
    for row in elements
        .map_err(|e| bytes_error(name, e))?
        .chunks_exact_mut(len)
    {
        let given = row.to_vec();
        for (i, x) in given.into_iter().enumerate() {
            row[place(i, len, true)] = x;
        }
    }
    Ok(())
}
