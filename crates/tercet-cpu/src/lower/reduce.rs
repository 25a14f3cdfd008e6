//! `Reduce` over any axes.
//!
//! Axes of size 1 are dropped, and adjacent axes are merged if both are reduced or both are kept.
//! The last remaining axis is either reduced (*rows*: a vector kernel folds each row) or kept
//! (*columns*: rows are added tile by tile). In both cases a result is then folded over the other
//! reduced axes in row-major order.
//!
//! Invariant: the order of operations depends only on the shape. A few long results are split into
//! blocks that threads share. The partial results are folded in the same order as on one thread.

use half::{bf16, f16};
use tercet_ir::ops::{Reduce, ReduceFn};
use tercet_ir::{DType, Element, Graph, MAX_RANK, Node, Op, OpKind, Support, scalar};

use crate::args::KernelArgs;
use crate::kernels::columns::{ColumnReduction, fold_all, fold_row};
use crate::kernels::{SimdLevel, rows};
use crate::lower::elem::{BUFFER, ComputeF32, WrappingInt, for_element, native_for, parts};
use crate::lower::{AcceptedLayout, CpuKernel, LoweredNode, kernel};
use tercet_ir::layout::Layout;

/// The kernels of this file.
pub(super) const KERNELS: &[CpuKernel] = &[kernel("reduce", OpKind::Reduce, supports, lower)];

/// Elements of a row that are folded together.
const BLOCK: usize = 1 << 14;
/// Columns that are folded together.
const TILE: usize = 512;
/// Independent chains of a fold.
const STRIPES: usize = 16;
/// Number of rows that are summed per column in `f32` before these sums are added to the `f64`
/// sums.
const RUN: usize = 64;
/// Minimum elements that a parallel task reads.
const TASK: usize = 1 << 15;
/// Maximum number of results for which threads share the row blocks of each result. If there are
/// more results than this, each task computes whole results.
const MAX_RESULTS_FOR_ROW_BLOCKS: usize = 16;

pub(crate) fn supports(graph: &Graph, node: &Node) -> Support {
    native_for(DType::NUMBERS, graph.ty(node.inputs[0]).dtype)
}

pub(crate) fn lower(graph: &Graph, node: &Node) -> LoweredNode {
    let Op::Reduce(op) = &node.op else {
        unreachable!("invariant: the kernel table maps only `Reduce` to this row")
    };
    let (op, sizing) = (op.clone(), op.clone());
    let run = for_element!(graph.ty(node.inputs[0]).dtype, run);
    let level = SimdLevel::detect();
    LoweredNode {
        accepts: vec![AcceptedLayout::Rows],
        scratch: Some(Box::new(move |layouts, _| {
            ReduceShape::new(&layouts[0], &sizing).partial_bytes()
        })),
        ..LoweredNode::new(1, move |args: &mut KernelArgs<'_>| {
            run(level, &op, args);
            Ok(())
        })
    }
}

/// Either the kept axes or the reduced axes of an operand after merging, outermost first.
#[derive(Clone, Copy, Debug, Default)]
struct ReduceAxes {
    rank: usize,
    len: [usize; MAX_RANK],
    stride: [isize; MAX_RANK],
}

impl ReduceAxes {
    fn push(&mut self, len: usize, stride: isize) {
        self.len[self.rank] = len;
        self.stride[self.rank] = stride;
        self.rank += 1;
    }

    fn count(&self) -> usize {
        self.len[..self.rank].iter().product()
    }

    /// Offset of the element at a row-major index from the first element.
    fn offset(&self, mut index: usize) -> usize {
        let mut at = 0;
        for axis in (0..self.rank).rev() {
            at += (index % self.len[axis]) as isize * self.stride[axis];
            index /= self.len[axis];
        }
        at as usize
    }

    /// Offsets of all indices, in row-major order.
    fn offsets(self) -> ReduceOffsets {
        ReduceOffsets {
            remaining: self.count(),
            axes: self,
            index: [0; MAX_RANK],
            at: 0,
        }
    }
}

struct ReduceOffsets {
    axes: ReduceAxes,
    index: [usize; MAX_RANK],
    at: isize,
    remaining: usize,
}

