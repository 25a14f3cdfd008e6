//! Iteration space of a map: the result's axes, merged as far as all operands allow, and cut into
//! blocks.

use smallvec::SmallVec;
use tercet_ir::MAX_RANK;

use super::BLOCK;
use super::body::MapBodyInput;
use crate::args::KernelView;

/// Strides of an operand over the merged axes.
#[derive(Clone, Copy, Debug)]
pub(super) struct MapOperandWalk {
    /// Offset of the element at index zero.
    pub(super) offset: isize,
    /// Stride per merged axis.
    pub(super) strides: [isize; MAX_RANK],
    /// Per merged axis, the number of bits by which its index is shifted right for this operand.
    pub(super) shifts: [u8; MAX_RANK],
    /// True if any shift is not zero.
    pub(super) shifted: bool,
    /// True if all elements of the result read the same element of the operand.
    pub(super) uniform: bool,
    /// True if the operand has the layout of the result.
    whole: bool,
    /// True if all rows read the same row of the operand.
    pub(super) repeats: bool,
}

/// The merged axes of one run, and the split of the result into blocks.
pub(super) struct MapGeometry {
    rank: usize,
    sizes: [usize; MAX_RANK],
    pub(super) walks: SmallVec<[MapOperandWalk; 8]>,
    /// Elements of the last axis.
    pub(super) inner: usize,
    rows: usize,
    /// Blocks per row, for long rows.
    blocks_per_row: usize,
    /// Number of elements in a block; long rows are split into blocks.
    block: usize,
    /// Rows per block, for short rows.
    rows_per_block: usize,
}

/// A block: part of one row, or several whole rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct MapBlock {
    /// Position of the block's first element in the result.
    pub(super) start: usize,
    /// Number of elements.
    pub(super) len: usize,
    pub(super) row: usize,
    pub(super) rows: usize,
    pub(super) col: usize,
    pub(super) cols: usize,
}

impl MapGeometry {
    pub(super) fn new(
        inputs: &[MapBodyInput],
        views: &[KernelView<'_>],
        shape: &[usize],
        block: usize,
    ) -> MapGeometry {
        let mut walks: SmallVec<[MapOperandWalk; 8]> = inputs
            .iter()
            .zip(views)
            .map(|(input, view)| MapOperandWalk::new(input, view, shape))
            .collect();
        let (rank, sizes) = merge(shape, &mut walks);
        for walk in &mut walks {
            walk.uniform = !walk.shifted && walk.strides[..rank].iter().all(|&s| s == 0);
            walk.repeats = walk.strides[..rank.saturating_sub(1)]
                .iter()
                .all(|&s| s == 0);
            let mut dense = 1;
            walk.whole = !walk.shifted
                && (0..rank).rev().all(|axis| {
                    let is_dense = walk.strides[axis] == dense as isize;
                    dense *= sizes[axis];
                    is_dense
                });
        }
        let inner = if rank == 0 { 1 } else { sizes[rank - 1] };
        let rows: usize = sizes[..rank.saturating_sub(1)].iter().product();
        let rows = if inner == 0 { 0 } else { rows };
        // Several short rows are computed together, although broadcast operands must be repeated for them.
        let long = inner >= (block / 8).max(BLOCK / 4) || rows <= 1;
        MapGeometry {
            rank,
            sizes,
            walks,
            inner,
            rows,
            blocks_per_row: if long {
                inner.div_ceil(block).max(1)
            } else {
                1
            },
            block,
            rows_per_block: if long { 1 } else { (block / inner).max(1) },
        }
    }

    pub(super) fn blocks(&self) -> usize {
        self.rows.div_ceil(self.rows_per_block) * self.blocks_per_row
    }

    /// Position of a block's first element. If `block` is the number of blocks, returns the number
    /// of elements of the result.
    pub(super) fn start(&self, block: usize) -> usize {
        let row = (block / self.blocks_per_row * self.rows_per_block).min(self.rows);
        row * self.inner + block % self.blocks_per_row * self.block
    }

    pub(super) fn block(&self, block: usize) -> MapBlock {
        let row = block / self.blocks_per_row * self.rows_per_block;
        let col = block % self.blocks_per_row * self.block;
        let rows = self.rows_per_block.min(self.rows - row);
        let cols = (self.inner - col).min(self.block);
        MapBlock {
            start: row * self.inner + col,
            len: rows * cols,
            row,
            rows,
            col,
            cols,
        }
    }

    /// Start offset of an operand in a row, and its stride along the row. The stride ignores a
    /// shift of the index along the row; see `row_shift`.
    pub(super) fn row(&self, walk: &MapOperandWalk, row: usize) -> (isize, isize) {
        let outer = self.rank.saturating_sub(1);
        let (mut at, mut rest) = (walk.offset, row);
        for axis in (0..outer).rev() {
            let index = rest % self.sizes[axis];
            rest /= self.sizes[axis];
            at += (index >> walk.shifts[axis]) as isize * walk.strides[axis];
        }
        match self.rank {
            0 => (at, 0),
            rank => (at, walk.strides[rank - 1]),
        }
    }

    /// Start offsets of an operand in `row` and the rows after it, as [`MapGeometry::row`].
    pub(super) fn row_starts<'a>(
        &'a self,
        walk: &'a MapOperandWalk,
        row: usize,
    ) -> MapRowStarts<'a> {
        let mut index = [0; MAX_RANK];
        let mut rest = row;
        for axis in (0..self.rank.saturating_sub(1)).rev() {
            index[axis] = rest % self.sizes[axis];
            rest /= self.sizes[axis];
        }
        MapRowStarts {
            at: self.row(walk, row).0,
            geometry: self,
            walk,
            index,
        }
    }

    /// First element of the block if its elements are contiguous in the operand.
    pub(super) fn contiguous(&self, walk: &MapOperandWalk, block: &MapBlock) -> Option<usize> {
        if walk.whole {
            return Some(walk.offset as usize + block.start);
        }
        let (start, stride) = self.row(walk, block.row);
        let along = block.rows == 1 && stride == 1 && self.row_shift(walk) == 0;
        along.then(|| start as usize + block.col)
    }

    /// The merged axes and the walks of the operands, if each row of an operand is contiguous or
    /// one element.
    pub(super) fn rows_in_place(&self) -> Option<(&[usize], &[MapOperandWalk])> {
        let last = self.rank.checked_sub(1)?;
        let fits = |walk: &MapOperandWalk| {
            let strides = &walk.strides[..self.rank];
            !walk.shifted && strides.iter().all(|s| *s >= 0) && strides[last] <= 1
        };
        (self.walks.iter().all(fits)).then_some((&self.sizes[..self.rank], &self.walks))
    }

    /// True if all blocks have the same elements of the operand, except that the last block may have fewer.
    pub(super) fn repeats_in_blocks(&self, walk: &MapOperandWalk) -> bool {
        walk.repeats && self.blocks_per_row == 1
    }

    /// True if the operand is uniform within the block.
    pub(super) fn is_steady(&self, walk: &MapOperandWalk, block: &MapBlock) -> bool {
        let along_row = self
            .rank
            .checked_sub(1)
            .map_or(0, |axis| walk.strides[axis]);
        walk.uniform || (block.rows == 1 && along_row == 0)
    }

    /// Right shift of the index along the row.
    pub(super) fn row_shift(&self, walk: &MapOperandWalk) -> u8 {
        match self.rank {
            0 => 0,
            rank => walk.shifts[rank - 1],
        }
    }
}

