//! Conversion of quantized values and scales in other layouts to the blocks of a [`Scheme`].

use tercet::Scheme;

/// Number of weights per block of integers or of 8-bit floats.
const BLOCK: usize = 128;
/// Minimum number of weights that share a scale within a block.
const GROUP: usize = 32;

/// The quantized value at a row and a column.
pub(super) type QuantCodeFn<'a> = &'a dyn Fn(usize, usize) -> u8;

/// Scales and zero points, by row and group of columns.
pub(super) struct QuantGroupGrid<'a> {
    /// Number of columns per group.
    pub(super) group: usize,
    pub(super) scale: &'a dyn Fn(usize, usize) -> f32,
    pub(super) zero: &'a dyn Fn(usize, usize) -> u32,
}

fn whole_blocks(columns: usize, block: usize) -> Result<usize, String> {
    match columns % block {
        0 => Ok(columns / block),
        _ => Err(format!(
            "{columns} columns are not a multiple of {block}, the length of a block"
        )),
    }
}

/// Converts a scale to binary16, if that is exact.
fn half_of(scale: f32) -> Result<[u8; 2], String> {
    let half = half::f16::from_f32(scale);
    match half.to_f32() == scale {
        true => Ok(half.to_le_bytes()),
        false => Err(format!(
            "the scale {scale:e} is not exact in F16, as integer blocks require"
        )),
    }
}

/// Converts integers of 4 or 8 bits with value `scale (code - zero)`.
pub(super) fn integers(
    [rows, columns]: [usize; 2],
    bits: u32,
    code: QuantCodeFn<'_>,
    grid: &QuantGroupGrid<'_>,
) -> Result<(Scheme, Vec<u8>), String> {
    let blocks = whole_blocks(columns, BLOCK)?;
    let groups = columns.div_ceil(grid.group);
    let middle = 1 << (bits - 1);
    let all = |f: &dyn Fn(u32) -> bool| {
        (0..rows).all(|row| (0..groups).all(|at| f((grid.zero)(row, at))))
    };
    let is_symmetric = all(&|zero| zero == middle);
    if !all(&|zero| zero < 1 << bits) {
        return Err(format!("a zero point is beyond {bits} bits"));
    }
    let scheme = match (bits, is_symmetric) {
        (4, true) => Scheme::Int4,
        (4, false) => Scheme::Int4Asym,
        (_, true) => Scheme::Int8,
        (_, false) => Scheme::Int8Asym,
    };
    let mut bytes = Vec::with_capacity(rows * blocks * scheme.block_bytes());
    let mut codes = [0; BLOCK];
    for row in 0..rows {
        for block in 0..blocks {
            let first = block * BLOCK;
            let starts = (first..first + BLOCK).step_by(GROUP);
            for column in starts.clone() {
                bytes.extend(half_of((grid.scale)(row, column / grid.group))?);
            }
            if !is_symmetric {
                bytes.extend(starts.map(|column| (grid.zero)(row, column / grid.group) as u8));
            }
            for (at, to) in codes.iter_mut().enumerate() {
                *to = code(row, first + at);
            }
            match bits {
                4 => nibbles(&codes, GROUP, &mut bytes),
                // Without zero points, values are stored as signed.
                _ if is_symmetric => bytes.extend(codes.map(|c| c ^ 0x80)),
                _ => bytes.extend(codes),
            }
        }
    }
    Ok((scheme, bytes))
}

/// Packs each group of 4-bit values: the first half into the low nibbles, the second half into the
/// high nibbles.
fn nibbles(codes: &[u8], group: usize, bytes: &mut Vec<u8>) {
    for group in codes.chunks_exact(group) {
        let (low, high) = group.split_at(group.len() / 2);
        bytes.extend(low.iter().zip(high).map(|(l, h)| l | h << 4));
    }
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
        nibbles(&apart, group, &mut bytes);
    }
    Ok(bytes)
}