impl Iterator for ReduceOffsets {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        self.remaining = self.remaining.checked_sub(1)?;
        let at = self.at as usize;
        for axis in (0..self.axes.rank).rev() {
            self.index[axis] += 1;
            self.at += self.axes.stride[axis];
            if self.index[axis] < self.axes.len[axis] {
                break;
            }
            self.at -= self.axes.stride[axis] * self.axes.len[axis] as isize;
            self.index[axis] = 0;
        }
        Some(at)
    }
}

/// Whether the innermost axis, whose elements are contiguous, is reduced (rows) or kept (columns),
/// and its length.
#[derive(Clone, Copy, Debug)]
enum ReduceInnerAxis {
    Rows(usize),
    Columns(usize),
}

/// The kept and reduced axes of a non-empty operand after merging.
#[derive(Clone, Copy, Debug)]
struct ReduceShape {
    kept_axes: ReduceAxes,
    reduced: ReduceAxes,
    inner: ReduceInnerAxis,
}

impl ReduceShape {
    fn new(layout: &Layout, op: &Reduce) -> ReduceShape {
        let mut axes: [(usize, isize, bool); MAX_RANK] = Default::default();
        let mut n = 0;
        for (axis, (&len, &stride)) in layout.shape().iter().zip(layout.strides()).enumerate() {
            let reduced = op.axes.contains(&axis);
            if len == 1 {
                continue;
            }
            match axes[..n].last_mut() {
                Some((outer, s, r)) if *r == reduced && *s == stride * len as isize => {
                    *outer *= len;
                    *s = stride;
                }
                Some(_) | None => {
                    axes[n] = (len, stride, reduced);
                    n += 1;
                }
            }
        }
        // If the last axis has size 1, the next one may have any stride.
        let inner = match axes[..n].last() {
            Some(&(len, 1, reduced)) => {
                n -= 1;
                if reduced {
                    ReduceInnerAxis::Rows(len)
                } else {
                    ReduceInnerAxis::Columns(len)
                }
            }
            Some(_) | None => ReduceInnerAxis::Columns(1),
        };
        let (mut kept, mut reduced) = (ReduceAxes::default(), ReduceAxes::default());
        for &(len, stride, is_reduced) in &axes[..n] {
            if is_reduced { &mut reduced } else { &mut kept }.push(len, stride);
        }
        ReduceShape {
            kept_axes: kept,
            reduced,
            inner,
        }
    }

    /// Bytes of scratch memory for partial results; 0 unless there are a few long results.
    fn partial_bytes(&self) -> usize {
        match self.inner {
            ReduceInnerAxis::Rows(len) => {
                let (results, blocks) = (self.kept_axes.count(), self.blocks(len));
                match results <= MAX_RESULTS_FOR_ROW_BLOCKS && blocks > 1 && blocks <= BLOCK {
                    true => results * blocks * size_of::<f64>(),
                    false => 0,
                }
            }
            ReduceInnerAxis::Columns(_) => 0,
        }
    }

    /// The distance between the rows, if each result is a row of one block and all distances are
    /// equal.
    fn even_rows(&self, len: usize) -> Option<usize> {
        let single = self.reduced.rank == 0 && len <= BLOCK;
        let step = match self.kept_axes.rank {
            0 => Some(len),
            1 => usize::try_from(self.kept_axes.stride[0]).ok(),
            _ => None,
        };
        step.filter(|step| single && *step >= len)
    }

    /// Number of row blocks of one result.
    fn blocks(&self, len: usize) -> usize {
        self.reduced.count() * len.div_ceil(BLOCK)
    }

    /// Number of elements that one result reduces.
    fn reduced_count(&self) -> usize {
        match self.inner {
            ReduceInnerAxis::Rows(len) => self.reduced.count() * len,
            ReduceInnerAxis::Columns(_) => self.reduced.count(),
        }
    }
}

/// Element type with its reduction functions.
trait ReduceElem: Element {
    /// Accumulator type: `f64` for floats, the same type for integers.
    type Wide: bytemuck::Pod + Send + Sync;

