//! `ScatterElements` without a sort, if no update changes a line along the axis other than its own. A task
//! processes several lines, and applies the updates of each line in their order.

use tercet_ir::EvalError;
use tercet_ir::ops::ScanFn;

use crate::args::KernelView;
use crate::kernels::KernelThreads;
use crate::kernels::parallel::{SharedMut, for_each_with_scratch};
use crate::lower::cumsum::{CumSumElem, for_scan};
use crate::lower::elem::AxisBlocks;
use crate::lower::indexed::check_all;

/// Maximum elements of the lines of a task, whose accumulators stay in the L2 cache.
const TILE: usize = 1 << 14;
/// Adjacent lines of a task, at most: two cache lines of F32.
const WIDTH: usize = 32;

/// The lines of a scatter: those of the data and of the updates differ in length only.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScatterLines {
    data: AxisBlocks,
    /// Updates of a line.
    updates: usize,
    /// Adjacent lines per task.
    width: usize,
    replaces: bool,
}

impl ScatterLines {
    /// The lines of the shapes, or `None` if the updates leave lines out or the accumulators of a line do not fit the
    /// cache. Updates that replace elements need no accumulators.
    pub(super) fn new(
        data: &[usize],
        idx: &[usize],
        axis: usize,
        replaces: bool,
    ) -> Option<ScatterLines> {
        let pairs = data.iter().zip(idx).enumerate();
        let same = pairs.into_iter().all(|(a, (n, m))| a == axis || n == m);
        if !same || !replaces && data[axis] > TILE {
            return None;
        }
        let blocks = AxisBlocks::new(data, axis);
        let fit = match replaces {
            true => WIDTH,
            false => TILE / blocks.len.max(1),
        };
        Some(ScatterLines {
            data: blocks,
            updates: idx[axis],
            width: fit.min(WIDTH).min(blocks.inner).max(1),
            replaces,
        })
    }

    /// Accumulators of a task.
    pub(super) fn part_len(&self) -> usize {
        match self.replaces {
            true => 0,
            false => self.data.len * self.width,
        }
    }

    /// Applies the updates to `out`, a copy of the data. The kernel combines
    /// the updates of an element in their order, in the accumulator type, and rounds once.
    ///
    /// # Errors
    /// [`EvalError::Index`] for the first index that is outside the axis.
    pub(super) fn run<T: CumSumElem>(
        &self,
        f: Option<ScanFn>,
        idx: &KernelView<'_>,
        updates: &[T],
        out: &mut [T],
        scratch: &mut [T::Wide],
        threads: KernelThreads,
    ) -> Result<(), EvalError> {
        let AxisBlocks { outer, len, inner } = self.data;
        check_all(idx, len, threads != KernelThreads::Serial)?;
        let tiles = inner.div_ceil(self.width);
        let out = SharedMut::new(out);
        let at = |index: i64| (if index < 0 { index + len as i64 } else { index }) as usize;
        let (narrow, wide): (&[i32], &[i64]) = match idx.dtype {
            tercet_ir::DType::I64 => (&[], idx.dense()),
            _ => (idx.dense(), &[]),
        };
        for_each_with_scratch(
            threads,
            outer * tiles,
            scratch,
            self.part_len(),
            |task, sums| {
                let (block, first) = (task / tiles, task % tiles * self.width);
                let width = self.width.min(inner - first);
                let row = |i: usize| {
                    // SAFETY: the elements are inside the result, and no two tasks share a block and a tile.
                    unsafe { out.slice((block * len + i) * inner + first, width) }
                };
                let index = |i: usize| match narrow.is_empty() {
                    true => at(wide[i]),
                    false => at(narrow[i].into()),
                };
                let Some(f) = f else {
                    if inner == 1 {
                        // SAFETY: the line is inside the result, and belongs to this task alone.
                        let line = unsafe { out.slice(block * len, len) };
                        let own = block * self.updates..(block + 1) * self.updates;
                        let from = &updates[own.clone()];
                        match narrow.is_empty() {
                            true => replace(line, &wide[own], from, at),
                            false => replace(line, &narrow[own], from, at),
                        }
                        return;
                    }
                    for j in 0..self.updates {
                        let from = (block * self.updates + j) * inner + first;
                        for i in 0..width {
                            row(index(from + i))[i] = updates[from + i];
                        }
                    }
                    return;
                };
                let sums = &mut sums[..len * width];
                if inner == 1 {
                    // SAFETY: the line is inside the result, and belongs to this task alone.
                    let line = unsafe { out.slice(block * len, len) };
                    let own = block * self.updates..(block + 1) * self.updates;
                    let from = &updates[own.clone()];
                    match narrow.is_empty() {
                        true => combine(f, line, &wide[own], from, sums, at),
                        false => combine(f, line, &narrow[own], from, sums, at),
                    }
                    return;
                }
                for (i, sums) in sums.chunks_exact_mut(width).enumerate() {
                    for (sum, x) in sums.iter_mut().zip(&*row(i)) {
                        *sum = T::combine(f, T::identity(f), *x);
                    }
                }
                for_scan!(f, |F| for j in 0..self.updates {
                    let from = (block * self.updates + j) * inner + first;
                    for i in 0..width {
                        let sum = &mut sums[index(from + i) * width + i];
                        *sum = T::combine(F, *sum, updates[from + i]);
                    }
                });
                for (i, sums) in sums.chunks_exact(width).enumerate() {
                    for (x, sum) in row(i).iter_mut().zip(sums) {
                        *x = T::result(*sum);
                    }
                }
            },
        );
        Ok(())
    }
}

/// Combines updates with the elements of a line in their order. `sums` has an accumulator for each
/// element.
fn combine<T: CumSumElem, I: Copy + Into<i64>>(
    f: ScanFn,
    line: &mut [T],
    index: &[I],
    updates: &[T],
    sums: &mut [T::Wide],
    at: impl Fn(i64) -> usize,
) {
    for_scan!(f, |F| {
        for (sum, x) in sums.iter_mut().zip(&*line) {
            *sum = T::combine(F, T::identity(F), *x);
        }
        for (index, x) in index.iter().zip(updates) {
            let sum = &mut sums[at((*index).into())];
            *sum = T::combine(F, *sum, *x);
        }
    });
    for (x, sum) in line.iter_mut().zip(sums) {
        *x = T::result(*sum);
    }
}

/// Replaces elements of a line in the order of the updates.
fn replace<T: Copy, I: Copy + Into<i64>>(
    line: &mut [T],
    index: &[I],
    updates: &[T],
    at: impl Fn(i64) -> usize,
) {
    for (index, x) in index.iter().zip(updates) {
        line[at((*index).into())] = *x;
    }
}
