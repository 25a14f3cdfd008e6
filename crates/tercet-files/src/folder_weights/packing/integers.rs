//! Integers of 1 to 8 bits with scales and zero points: their bit fields in words, and conversion
//! to blocks or floats.

use tercet_ir::{DType, Tensor, TensorType};

use super::dense::dense;
use super::pack;
use crate::weight::ModelWeight;

/// The positions of integers in a sequence of 32-bit words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WordLayout {
    /// Back to back; an integer may continue in the next word.
    Stream,
    /// As many whole integers per word as fit.
    Whole,
    /// 32 integers in as many words as bits: planes of 4, 2 or 1 bits, the lowest bits first.
    Planes,
}

impl WordLayout {
    /// The number of words of `count` integers of `bits` bits, 1 to 8.
    pub(super) fn words(self, count: usize, bits: u32) -> usize {
        let bits = bits as usize;
        match self {
            WordLayout::Stream => (count / 32 * bits) + (count % 32 * bits).div_ceil(32),
            WordLayout::Whole => count.div_ceil(32 / bits),
            WordLayout::Planes => count.div_ceil(32) * bits,
        }
    }
}

/// Integers in words. The words of one sequence are `stride` apart.
pub(super) struct BitFields {
    pub(super) words: Vec<u32>,
    pub(super) stride: usize,
    pub(super) bits: u32,
    pub(super) layout: WordLayout,
}

impl BitFields {
    /// The integer number `at` of the sequence whose first word is word `start`.
    pub(super) fn get(&self, start: usize, at: usize) -> u8 {
        let bits = self.bits as usize;
        let word = |at: usize| self.words[start + at * self.stride];
        let mask = (1u32 << bits) - 1;
        let found = match self.layout {
            WordLayout::Stream => {
                // 32 integers are `bits` words.
                let (bit, group) = (at % 32 * bits, at / 32 * bits);
                let low = word(group + bit / 32) >> (bit % 32);
                match bit % 32 + bits > 32 {
                    true => low | word(group + bit / 32 + 1) << (32 - bit % 32),
                    false => low,
                }
            }
            WordLayout::Whole => {
                let per = 32 / bits;
                word(at / per) >> (at % per * bits)
            }
            WordLayout::Planes => {
                let (mut first, mut value) = (at / 32 * bits, 0);
                let mut offset = 0;
                for width in planes(self.bits) {
                    let per = 32 / width;
                    let plane = word(first + at % 32 / per) >> (at % per * width);
                    value |= (plane & ((1 << width) - 1)) << offset;
                    first += width;
                    offset += width;
                }
                value
            }
        };
        (found & mask) as u8
    }
}

/// The widths of the planes of [`WordLayout::Planes`], in bits.
fn planes(bits: u32) -> impl Iterator<Item = usize> {
    let widths: &[usize] = match bits {
        1 => &[1],
        2 => &[2],
        3 => &[2, 1],
        4 => &[4],
        5 => &[4, 1],
        6 => &[4, 2],
        7 => &[4, 2, 1],
        _ => &[8],
    };
    widths.iter().copied()
}

/// The group of each column.
#[derive(Clone, Copy)]
pub(super) enum ColumnGroups<'a> {
    /// Each run of this number of columns is a group.
    Runs(usize),
    /// The group number of each column, in column order.
    Listed(&'a [usize]),
}

impl ColumnGroups<'_> {
    pub(super) fn of(self, column: usize) -> usize {
        match self {
            ColumnGroups::Runs(len) => column / len,
            ColumnGroups::Listed(groups) => groups[column],
        }
    }
}

/// Integers `[rows, columns]` of value `scale (code - zero)`.
pub(super) struct IntegerMatrix<'a> {
    pub(super) shape: [usize; 2],
    /// 1 to 8.
    pub(super) bits: u32,
    /// The dtype of the scales, and of weights that do not become blocks.
    pub(super) dtype: DType,
    pub(super) groups: ColumnGroups<'a>,
    /// The number of groups of a row.
    pub(super) group_count: usize,
    /// The code at a row and column.
    pub(super) code: &'a (dyn Fn(usize, usize) -> u8 + Sync),
    /// The scale of a row and group.
    pub(super) scale: &'a (dyn Fn(usize, usize) -> f32 + Sync),
    /// The zero point of a row and group.
    pub(super) zero: &'a (dyn Fn(usize, usize) -> i32 + Sync),
}

impl IntegerMatrix<'_> {
    /// The matrix as blocks if they are exact, else as floats.
    pub(super) fn weight(&self) -> Result<ModelWeight, String> {
        let [rows, columns] = self.shape;
        let Some((scheme, blocks)) = pack::integers(self) else {
            return self.floats();
        };
        let row_bytes = columns / scheme.block_len() * scheme.block_bytes();
        let ty = TensorType::new(DType::U8, &[rows, row_bytes]);
        let blocks = Tensor::from_bytes(ty, &blocks).map_err(|e| e.to_string())?;
        Ok(ModelWeight::Packed {
            scheme,
            blocks,
            shape: vec![rows, columns],
        })
    }

    /// The matrix in the dtype of its scales. Each product is rounded once.
    fn floats(&self) -> Result<ModelWeight, String> {
        let [_, columns] = self.shape;
        dense(self.dtype, &self.shape, columns, |first, to| {
            let row = first / columns.max(1);
            for (column, to) in to.iter_mut().enumerate() {
                let group = self.groups.of(column);
                let code = i32::from((self.code)(row, column)) - (self.zero)(row, group);
                *to = (self.scale)(row, group) * code as f32;
            }
        })
    }
}
