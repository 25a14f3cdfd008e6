//! Conversion of quantized values and scales in other layouts to the blocks of a [`Scheme`].

use rayon::prelude::*;
use tercet_ir::Scheme;

use super::integers::{ColumnGroups, IntegerMatrix};

/// Number of weights per block of integers or of 8-bit floats.
const BLOCK: usize = 128;
/// Minimum number of weights that share a scale within a block.
const GROUP: usize = 32;

fn whole_blocks(columns: usize, block: usize) -> Result<usize, String> {
    match columns % block {
        0 => Ok(columns / block),
        _ => Err(format!(
            "{columns} columns are not a multiple of {block}, the length of a block"
        )),
    }
}

/// Converts integers to blocks, if the blocks represent every value exactly.
pub(super) fn integers(matrix: &IntegerMatrix<'_>) -> Option<(Scheme, Vec<u8>)> {
    let [rows, columns] = matrix.shape;
    let ColumnGroups::Runs(group) = matrix.groups else {
        return None;
    };
    if columns % BLOCK != 0 || group % GROUP != 0 {
        return None;
    }
    // Codes of fewer bits than the blocks have are shifted to the middle of the blocks' range.
    let wide: u32 = if matrix.bits <= 4 { 4 } else { 8 };
    let middle = 1 << (wide - 1);
    let shift = middle - (1 << (matrix.bits - 1));
    let all = |f: &(dyn Fn(usize, usize) -> bool + Sync)| {
        (0..rows)
            .into_par_iter()
            .all(|row| (0..matrix.group_count).all(|at| f(row, at)))
    };
    let zero = |row: usize, at: usize| (matrix.zero)(row, at) + shift;
    let is_exact = |scale: f32| half::f16::from_f32(scale).to_f32() == scale;
    if !all(&|row, at| is_exact((matrix.scale)(row, at)) && (0..1 << wide).contains(&zero(row, at)))
    {
        return None;
    }
    let is_symmetric = all(&|row, at| zero(row, at) == middle);
    let scheme = match (wide, is_symmetric) {
        (4, true) => Scheme::Int4,
        (4, false) => Scheme::Int4Asym,
        (_, true) => Scheme::Int8,
        (_, false) => Scheme::Int8Asym,
    };
    let row_bytes = columns / BLOCK * scheme.block_bytes();
    let mut bytes = vec![0; rows * row_bytes];
    let fill = |(row, to): (usize, &mut [u8])| {
        let mut codes = [0; BLOCK];
        for (block, to) in to.chunks_exact_mut(scheme.block_bytes()).enumerate() {
            let first = block * BLOCK;
            let mut to = to.iter_mut();
            let mut put = |byte: u8| {
                if let Some(to) = to.next() {
                    *to = byte;
                }
            };
            let starts = (first..first + BLOCK).step_by(GROUP);
            for column in starts.clone() {
                let scale = half::f16::from_f32((matrix.scale)(row, column / group));
                scale.to_le_bytes().into_iter().for_each(&mut put);
            }
            if !is_symmetric {
                starts.for_each(|column| put(zero(row, column / group) as u8));
            }
            for (at, to) in codes.iter_mut().enumerate() {
                *to = (matrix.code)(row, first + at) + shift as u8;
            }
            match wide {
                4 => nibbles(&codes, GROUP).for_each(put),
                // Without zero points, values are stored as signed.
                _ if is_symmetric => codes.iter().for_each(|c| put(c ^ 0x80)),
                _ => codes.iter().for_each(|c| put(*c)),
            }
        }
    };
    bytes
        .par_chunks_exact_mut(row_bytes.max(1))
        .enumerate()
        .for_each(fill);
    Some((scheme, bytes))
}

/// Packs each group of 4-bit values: the first half into the low nibbles, the second half into the
/// high nibbles.
fn nibbles(codes: &[u8], group: usize) -> impl Iterator<Item = u8> {
    codes.chunks_exact(group).flat_map(|group| {
        let (low, high) = group.split_at(group.len() / 2);
        low.iter().zip(high).map(|(l, h)| l | h << 4)
    })
}

/// Converts 8-bit floats. The scale of a row and column must be constant within a block.
pub(super) fn float8(
    codes: &[u8],
    [rows, columns]: [usize; 2],
    scale: &dyn Fn(usize, usize) -> f32,
) -> Result<Vec<u8>, String> {
    let blocks = whole_blocks(columns, BLOCK)?;
    let mut bytes = Vec::with_capacity(rows * blocks * (BLOCK + 4));
    for (at, block) in codes.chunks_exact(BLOCK).enumerate() {
        let (row, first) = (at / blocks, at % blocks * BLOCK);
        bytes.extend(scale(row, first).to_le_bytes());
        bytes.extend(block);
    }
    Ok(bytes)
}

/// Converts 4-bit floats, stored as two adjacent values per byte with a one-byte scale per `group`.
/// A block has `groups` groups.
pub(super) fn float4(
    codes: &[u8],
    scales: &[u8],
    [rows, columns]: [usize; 2],
    group: usize,
    groups: usize,
) -> Result<Vec<u8>, String> {
    whole_blocks(columns, group * groups)?;
    let mut bytes = Vec::with_capacity(rows * columns / 2 + scales.len());
    let blocks = codes.chunks_exact(group * groups / 2);
    for (codes, scales) in blocks.zip(scales.chunks_exact(groups)) {
        bytes.extend(scales);
        let apart: Vec<u8> = codes
            .iter()
            .flat_map(|byte| [byte & 15, byte >> 4])
            .collect();
        bytes.extend(nibbles(&apart, group));
    }
    Ok(bytes)
}