    fn identity(f: ReduceFn) -> Self::Wide;
    fn combine(f: ReduceFn, a: Self::Wide, b: Self::Wide) -> Self::Wide;
    /// Folds at most [`BLOCK`] elements.
    fn block(level: SimdLevel, f: ReduceFn, x: &[Self]) -> Self::Wide;
    /// Converts the accumulator of `n` elements to the result.
    fn result(f: ReduceFn, wide: Self::Wide, n: usize) -> Self;
    /// Folds rows, which start at these offsets of `x`, column by column; at most [`TILE`] columns.
    fn columns(
        level: SimdLevel,
        f: ReduceFn,
        x: &[Self],
        rows: impl Iterator<Item = usize>,
        n: usize,
        out: &mut [Self],
    );
}

fn run<T: ReduceElem>(level: SimdLevel, op: &Reduce, args: &mut KernelArgs<'_>) {
    let (from, f, parallel) = (args.ins[0], op.f, args.parallel);
    let out = args.outs[0].as_mut::<T>();
    if from.layout.numel() == 0 {
        return out.fill(T::result(f, T::identity(f), 0));
    }
    let x: &[T] = from.tail();
    let shape = ReduceShape::new(from.layout, op);
    let n = shape.reduced_count();
    match shape.inner {
        ReduceInnerAxis::Rows(len) => {
            let fold = |base: usize| {
                let starts = shape.reduced.offsets();
                let blocks = starts.flat_map(|at| x[base + at..][..len].chunks(BLOCK));
                let parts = blocks.map(|block| T::block(level, f, block));
                T::result(f, parts.fold(T::identity(f), |a, b| T::combine(f, a, b)), n)
            };
            let blocks = shape.blocks(len);
            let bytes = out.len() * blocks * size_of::<T::Wide>();
            let share = parallel && shape.partial_bytes() > 0;
            if let Some(partial) = args.scratch.get_mut(..bytes).filter(|_| share) {
                return few_rows(
                    level,
                    f,
                    &shape,
                    len,
                    x,
                    bytemuck::cast_slice_mut(partial),
                    out,
                );
            }
            let task = TASK.div_ceil(n);
            if let Some(step) = shape.even_rows(len) {
                parts(parallel, out, task, |i, out| {
                    let rows = x[i * task * step..].chunks(step.max(1));
                    for (y, row) in out.iter_mut().zip(rows) {
                        let part = T::block(level, f, &row[..len]);
                        *y = T::result(f, T::combine(f, T::identity(f), part), n);
                    }
                });
                return;
            }
            parts(parallel, out, task, |i, out| {
                for (j, y) in out.iter_mut().enumerate() {
                    *y = fold(shape.kept_axes.offset(i * task + j));
                }
            });
        }
        ReduceInnerAxis::Columns(len) if len * n >= TASK => {
            parts(parallel, out, len, |i, out| {
                let base = shape.kept_axes.offset(i);
                // Split into a few tasks of whole cache lines.
                let width = len.div_ceil(4).next_multiple_of(16).min(TILE);
                parts(parallel, out, width, |tile, out| {
                    let x = &x[base + tile * width..];
                    T::columns(level, f, x, shape.reduced.offsets(), n, out);
                });
            });
        }
        ReduceInnerAxis::Columns(len) => {
            let task = TASK.div_ceil(len * n);
            parts(parallel, out, task * len, |i, out| {
                for (j, out) in out.chunks_exact_mut(len).enumerate() {
                    let base = shape.kept_axes.offset(i * task + j);
                    for (tile, out) in out.chunks_mut(TILE).enumerate() {
                        let x = &x[base + tile * TILE..];
                        T::columns(level, f, x, shape.reduced.offsets(), n, out);
                    }
                }
            });
        }
    }
}

/// Computes a few results of many elements each; threads share the blocks of one result.
fn few_rows<T: ReduceElem>(
    level: SimdLevel,
    f: ReduceFn,
    shape: &ReduceShape,
    len: usize,
    x: &[T],
    partial: &mut [T::Wide],
    out: &mut [T],
) {
    let (per_row, blocks) = (len.div_ceil(BLOCK), shape.blocks(len));
    parts(true, partial, 1, |i, partial| {
        let (result, block) = (i / blocks, i % blocks);
        let row = shape.kept_axes.offset(result) + shape.reduced.offset(block / per_row);
        let first = block % per_row * BLOCK;
        partial[0] = T::block(level, f, &x[row + first..][..BLOCK.min(len - first)]);
    });
    for (y, partial) in out.iter_mut().zip(partial.chunks_exact(blocks)) {
        let parts = partial.iter().copied();
        let wide = parts.fold(T::identity(f), |a, b| T::combine(f, a, b));
        *y = T::result(f, wide, shape.reduced_count());
    }
}

