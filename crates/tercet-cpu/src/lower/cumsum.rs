//! `CumSum`: cumulative sums, products, maxima and minima. Floats accumulate in f64; integers wrap.
//!
//! One thread processes a line in order. Lines along the last axis are distributed over threads.
//! Along another axis, a tile of adjacent lines is processed together, and tiles are distributed
//! over threads.
#![allow(unsafe_code, reason = "tasks write disjoint lines of the result")]

use std::ops::Range;

use half::{bf16, f16};
use tercet_ir::ops::{CumSum, ScanFn};
use tercet_ir::{DType, Element, Graph, Node, Op, OpKind, Support};

use crate::args::KernelArgs;
use crate::kernels::columns::{ColumnReduction, fold_row};
use crate::kernels::parallel::{SharedMut, for_each};
use crate::kernels::scan::{TILE, cumulative_sums};
use crate::kernels::{KernelThreads, SimdLevel};
use crate::lower::elem::{AxisBlocks, WrappingInt, for_element, native_for, parts};
use crate::lower::{CpuKernel, LoweredNode, kernel};

/// The kernels of this file.
pub(super) const KERNELS: &[CpuKernel] = &[kernel("cum_sum", OpKind::CumSum, supports, lower)];

/// Minimum elements of a parallel task.
const TASK: usize = 1 << 14;

pub(crate) fn supports(graph: &Graph, node: &Node) -> Support {
    native_for(DType::NUMBERS, graph.ty(node.inputs[0]).dtype)
}

pub(crate) fn lower(graph: &Graph, node: &Node) -> LoweredNode {
    let Op::CumSum(op) = &node.op else {
        unreachable!("invariant: the kernel table maps only `CumSum` to this row")
    };
    let op = op.clone();
    let level = SimdLevel::detect();
    let run = for_element!(graph.ty(node.inputs[0]).dtype, run);
    LoweredNode::new(1, move |args: &mut KernelArgs<'_>| {
        run(level, &op, args);
        Ok(())
    })
}

/// Runs loops with the function as a constant `F`, so that the compiler vectorizes them.
macro_rules! for_scan {
    ($f:expr, |$name:ident| $body:expr) => {
        match $f {
            tercet_ir::ops::ScanFn::Sum => {
                const $name: tercet_ir::ops::ScanFn = tercet_ir::ops::ScanFn::Sum;
                $body
            }
            tercet_ir::ops::ScanFn::Prod => {
                const $name: tercet_ir::ops::ScanFn = tercet_ir::ops::ScanFn::Prod;
                $body
            }
            tercet_ir::ops::ScanFn::Max => {
                const $name: tercet_ir::ops::ScanFn = tercet_ir::ops::ScanFn::Max;
                $body
            }
            tercet_ir::ops::ScanFn::Min => {
                const $name: tercet_ir::ops::ScanFn = tercet_ir::ops::ScanFn::Min;
                $body
            }
        }
    };
}
pub(crate) use for_scan;

/// Element type with its accumulator.
pub(crate) trait CumSumElem: Element {
    /// Accumulator type: `f64` for floats, the same type for integers.
    type Wide: Copy + Send + bytemuck::Pod;

    /// Identity element of the function.
    fn identity(f: ScanFn) -> Self::Wide;
    /// Combines the accumulator with one more element.
    fn combine(f: ScanFn, so_far: Self::Wide, x: Self) -> Self::Wide;
    /// Converts an accumulator to the element type, rounding once.
    fn result(so_far: Self::Wide) -> Self;

    /// Scans the adjacent lines `columns` of one outer index; the elements of a line have stride
    /// `inner`.
    ///
    /// # Safety
    /// `out` has as many elements as `x`, and no other thread accesses these lines.
    unsafe fn scan_block(
        _: SimdLevel,
        op: &CumSum,
        (inner, columns): (usize, Range<usize>),
        x: &[Self],
        out: SharedMut<Self>,
    ) {
        // SAFETY: the caller guarantees the requirements.
        unsafe { scan_block(op, (inner, columns), x, out) }
    }

    /// Combines elements pair by pair. Returns false if there is no faster kernel than a loop over
    /// [`Self::combine`].
    fn combine_slices(_: SimdLevel, _: ScanFn, _: &mut [Self], _: &[Self]) -> bool {
        false
    }
}

/// IEEE 754-2019 `maximum` or `minimum`, without branches, which would keep the compiler from
/// vectorizing.
#[inline(always)]
fn extreme(
    a: f64,
    b: f64,
    is_before: impl Fn(f64, f64) -> bool,
    zeros: fn(u64, u64) -> u64,
) -> f64 {
    let (first, second) = (
        if is_before(a, b) { a } else { b },
        if is_before(b, a) { b } else { a },
    );
    // The two orders differ for zeros of different signs only.
    let found = f64::from_bits(zeros(first.to_bits(), second.to_bits()));
    if a.is_nan() | b.is_nan() {
        a + b
    } else {
        found
    }
}

