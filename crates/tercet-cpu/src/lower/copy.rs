//! Copies strided views into dense memory, for elements of any size.

use bytemuck::Pod;

use crate::args::{KernelArgs, KernelView};
use crate::kernels::SimdLevel;
use crate::kernels::layout::{TURNED, transpose_words};
use crate::lower::elem::parts;
use crate::lower::{AcceptedLayout, LoweredNode};
use tercet_ir::layout::Layout;

/// Elements per parallel task.
const TASK: usize = 1 << 16;

/// Kernel that copies a view into dense memory.
pub(crate) fn copy_kernel() -> LoweredNode {
    let run = |args: &mut KernelArgs<'_>| {
        let from = args.ins[0];
        copy_view(&from, args.outs[0].bytes, args.parallel);
        Ok(())
    };
    LoweredNode {
        accepts: vec![AcceptedLayout::Any],
        ..LoweredNode::new(1, run)
    }
}

/// Bytes of a task that copies contiguous elements.
const COPY_BYTES: usize = 1 << 18;

/// Writes the elements of a view in row-major order.
pub fn copy_view(from: &KernelView<'_>, to: &mut [u8], parallel: bool) {
    if from.layout.numel() == 0 {
        return;
    }
    if from.layout.is_dense() {
        let from = from.dense_bytes();
        return parts(parallel, to, COPY_BYTES, |i, to| {
            to.copy_from_slice(&from[i * COPY_BYTES..][..to.len()]);
        });
    }
    match from.dtype.size_bytes() {
        1 => copy_as::<u8>(from, to, parallel),
        2 => copy_as::<u16>(from, to, parallel),
        4 => copy_as::<u32>(from, to, parallel),
        _ => copy_as::<u64>(from, to, parallel),
    }
}

fn copy_as<T: Pod + Send + Sync>(from: &KernelView<'_>, to: &mut [u8], parallel: bool) {
    let source: &[T] = from.root_as();
    let target: &mut [T] = bytemuck::cast_slice_mut(to);
    if let Some(transposed) = TransposedRows::new(from.layout) {
        return transposed.copy_all(source, target, parallel);
    }
    let walk = StridedRuns::new(from.layout);
    if parallel {
        let rows = TASK.div_ceil(walk.len).max(1) * walk.len;
        parts(true, target, rows, |i, part| {
            walk.copy(source, i * rows / walk.len, part);
        });
    } else {
        walk.copy(source, 0, target);
    }
}

/// A layout whose last axis is not contiguous in memory, but an earlier one is: rows along that axis, in tiles.
///
/// The result is `[outer][rows][middle][columns]`. Rows are contiguous in memory, and columns have a stride.
struct TransposedRows {
    outer: Layout,
    rows: usize,
    middle: Layout,
    columns: usize,
    column_stride: isize,
}

/// Rows and columns of a tile; a row of the tile fills a cache line of four-byte elements.
const SIDE: usize = 16;

impl TransposedRows {
    fn new(layout: &Layout) -> Option<TransposedRows> {
        let (shape, strides) = (layout.shape(), layout.strides());
        let last = (0..shape.len()).rev().find(|&axis| shape[axis] > 1)?;
        // Adjacent columns of one element would be runs already.
        let along = |axis: &usize| shape[*axis] > 1 && strides[*axis] == 1;
        let axis = (0..last).rev().find(along)?;
        if strides[last].unsigned_abs() <= 1 {
            return None;
        }
        let mut first = last;
        let (mut columns, column_stride) = (shape[last], strides[last]);
        while first > axis + 1 {
            let (n, stride) = (shape[first - 1], strides[first - 1]);
            if n != 1 && stride != column_stride * columns as isize {
                break;
            }
            columns *= n;
            first -= 1;
        }
        Some(TransposedRows {
            outer: Layout::new(&shape[..axis], &strides[..axis], layout.offset),
            rows: shape[axis],
            middle: Layout::new(&shape[axis + 1..first], &strides[axis + 1..first], 0),
            columns,
            column_stride,
        })
    }

    fn copy_all<T: Pod + Send + Sync>(&self, source: &[T], target: &mut [T], parallel: bool) {
        let row = self.middle.numel() * self.columns;
        // Whole tiles per task, except at the end of an outer index.
        let tiles = TASK.div_ceil(row * SIDE).max(1);
        let rows = (tiles * SIDE).min(self.rows.div_ceil(2).max(1));
        parts(parallel, target, rows * row, |i, part| {
            let mut first = i * rows;
            let mut part = part;
            while !part.is_empty() {
                let (outer, at) = (first / self.rows, first % self.rows);
                let count = (self.rows - at).min(part.len() / row);
                let (own, rest) = part.split_at_mut(count * row);
                let start = place(&self.outer, outer) + at as isize;
                self.copy(source, start, own, row);
                first += count;
                part = rest;
            }
        });
    }

    /// Copies the first columns of some rows of four-byte elements in registers; returns their
    /// number.
    fn turn<T: Pod>(
        &self,
        source: &[T],
        from: isize,
        to: &mut [T],
        row: usize,
        count: usize,
    ) -> usize {
        let columns = self.columns / TURNED * TURNED;
        let fits = size_of::<T>() == size_of::<f32>() && count.is_multiple_of(TURNED);
        match usize::try_from(self.column_stride) {
            Ok(stride) if fits && columns > 0 => {
                let (x, to) = (
                    bytemuck::cast_slice(&source[from as usize..]),
                    bytemuck::cast_slice_mut(to),
                );
                transpose_words(SimdLevel::detect(), x, stride, to, row, count, columns);
                columns
            }
            _ => 0,
        }
    }

