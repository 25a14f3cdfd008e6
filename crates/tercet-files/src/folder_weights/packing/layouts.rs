//! Integer matrices as GPTQ, AWQ and compressed-tensors store them.

use super::integers::{BitFields, ColumnGroups, IntegerMatrix, WordLayout};
use super::matrix::{GroupScales, PackedMatrixTensors, expect};
use super::{ColumnGroup, IntegerSpec, ZeroStorage};
use crate::safetensors::SafeDtype;
use crate::weight::ModelWeight;

/// Scales of a matrix whose rows or tiles share them.
struct TileScales {
    scales: GroupScales,
    /// Number of rows with the same scales.
    height: usize,
    /// Number of columns with the same scale.
    width: usize,
}

impl TileScales {
    fn index(&self, row: usize, group: usize) -> usize {
        row / self.height * self.scales.shape[1] + group
    }
}

impl PackedMatrixTensors<'_> {
    pub(super) fn gptq(
        &self,
        bits: u32,
        group: ColumnGroup,
        zeros: ZeroStorage,
        is_planar: bool,
    ) -> Result<ModelWeight, String> {
        let (words, [word_rows, rows]) = self.words_of(self.codes)?;
        let scales = self.scales("scales")?;
        let index = self.group_index("g_idx", scales.shape[0])?;
        let layout = |bits: u32| match is_planar || (5..=7).contains(&bits) {
            true => WordLayout::Planes,
            false => WordLayout::Stream,
        };
        let fits = |bits: u32, columns: usize| layout(bits).words(columns, bits) == word_rows;
        let (bits, columns) = match &index {
            // A module may have another bit width than the configuration. The index has an entry
            // per column, so the number of columns determines the width.
            Some(index) => {
                let columns = index.len();
                let mut all = std::iter::once(bits).chain(2..=8);
                let bits = all.find(|bits| fits(*bits, columns)).ok_or_else(|| {
                    format!("`qweight` has {word_rows} rows of words for {columns} columns")
                })?;
                (bits, columns)
            }
            None => {
                let columns = word_rows * 32 / bits as usize;
                if !fits(bits, columns) {
                    return Err(format!(
                        "`qweight` has {word_rows} rows of words, which do not match {bits} bits"
                    ));
                }
                (bits, columns)
            }
        };
        self.check_index_len("g_idx", columns)?;
        let layout = layout(bits);
        let (zero_words, zero_shape) = self.words_of(self.part("qzeros")?)?;
        let each = layout.words(rows, bits);
        let groups = match &index {
            Some(_) => scales.shape[0],
            None => columns.div_ceil(group.len(columns)),
        };
        expect("scales", scales.shape, [groups, rows])?;
        expect("qzeros", zero_shape, [groups, each])?;
        let column_groups = match &index {
            Some(index) => grouped(index, [group.len(columns), columns.div_ceil(groups)]),
            None => ColumnGroups::Runs(group.len(columns)),
        };
        let is_by_word = zeros == ZeroStorage::LessOneByWord && 32 % bits == 0;
        let zero_words = match is_by_word {
            true => {
                let ones = (0..32)
                    .step_by(bits as usize)
                    .fold(0, |ones, at| ones | 1 << at);
                zero_words
                    .iter()
                    .map(|word| word.wrapping_add(ones))
                    .collect()
            }
            false => zero_words,
        };
        let less = u8::from(zeros != ZeroStorage::Equal && !is_by_word);
        let mask = u8::MAX >> (8 - bits);
        let fields = |words: Vec<u32>, stride: usize| BitFields {
            words,
            stride,
            bits,
            layout,
        };
        let (codes, zero_fields) = (fields(words, rows), fields(zero_words, 1));
        IntegerMatrix {
            shape: [rows, columns],
            bits,
            dtype: scales.dtype,
            groups: column_groups,
            group_count: groups,
            code: &|row, column| codes.get(row, column),
            scale: &|row, at| scales.values[at * rows + row],
            zero: &|row, at| i32::from(zero_fields.get(at * each, row).wrapping_add(less) & mask),
        }
        .weight()
    }

    /// Checks the length of a stored index of groups; an empty tensor counts as no index.
    fn check_index_len(&self, end: &str, columns: usize) -> Result<(), String> {
        let len = self.find_part(end).map(|(_, info)| info.element_count());
        match len.filter(|len| *len > 0 && *len != columns) {
            None => Ok(()),
            Some(len) => Err(format!("`{end}` has {len} columns; expected {columns}")),
        }
    }

    /// The group of each column, if it is stored; each is less than `groups`.
    fn group_index(&self, end: &str, groups: usize) -> Result<Option<Vec<usize>>, String> {
        if self.find_part(end).is_none() {
            return Ok(None);
        }
        let (index, _) = self.integers(end)?;
        // The index has no meaning if all entries are -1 (its initial value) or all are 0 (as early
        // versions wrote).
        let is_unset = |g: &i64| *g == -1;
        if index.is_empty() || index.iter().all(is_unset) {
            return Ok(None);
        }
        if groups > 1 && index.iter().all(|g| *g == 0) {
            return Ok(None);
        }
        let mut found = Vec::with_capacity(index.len());
        for g in index {
            match usize::try_from(g) {
                Ok(g) if g < groups => found.push(g),
                _ => return Err(format!("`{end}` has the group {g} of {groups}")),
            }
        }
        Ok(Some(found))
    }

    pub(super) fn awq(&self, group: ColumnGroup) -> Result<ModelWeight, String> {
        /// Position of each row within its word.
        const PLACES: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];
        let (words, [columns, word_rows]) = self.words_of(self.codes)?;
        let (zeros, zero_shape) = self.words_of(self.part("qzeros")?)?;
        let rows = word_rows * 8;
        let scales = self.scales("scales")?;
        let group = group.len(columns);
        let groups = columns.div_ceil(group);
        expect("scales", scales.shape, [groups, rows])?;
        expect("qzeros", zero_shape, [groups, word_rows])?;
        let of = |words: &[u32], row: usize, at: usize| {
            words[at * word_rows + row / 8] >> (4 * PLACES[row % 8]) & 15
        };
        IntegerMatrix {
            shape: [rows, columns],
            bits: 4,
            dtype: scales.dtype,
            groups: ColumnGroups::Runs(group),
            group_count: groups,
            code: &|row, column| of(&words, row, column) as u8,
            scale: &|row, at| scales.values[at * rows + row],
            zero: &|row, at| of(&zeros, row, at) as i32,
        }
        .weight()
    }

    pub(super) fn words(&self, spec: IntegerSpec) -> Result<ModelWeight, String> {
        let bits = spec.bits;
        let (words, [rows, word_columns]) = self.words_of(self.codes)?;
        let columns = match self.find_part("weight_shape") {
            None => word_columns * 32 / bits as usize,
            Some(_) => match self.integers("weight_shape")?.0[..] {
                [r, columns] if usize::try_from(r) == Ok(rows) && columns >= 0 => columns as usize,
                ref found => {
                    return Err(format!(
                        "`weight_shape` is {found:?}; `weight_packed` has {rows} rows"
                    ));
                }
            },
        };
        let layout = word_layout(columns, bits, word_columns).ok_or_else(|| {
            format!(
                "`weight_packed` has {word_columns} words a row, which do not match {columns} \
                 columns of {bits} bits"
            )
        })?;
        let codes = BitFields {
            words,
            stride: 1,
            bits,
            layout,
        };
        let code = |row: usize, column: usize| codes.get(row * word_columns, column);
        self.tiles([rows, columns], spec, &code)
    }

    pub(super) fn bytes(&self, spec: IntegerSpec) -> Result<ModelWeight, String> {
        let (bytes, [rows, columns]) = self.matrix(self.codes, SafeDtype::I8)?;
        // In this format, values of fewer than 8 bits also take a byte each.
        let code = |row: usize, column: usize| bytes[row * columns + column] ^ 0x80;
        let spec = IntegerSpec { bits: 8, ..spec };
        self.tiles([rows, columns], spec, &code)
    }

    /// A matrix of codes that are `2^(bits - 1)` more than the signed values.
    fn tiles(
        &self,
        shape: [usize; 2],
        spec: IntegerSpec,
        code: &(dyn Fn(usize, usize) -> u8 + Sync),
    ) -> Result<ModelWeight, String> {
        let bits = spec.bits;
        let tiles = self.tile_scales(shape, spec)?;
        let groups = tiles.scales.shape[1];
        let zeros = self.zero_points(spec, tiles.scales.shape)?;
        let index = self.group_index("weight_g_idx", groups)?;
        self.check_index_len("weight_g_idx", shape[1])?;
        let middle = 1 << (bits - 1);
        IntegerMatrix {
            shape,
            bits,
            dtype: tiles.scales.dtype,
            groups: match &index {
                Some(index) => grouped(index, [tiles.width; 2]),
                None => ColumnGroups::Runs(tiles.width),
            },
            group_count: groups,
            code,
            scale: &|row, at| tiles.scales.values[tiles.index(row, at)],
            zero: &|row, at| {
                let stored = zeros.as_ref().map_or(0, |z| z[tiles.index(row, at)]);
                stored + middle
            },
        }
        .weight()
    }

    /// Scales of the whole matrix, of rows, of groups of columns or of tiles.
    fn tile_scales(
        &self,
        [rows, columns]: [usize; 2],
        spec: IntegerSpec,
    ) -> Result<TileScales, String> {
        let scales = self.scales("weight_scale")?;
        let [high, wide] = scales.shape;
        let tile = spec.tile.unwrap_or([1, 0]);
        let height = match high {
            1 => Some(rows.max(1)),
            n if n == rows.div_ceil(tile[0]) => Some(tile[0]),
            _ => None,
        };
        let width = match tile[1] {
            0 => columns
                .checked_div(wide)
                .filter(|n| n * wide == columns && *n > 0),
            n => Some(n).filter(|n| columns.div_ceil(*n) == wide),
        };
        match (height, width) {
            (Some(height), Some(width)) => Ok(TileScales {
                scales,
                height,
                width,
            }),
            _ => Err(format!(
                "`weight_scale` has shape {:?}, which does not match a matrix of {rows} x {columns}",
                scales.shape
            )),
        }
    }

    /// Signed zero points in the shape of the scales. The zero points are plain integers, or packed
    /// along the rows.
    fn zero_points(
        &self,
        spec: IntegerSpec,
        [high, wide]: [usize; 2],
    ) -> Result<Option<Vec<i32>>, String> {
        const NAME: &str = "weight_zero_point";
        let Some(stored) = self.find_part(NAME) else {
            return match spec.has_zeros {
                true => Err(format!("has no `{NAME}`")),
                false => Ok(None),
            };
        };
        let bits = spec.bits;
        let middle = 1 << (bits - 1);
        let packed = match *stored.1.shape() {
            [words, groups] if stored.1.dtype() == SafeDtype::I32 && groups == wide => {
                word_layout(high, bits, words)
            }
            _ => None,
        };
        if let Some(layout) = packed {
            let (words, [_, stride]) = self.words_of(stored)?;
            let zeros = BitFields {
                words,
                stride,
                bits,
                layout,
            };
            let of = |at: usize| i32::from(zeros.get(at % wide, at / wide)) - middle;
            return Ok(Some((0..high * wide).map(of).collect()));
        }
        let (zeros, shape) = self.integers(NAME)?;
        if zeros.len() != high * wide {
            return Err(format!(
                "`{NAME}` has shape {shape:?}; the scales have shape [{high}, {wide}]"
            ));
        }
        let range = -i64::from(middle)..i64::from(middle);
        match zeros.iter().find(|zero| !range.contains(zero)) {
            None => Ok(Some(zeros.iter().map(|zero| *zero as i32).collect())),
            Some(zero) => Err(format!("the zero point {zero} is beyond {bits} bits")),
        }
    }
}

/// The groups of an index: runs of one of these lengths, if that is their order.
fn grouped(index: &[usize], lens: [usize; 2]) -> ColumnGroups<'_> {
    let is_run = |len: &usize| {
        let mut columns = index.iter().enumerate();
        *len > 0 && columns.all(|(at, g)| *g == at / len)
    };
    let run = lens.into_iter().find(is_run);
    run.map_or(ColumnGroups::Listed(index), ColumnGroups::Runs)
}

/// The layout of `count` integers in `words` words: back to back, or in whole words as old versions
/// wrote.
fn word_layout(count: usize, bits: u32, words: usize) -> Option<WordLayout> {
    let all = [WordLayout::Stream, WordLayout::Whole];
    all.into_iter()
        .find(|layout| layout.words(count, bits) == words)
}