macro_rules! float_scans {
    ($($t:ty: $from:expr, $into:expr $(, { $($more:tt)* })?);* $(;)?) => {$(impl CumSumElem for $t {
        type Wide = f64;

        fn identity(f: ScanFn) -> f64 {
            match f {
                ScanFn::Sum => 0.0,
                ScanFn::Prod => 1.0,
                ScanFn::Max => f64::NEG_INFINITY,
                ScanFn::Min => f64::INFINITY,
            }
        }

        #[inline(always)]
        fn combine(f: ScanFn, so_far: f64, x: $t) -> f64 {
            let x: f64 = $from(x);
            match f {
                ScanFn::Sum => so_far + x,
                ScanFn::Prod => so_far * x,
                ScanFn::Max => extreme(so_far, x, |a, b| a > b, |a, b| a & b),
                ScanFn::Min => extreme(so_far, x, |a, b| a < b, |a, b| a | b),
            }
        }

        #[inline(always)]
        fn result(so_far: f64) -> $t {
            $into(so_far)
        }
        $($($more)*)?
    })*};
}
float_scans! {
    f32: f64::from, |x| x as f32, {
        unsafe fn scan_block(
            level: SimdLevel,
            op: &CumSum,
            (inner, columns): (usize, Range<usize>),
            x: &[f32],
            out: SharedMut<f32>,
        ) {
            if op.f == ScanFn::Sum && inner > 1 {
                return cumulative_sums(level, inner, columns, op.exclusive, op.reverse, x, out);
            }
            // SAFETY: the caller guarantees the requirements.
            unsafe { scan_block(op, (inner, columns), x, out) }
        }

        fn combine_slices(level: SimdLevel, f: ScanFn, so_far: &mut [f32], x: &[f32]) -> bool {
            // An extreme of floats does not round, so no wider type is needed.
            match f {
                ScanFn::Max => fold_row(level, ColumnReduction::Max, so_far, x),
                ScanFn::Min => fold_row(level, ColumnReduction::Min, so_far, x),
                ScanFn::Sum | ScanFn::Prod => return false,
            }
            true
        }
    };
    f64: |x| x, |x| x;
    f16: f16::to_f64, |x| f16::from_f32(x as f32);
    bf16: bf16::to_f64, |x| bf16::from_f32(x as f32);
}

macro_rules! int_scans {
    ($($t:ty),*) => {$(impl CumSumElem for $t {
        type Wide = $t;

        fn identity(f: ScanFn) -> $t {
            match f {
                ScanFn::Sum => 0,
                ScanFn::Prod => 1,
                ScanFn::Max => <$t>::LOWEST,
                ScanFn::Min => <$t>::GREATEST,
            }
        }

        #[inline(always)]
        fn combine(f: ScanFn, so_far: $t, x: $t) -> $t {
            match f {
                ScanFn::Sum => so_far.plus(x),
                ScanFn::Prod => so_far.times(x),
                ScanFn::Max => so_far.max(x),
                ScanFn::Min => so_far.min(x),
            }
        }

        #[inline(always)]
        fn result(so_far: $t) -> $t {
            so_far
        }
    })*};
}
int_scans!(i32, u32, i64, i16, i8, u8);

fn run<T: CumSumElem>(level: SimdLevel, op: &CumSum, args: &mut KernelArgs<'_>) {
    let AxisBlocks { outer, len, inner } = AxisBlocks::new(args.ins[0].shape(), op.axis);
    let block = len * inner;
    if outer * block == 0 {
        return;
    }
    let x: &[T] = args.ins[0].dense();
    if inner > 1 {
        // Tiles of adjacent lines.
        let tiles = inner.div_ceil(TILE);
        let together = TASK.div_ceil(len * TILE.min(inner));
        let threads = KernelThreads::parallel(args.parallel);
        let out = SharedMut::new(args.outs[0].as_mut::<T>());
        for_each(threads, (outer * tiles).div_ceil(together), |task| {
            for at in task * together..(outer * tiles).min((task + 1) * together) {
                let (start, first) = (at / tiles * block, at % tiles * TILE);
                let columns = first..inner.min(first + TILE);
                let x = &x[start..start + block];
                // SAFETY: the result has the sizes of the operand, and each tile of lines belongs
                // to one task.
                unsafe { T::scan_block(level, op, (inner, columns), x, out.from(start)) }
            }
        });
        return;
    }
    let blocks = TASK.div_ceil(block);
    parts(
        args.parallel,
        args.outs[0].as_mut(),
        blocks * block,
        |i, out| {
            let x = &x[i * blocks * block..][..out.len()];
            let (x, out) = scan_rows(op, len, x, out);
            for (x, out) in x.chunks_exact(block).zip(out.chunks_exact_mut(block)) {
                // SAFETY: the lengths are equal, and this task owns the line.
                unsafe { T::scan_block(level, op, (1, 0..1), x, SharedMut::new(out)) }
            }
        },
    );
}

