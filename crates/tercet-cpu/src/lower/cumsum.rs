//! `CumSum`: cumulative sums, products, maxima and minima. Floats accumulate in f64; integers wrap.
//!
//! One thread processes a line in order. Lines along the last axis are distributed over threads.
//! Along another axis, a tile of adjacent lines is processed together.

use half::{bf16, f16};
use tercet_ir::ops::{CumSum, ScanFn};
use tercet_ir::{DType, Element, Graph, Node, Op, Support, scalar};

use crate::args::KernelArgs;
use crate::kernels::SimdLevel;
use crate::kernels::scan::cumulative_sums;
use crate::lower::LoweredNode;
use crate::lower::elem::{AxisBlocks, WrappingInt, for_element, native_for, parts};

/// Adjacent lines that are processed together.
const TILE: usize = 128;
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

    /// Scans one outer index: its lines have stride `inner`.
    fn scan_block(_: SimdLevel, op: &CumSum, inner: usize, x: &[Self], out: &mut [Self]) {
        scan_block(op, inner, x, out);
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
                ScanFn::Max => scalar::maximum(so_far, x),
                ScanFn::Min => scalar::minimum(so_far, x),
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
        fn scan_block(level: SimdLevel, op: &CumSum, inner: usize, x: &[f32], out: &mut [f32]) {
            match op.f {
                ScanFn::Sum if inner > 1 => cumulative_sums(level, inner, op.exclusive, op.reverse, x, out),
                _ => scan_block(op, inner, x, out),
            }
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
    let blocks = TASK.div_ceil(block);
    parts(
        args.parallel,
        args.outs[0].as_mut(),
        blocks * block,
        |i, out| {
            let x = &x[i * blocks * block..][..out.len()];
            let (x, out) = match inner {
                1 => scan_rows(op, len, x, out),
                _ => (x, out),
            };
            for (x, out) in x.chunks_exact(block).zip(out.chunks_exact_mut(block)) {
                T::scan_block(level, op, inner, x, out);
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

/// Scans one outer index: its lines have stride `inner`.
fn scan_block<T: CumSumElem>(op: &CumSum, inner: usize, x: &[T], out: &mut [T]) {
    // A constant function per loop, so that the compiler vectorizes it.
    match op.f {
        ScanFn::Sum => lines::<T, TILE>(op, inner, x, out, |a, x| T::combine(ScanFn::Sum, a, x)),
        ScanFn::Prod => lines::<T, TILE>(op, inner, x, out, |a, x| T::combine(ScanFn::Prod, a, x)),
        ScanFn::Max => lines::<T, TILE>(op, inner, x, out, |a, x| T::combine(ScanFn::Max, a, x)),
        ScanFn::Min => lines::<T, TILE>(op, inner, x, out, |a, x| T::combine(ScanFn::Min, a, x)),
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

/// Processes the lines of one outer index. The elements of a line have stride `inner`; `N` lines
/// are processed together.
#[inline(always)]
fn lines<T: CumSumElem, const N: usize>(
    op: &CumSum,
    inner: usize,
    x: &[T],
    out: &mut [T],
    combine: impl Fn(T::Wide, T) -> T::Wide,
) {
    if inner == 1 {
        return contiguous::<T, 1>(op, x, out, combine);
    }
    let len = x.len() / inner;
    for first in (0..inner).step_by(N) {
        let n = N.min(inner - first);
        let mut so_far = [T::identity(op.f); N];
        for step in 0..len {
            let i = if op.reverse { len - 1 - step } else { step };
            let at = i * inner + first;
            let row = x[at..at + n].iter().zip(&mut out[at..at + n]);
            for (so_far, (x, y)) in so_far.iter_mut().zip(row) {
                let with = combine(*so_far, *x);
                *y = T::result(if op.exclusive { *so_far } else { with });
                *so_far = with;
            }
        }
    }
}