fn float_identity(f: ReduceFn) -> f64 {
    match f {
        ReduceFn::Sum | ReduceFn::Mean => 0.0,
        ReduceFn::Prod => 1.0,
        ReduceFn::Max => f64::NEG_INFINITY,
        ReduceFn::Min => f64::INFINITY,
    }
}

#[inline(always)]
fn float_combine(f: ReduceFn, a: f64, b: f64) -> f64 {
    match f {
        ReduceFn::Sum | ReduceFn::Mean => a + b,
        ReduceFn::Prod => a * b,
        ReduceFn::Max => scalar::maximum(a, b),
        ReduceFn::Min => scalar::minimum(a, b),
    }
}

fn float_result(f: ReduceFn, wide: f64, n: usize) -> f64 {
    match f {
        ReduceFn::Mean => wide / n as f64,
        ReduceFn::Sum | ReduceFn::Prod | ReduceFn::Max | ReduceFn::Min => wide,
    }
}

fn real_block<T: ComputeF32>(level: SimdLevel, f: ReduceFn, x: &[T]) -> f64 {
    // F16 and BF16 elements are converted to f32 in a buffer first.
    if T::DTYPE == DType::F32 {
        return real_parts(level, f, x, BLOCK, &mut []);
    }
    real_parts(level, f, x, BUFFER, &mut [0.0; BUFFER])
}

/// Folds elements in parts of `step`, which fit the buffer if it is needed.
fn real_parts<T: ComputeF32>(
    level: SimdLevel,
    f: ReduceFn,
    x: &[T],
    step: usize,
    buffer: &mut [f32],
) -> f64 {
    let mut wide = float_identity(f);
    for x in x.chunks(step) {
        let x = T::widen(level, x, buffer);
        let part = match f {
            ReduceFn::Sum | ReduceFn::Mean => f64::from(rows::sum(level, x)),
            ReduceFn::Max => f64::from(fold_all(level, ColumnReduction::Max, x)),
            ReduceFn::Min => f64::from(fold_all(level, ColumnReduction::Min, x)),
            // The partial product of a few numbers can overflow or underflow f32 even if the final
            // product does not.
            ReduceFn::Prod => striped(x, 1.0, f64::from, |a, b| a * b),
        };
        wide = float_combine(f, wide, part);
    }
    wide
}

/// Folds every [`STRIPES`]-th element, then the results in order: independent chains, which the processor computes
/// side by side.
#[inline(always)]
fn striped<X: Copy, T: Copy>(
    x: &[X],
    identity: T,
    widen: impl Fn(X) -> T,
    combine: impl Fn(T, T) -> T,
) -> T {
    let mut all = [identity; STRIPES];
    let (whole, rest) = x.as_chunks::<STRIPES>();
    for x in whole {
        for (all, x) in all.iter_mut().zip(x) {
            *all = combine(*all, widen(*x));
        }
    }
    for (all, x) in all.iter_mut().zip(rest) {
        *all = combine(*all, widen(*x));
    }
    all.into_iter().fold(identity, combine)
}

fn real_columns<T: ComputeF32>(
    level: SimdLevel,
    f: ReduceFn,
    x: &[T],
    mut rows: impl Iterator<Item = usize>,
    wide: &mut [f64],
) {
    let n = wide.len();
    wide.fill(float_identity(f));
    let column = match f {
        ReduceFn::Sum | ReduceFn::Mean => ColumnReduction::Sum,
        ReduceFn::Max => ColumnReduction::Max,
        ReduceFn::Min => ColumnReduction::Min,
        ReduceFn::Prod => {
            let mut buffer = [0.0; TILE];
            for at in rows {
                let row = T::widen(level, &x[at..at + n], &mut buffer);
                wide.iter_mut()
                    .zip(row)
                    .for_each(|(w, &x)| *w *= f64::from(x));
            }
            return;
        }
    };
    let (mut acc, mut buffer) = ([0.0; TILE], [0.0; TILE]);
    let acc = &mut acc[..n];
    loop {
        acc.fill(column.identity());
        let mut folded = 0;
        for at in rows.by_ref().take(RUN) {
            fold_row(
                level,
                column,
                acc,
                T::widen(level, &x[at..at + n], &mut buffer),
            );
            folded += 1;
        }
        let pairs = wide.iter_mut().zip(&*acc);
        pairs.for_each(|(w, &a)| *w = float_combine(f, *w, f64::from(a)));
        if folded < RUN {
            return;
        }
    }
}