/// Scans contiguous lines in groups; returns the lines of the rest.
fn scan_rows<'a, T: CumSumElem>(
    op: &CumSum,
    len: usize,
    x: &'a [T],
    out: &'a mut [T],
) -> (&'a [T], &'a mut [T]) {
    const ROWS: usize = 8;
    let whole = x.len() / (ROWS * len) * ROWS * len;
    let (groups, rest) = x.split_at(whole);
    let (out, out_rest) = out.split_at_mut(whole);
    let pairs = groups
        .chunks_exact(ROWS * len)
        .zip(out.chunks_exact_mut(ROWS * len));
    for (x, out) in pairs {
        match op.f {
            ScanFn::Sum => contiguous::<T, ROWS>(op, x, out, |a, x| T::combine(ScanFn::Sum, a, x)),
            ScanFn::Prod => {
                contiguous::<T, ROWS>(op, x, out, |a, x| T::combine(ScanFn::Prod, a, x))
            }
            ScanFn::Max => contiguous::<T, ROWS>(op, x, out, |a, x| T::combine(ScanFn::Max, a, x)),
            ScanFn::Min => contiguous::<T, ROWS>(op, x, out, |a, x| T::combine(ScanFn::Min, a, x)),
        }
    }
    (rest, out_rest)
}

/// As [`CumSumElem::scan_block`], for every element type.
///
/// # Safety
/// As for [`CumSumElem::scan_block`].
unsafe fn scan_block<T: CumSumElem>(
    op: &CumSum,
    lines_of: (usize, Range<usize>),
    x: &[T],
    out: SharedMut<T>,
) {
    // SAFETY: the caller guarantees the requirements.
    unsafe {
        // A constant function per loop, so that the compiler vectorizes it.
        match op.f {
            ScanFn::Sum => lines(op, lines_of, x, out, |a, x| T::combine(ScanFn::Sum, a, x)),
            ScanFn::Prod => lines(op, lines_of, x, out, |a, x| T::combine(ScanFn::Prod, a, x)),
            ScanFn::Max => lines(op, lines_of, x, out, |a, x| T::combine(ScanFn::Max, a, x)),
            ScanFn::Min => lines(op, lines_of, x, out, |a, x| T::combine(ScanFn::Min, a, x)),
        }
    }
}

/// Scans `N` contiguous lines of equal length side by side, so that their chains overlap.
#[inline(always)]
fn contiguous<T: CumSumElem, const N: usize>(
    op: &CumSum,
    x: &[T],
    out: &mut [T],
    combine: impl Fn(T::Wide, T) -> T::Wide,
) {
    let len = x.len() / N;
    let x: [&[T]; N] = std::array::from_fn(|i| &x[i * len..][..len]);
    let mut so_far = [T::identity(op.f); N];
    for step in 0..len {
        let at = if op.reverse { len - 1 - step } else { step };
        for i in 0..N {
            let with = combine(so_far[i], x[i][at]);
            out[i * len + at] = T::result(if op.exclusive { so_far[i] } else { with });
            so_far[i] = with;
        }
    }
}

/// Processes adjacent lines of one outer index, at most [`TILE`]. The elements of a line have
/// stride `inner`.
///
/// # Safety
/// `out` has as many elements as `x`, and no other thread accesses these lines.
#[inline(always)]
unsafe fn lines<T: CumSumElem>(
    op: &CumSum,
    (inner, columns): (usize, Range<usize>),
    x: &[T],
    out: SharedMut<T>,
    combine: impl Fn(T::Wide, T) -> T::Wide,
) {
    if inner == 1 {
        // SAFETY: the caller guarantees the requirements.
        let out = unsafe { out.slice(0, x.len()) };
        return contiguous::<T, 1>(op, x, out, combine);
    }
    let len = x.len() / inner;
    let (first, n) = (columns.start, columns.len());
    let mut so_far = [T::identity(op.f); TILE];
    for step in 0..len {
        let i = if op.reverse { len - 1 - step } else { step };
        let at = i * inner + first;
        // SAFETY: the elements are inside the result, and belong to the lines of this thread.
        let out = unsafe { out.slice(at, n) };
        let row = x[at..at + n].iter().zip(out);
        for (so_far, (x, y)) in so_far.iter_mut().zip(row) {
            let with = combine(*so_far, *x);
            *y = T::result(if op.exclusive { *so_far } else { with });
            *so_far = with;
        }
    }
}