/// Start offsets of consecutive rows, without a division for each row.
pub(super) struct MapRowStarts<'a> {
    geometry: &'a MapGeometry,
    walk: &'a MapOperandWalk,
    index: [usize; MAX_RANK],
    at: isize,
}

impl Iterator for MapRowStarts<'_> {
    type Item = isize;

    #[inline]
    fn next(&mut self) -> Option<isize> {
        let at = self.at;
        let place = |index: usize, axis: usize| {
            (index >> self.walk.shifts[axis]) as isize * self.walk.strides[axis]
        };
        for axis in (0..self.geometry.rank.saturating_sub(1)).rev() {
            self.at -= place(self.index[axis], axis);
            self.index[axis] += 1;
            if self.index[axis] < self.geometry.sizes[axis] {
                self.at += place(self.index[axis], axis);
                break;
            }
            self.index[axis] = 0;
        }
        Some(at)
    }
}

impl MapOperandWalk {
    fn new(input: &MapBodyInput, view: &KernelView<'_>, shape: &[usize]) -> MapOperandWalk {
        let mut walk = MapOperandWalk {
            offset: view.layout.offset as isize,
            strides: [0; MAX_RANK],
            shifts: [0; MAX_RANK],
            shifted: false,
            uniform: false,
            whole: false,
            repeats: false,
        };
        for (map, &stride) in input.map.axes.iter().zip(view.layout.strides()) {
            walk.offset += map.start as isize * stride;
            let Some(axis) = map.from else { continue };
            // If two axes of an operand follow one axis of the result (a diagonal), their strides
            // add up. Both axes must then have the same index shift; the text format and fusion
            // never produce different ones.
            walk.strides[axis] += map.step as isize * stride;
            if map.shift > 0 && shape[axis] > 1 {
                walk.shifts[axis] = map.shift;
                walk.shifted = true;
            }
        }
        walk
    }
}

/// Drops axes of size 1, and merges adjacent axes that are contiguous in every operand.
fn merge(shape: &[usize], walks: &mut [MapOperandWalk]) -> (usize, [usize; MAX_RANK]) {
    let mut sizes = [0; MAX_RANK];
    let mut rank = 0;
    for (axis, &n) in shape.iter().enumerate() {
        if n == 1 {
            continue;
        }
        let joins = rank > 0
            && walks.iter().all(|w| {
                w.shifts[rank - 1] == 0
                    && w.shifts[axis] == 0
                    && w.strides[rank - 1] == w.strides[axis] * n as isize
            });
        if joins {
            sizes[rank - 1] *= n;
            walks
                .iter_mut()
                .for_each(|w| w.strides[rank - 1] = w.strides[axis]);
        } else {
            sizes[rank] = n;
            for w in walks.iter_mut() {
                w.strides[rank] = w.strides[axis];
                w.shifts[rank] = w.shifts[axis];
            }
            rank += 1;
        }
    }
    (rank, sizes)
}