macro_rules! real_folds {
    ($($t:ty: $narrow:expr);* $(;)?) => {$(impl ReduceElem for $t {
        type Wide = f64;

        fn identity(f: ReduceFn) -> f64 { float_identity(f) }
        fn combine(f: ReduceFn, a: f64, b: f64) -> f64 { float_combine(f, a, b) }
        fn block(level: SimdLevel, f: ReduceFn, x: &[$t]) -> f64 { real_block(level, f, x) }
        fn result(f: ReduceFn, wide: f64, n: usize) -> $t { $narrow(float_result(f, wide, n)) }
        fn columns(
            level: SimdLevel,
            f: ReduceFn,
            x: &[$t],
            rows: impl Iterator<Item = usize>,
            n: usize,
            out: &mut [$t],
        ) {
            let mut wide = [0.0; TILE];
            let wide = &mut wide[..out.len()];
            real_columns(level, f, x, rows, wide);
            out.iter_mut().zip(&*wide).for_each(|(y, &w)| *y = Self::result(f, w, n));
        }
    })*};
}
real_folds! {
    f32: |x| x as f32;
    f16: |x| f16::from_f32(x as f32);
    bf16: |x| bf16::from_f32(x as f32);
}

fn int_identity<T: WrappingInt>(f: ReduceFn) -> T {
    match f {
        ReduceFn::Sum | ReduceFn::Mean => T::ZERO,
        ReduceFn::Prod => T::ONE,
        ReduceFn::Max => T::LOWEST,
        ReduceFn::Min => T::GREATEST,
    }
}

#[inline(always)]
fn int_combine<T: WrappingInt>(f: ReduceFn, a: T, b: T) -> T {
    match f {
        ReduceFn::Sum | ReduceFn::Mean => a.plus(b),
        ReduceFn::Prod => a.times(b),
        ReduceFn::Max => a.max(b),
        ReduceFn::Min => a.min(b),
    }
}

/// Implements the trait for elements that accumulate in their own type.
macro_rules! own_folds {
    ($($t:ty: $identity:path, $combine:path, $result:expr);* $(;)?) => {$(impl ReduceElem for $t {
        type Wide = $t;

        fn identity(f: ReduceFn) -> $t { $identity(f) }
        #[inline(always)]
        fn combine(f: ReduceFn, a: $t, b: $t) -> $t { $combine(f, a, b) }
        fn block(_: SimdLevel, f: ReduceFn, x: &[$t]) -> $t {
            striped(x, $identity(f), |x| x, |a, b| $combine(f, a, b))
        }
        fn result(f: ReduceFn, wide: $t, n: usize) -> $t { $result(f, wide, n) }
        fn columns(
            _: SimdLevel,
            f: ReduceFn,
            x: &[$t],
            rows: impl Iterator<Item = usize>,
            n: usize,
            out: &mut [$t],
        ) {
            out.fill($identity(f));
            for at in rows {
                let row = &x[at..at + out.len()];
                out.iter_mut().zip(row).for_each(|(y, &x)| *y = $combine(f, *y, x));
            }
            out.iter_mut().for_each(|y| *y = $result(f, *y, n));
        }
    })*};
}
own_folds! {
    f64: float_identity, float_combine, float_result;
    i32: int_identity, int_combine, |_, x, _| x;
    u32: int_identity, int_combine, |_, x, _| x;
    i64: int_identity, int_combine, |_, x, _| x;
    i16: int_identity, int_combine, |_, x, _| x;
    i8: int_identity, int_combine, |_, x, _| x;
    u8: int_identity, int_combine, |_, x, _| x;
}