    /// Copies consecutive rows of one outer index; `start` is the first element of the first row.
    fn copy<T: Pod>(&self, source: &[T], start: isize, to: &mut [T], row: usize) {
        let rows = to.len() / row;
        for first in (0..rows).step_by(SIDE) {
            let count = SIDE.min(rows - first);
            for middle in 0..self.middle.numel() {
                let from = start + first as isize + place(&self.middle, middle);
                let to = &mut to[first * row + middle * self.columns..];
                let turned = self.turn(source, from, to, row, count);
                let whole = match count {
                    SIDE => (self.columns / SIDE * SIDE).max(turned),
                    _ => turned,
                };
                for column in (turned..whole).step_by(SIDE) {
                    let from = from + column as isize * self.column_stride;
                    tile::<T, SIDE>(source, from, self.column_stride, &mut to[column..], row);
                }
                // The rest row by row, in parts that stay in the L1 cache.
                for column in (whole..self.columns).step_by(PART) {
                    let width = PART.min(self.columns - column);
                    let from = from + column as isize * self.column_stride;
                    for r in 0..count {
                        let to = &mut to[r * row + column..][..width];
                        strided(source, from + r as isize, self.column_stride, to);
                    }
                }
            }
        }
    }
}

/// Columns that are copied row by row together.
const PART: usize = 512;

/// Copies elements at a constant stride.
#[inline(always)]
fn strided<T: Pod>(source: &[T], from: isize, stride: isize, to: &mut [T]) {
    match usize::try_from(stride) {
        Ok(stride) => {
            let from = source[from as usize..].iter().step_by(stride);
            to.iter_mut().zip(from).for_each(|(to, x)| *to = *x);
        }
        Err(_) => {
            for (c, to) in to.iter_mut().enumerate() {
                *to = source[(from + c as isize * stride) as usize];
            }
        }
    }
}

/// Copies a square tile: `to[r][c] = source[from + c stride + r]`.
#[inline(always)]
fn tile<T: Pod, const N: usize>(
    source: &[T],
    from: isize,
    stride: isize,
    to: &mut [T],
    row: usize,
) {
    let mut block = [[T::zeroed(); N]; N];
    for (c, column) in block.iter_mut().enumerate() {
        let at = (from + c as isize * stride) as usize;
        column.copy_from_slice(&source[at..at + N]);
    }
    for r in 0..N {
        let to = &mut to[r * row..][..N];
        for (to, column) in to.iter_mut().zip(&block) {
            *to = column[r];
        }
    }
}

/// Offset of the element with this index in row-major order.
pub fn place(layout: &Layout, index: usize) -> isize {
    let (mut at, mut rest) = (layout.offset as isize, index);
    for (n, stride) in layout.shape().iter().zip(layout.strides()).rev() {
        at += (rest % n) as isize * stride;
        rest /= n;
    }
    at
}

/// A layout as runs of constant stride. A run covers the last axis, and as many axes before it as
/// have the same stride between all their elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StridedRuns {
    /// The remaining outer axes; each of their indices is one run.
    outer: Layout,
    /// Elements of a run.
    pub(crate) len: usize,
    /// Stride within a run.
    pub(crate) stride: isize,
}

impl StridedRuns {
    /// Splits a non-empty layout into runs.
    pub(crate) fn new(layout: &Layout) -> StridedRuns {
        let (shape, strides) = (layout.shape(), layout.strides());
        let mut axes = shape.len();
        let (mut len, mut stride) = (1, 0);
        while axes > 0 {
            let (n, s) = (shape[axes - 1], strides[axes - 1]);
            if len == 1 {
                (len, stride) = (n, s);
            } else if n != 1 && s != stride * len as isize {
                break;
            } else {
                len *= n;
            }
            axes -= 1;
        }
        StridedRuns {
            outer: Layout::new(&shape[..axes], &strides[..axes], layout.offset),
            len,
            stride,
        }
    }

    /// Calls `f` with the start offset of each run, from run `first` on, until `f` returns false.
    pub(crate) fn for_each_run(&self, first: usize, mut f: impl FnMut(usize) -> bool) {
        let (shape, strides) = (self.outer.shape(), self.outer.strides());
        let mut index = [0; tercet_ir::MAX_RANK];
        let mut at = self.outer.offset as isize;
        let mut rest = first;
        for axis in (0..shape.len()).rev() {
            index[axis] = rest % shape[axis];
            rest /= shape[axis];
            at += index[axis] as isize * strides[axis];
        }
        while f(at as usize) {
            let mut axis = shape.len();
            loop {
                if axis == 0 {
                    return;
                }
                axis -= 1;
                index[axis] += 1;
                at += strides[axis];
                if index[axis] < shape[axis] {
                    break;
                }
                at -= strides[axis] * shape[axis] as isize;
                index[axis] = 0;
            }
        }
    }

    /// Copies runs from `first` on into `to`, whose length is a multiple of the run length.
    fn copy<T: Pod>(&self, source: &[T], first: usize, to: &mut [T]) {
        let mut runs = to.chunks_exact_mut(self.len);
        self.for_each_run(first, |at| {
            let Some(run) = runs.next() else { return false };
            match self.stride {
                1 => run.copy_from_slice(&source[at..at + run.len()]),
                0 => run.fill(source[at]),
                stride => {
                    let mut from = at as isize;
                    for x in run {
                        *x = source[from as usize];
                        from += stride;
                    }
                }
            }
            true
        });
    }
}
