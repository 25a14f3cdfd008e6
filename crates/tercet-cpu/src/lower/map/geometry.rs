//! How a map's elements lie: the result's axes merged as far as all operands allow, cut into blocks.

use smallvec::SmallVec;
use tercet_ir::MAX_RANK;

use super::BLOCK;
use super::body::Input;
use crate::args::View;

/// An operand over the merged axes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Walk {
    /// The element at index zero.
    pub(super) offset: isize,
    /// Per merged axis.
    pub(super) strides: [isize; MAX_RANK],
    /// Per merged axis, how far the index is shifted right.
    pub(super) shifts: [u8; MAX_RANK],
    /// Any shift at all.
    pub(super) shifted: bool,
    /// One element for the whole result.
    pub(super) uniform: bool,
}

/// Axes and blocks of one run.
pub(super) struct Geometry {
    rank: usize,
    sizes: [usize; MAX_RANK],
    pub(super) walks: SmallVec<[Walk; 8]>,
    /// Elements of the last axis.
    pub(super) inner: usize,
    rows: usize,
    /// Blocks of a row, where rows are long.
    blocks_per_row: usize,
    /// Elements of a block of a long row.
    block: usize,
    /// Rows of a block, where rows are short.
    rows_per_block: usize,
}

/// A block: a part of one row, or some whole rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    /// Its first element in the result.
    pub(super) start: usize,
    /// Its elements.
    pub(super) len: usize,
    pub(super) row: usize,
    pub(super) rows: usize,
    pub(super) col: usize,
    pub(super) cols: usize,
}

impl Geometry {
    pub(super) fn new(
        inputs: &[Input],
        views: &[View<'_>],
        shape: &[usize],
        block: usize,
    ) -> Geometry {
        let mut walks: SmallVec<[Walk; 8]> = inputs
            .iter()
            .zip(views)
            .map(|(input, view)| Walk::new(input, view, shape))
            .collect();
        let (rank, sizes) = merge(shape, &mut walks);
        for walk in &mut walks {
            walk.uniform = !walk.shifted && walk.strides[..rank].iter().all(|&s| s == 0);
        }
        let inner = if rank == 0 { 1 } else { sizes[rank - 1] };
        let rows: usize = sizes[..rank.saturating_sub(1)].iter().product();
        let rows = if inner == 0 { 0 } else { rows };
        let long = inner >= BLOCK / 4 || rows <= 1;
        Geometry {
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
            rows_per_block: if long { 1 } else { (BLOCK / inner).max(1) },
        }
    }

    pub(super) fn blocks(&self) -> usize {
        self.rows.div_ceil(self.rows_per_block) * self.blocks_per_row
    }

    /// The first element of a block; the number of elements for the block after the last.
    pub(super) fn start(&self, block: usize) -> usize {
        let row = (block / self.blocks_per_row * self.rows_per_block).min(self.rows);
        row * self.inner + block % self.blocks_per_row * self.block
    }

    pub(super) fn block(&self, block: usize) -> Block {
        let row = block / self.blocks_per_row * self.rows_per_block;
        let col = block % self.blocks_per_row * self.block;
        let rows = self.rows_per_block.min(self.rows - row);
        let cols = (self.inner - col).min(self.block);
        Block {
            start: row * self.inner + col,
            len: rows * cols,
            row,
            rows,
            col,
            cols,
        }
    }

    /// The element of an operand at the start of a row, and its stride along the row; shifts are
    /// not applied to the row itself.
    pub(super) fn row(&self, walk: &Walk, row: usize) -> (isize, isize) {
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

    /// Whether an operand is one element throughout a block.
    pub(super) fn is_steady(&self, walk: &Walk, block: &Block) -> bool {
        let along_row = self
            .rank
            .checked_sub(1)
            .map_or(0, |axis| walk.strides[axis]);
        walk.uniform || (block.rows == 1 && along_row == 0)
    }

    /// The shift along a row.
    pub(super) fn row_shift(&self, walk: &Walk) -> u8 {
        match self.rank {
            0 => 0,
            rank => walk.shifts[rank - 1],
        }
    }
}

impl Walk {
    fn new(input: &Input, view: &View<'_>, shape: &[usize]) -> Walk {
        let mut walk = Walk {
            offset: view.layout.offset as isize,
            strides: [0; MAX_RANK],
            shifts: [0; MAX_RANK],
            shifted: false,
            uniform: false,
        };
        for (map, &stride) in input.map.axes.iter().zip(view.layout.strides()) {
            walk.offset += map.start as isize * stride;
            let Some(axis) = map.from else { continue };
            // Two axes of an operand that follow one axis of the result add up (a diagonal), but
            // only with equal shifts; the text form and fusion make no other.
            walk.strides[axis] += map.step as isize * stride;
            if map.shift > 0 && shape[axis] > 1 {
                walk.shifts[axis] = map.shift;
                walk.shifted = true;
            }
        }
        walk
    }
}

/// Drops axes of size 1 and merges neighbours that every operand walks as one.
fn merge(shape: &[usize], walks: &mut [Walk]) -> (usize, [usize; MAX_RANK]) {
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
