//! `Pool`: processes rows of windows, one tap of all windows of a row at each pass.
//!
//! Floats are pooled in f32; sums and products over more taps than [`MIN_TAPS_FOR_F64_SUMS`] use
//! f64. Integers wrap.

use tercet_ir::ops::{Op, Pool, PoolFn};
use tercet_ir::{DType, Element, Graph, Node, Support};

use crate::args::KernelArgs;
use crate::kernels::conv::ConvWindowAxes;
use crate::lower::LoweredNode;
use crate::lower::conv::ConvWindowParams;
use crate::lower::elem::{native_for, parts};

/// Minimum elements of a parallel task.
const TASK: usize = 1 << 13;
/// Number of taps from which f32 sums lose accuracy and f64 is used.
const MIN_TAPS_FOR_F64_SUMS: usize = 64;

/// Every dtype except narrow floats, which are widened first.
const DTYPES: &[DType] = &[
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::F64,
    DType::I32,
    DType::U32,
    DType::I64,
    DType::I8,
    DType::U8,
];

pub(crate) fn supports(graph: &Graph, node: &Node) -> Support {
    native_for(DTYPES, graph.ty(node.inputs[0]).dtype)
}

pub(crate) fn lower(graph: &Graph, node: &Node) -> LoweredNode {
    let Op::Pool(op) = &node.op else {
        unreachable!("invariant: the kernel table maps only one operator to this kernel")
    };
    let (op, frame) = (op.clone(), ConvWindowParams::new(&op.window()));
    let run = match graph.ty(node.inputs[0]).dtype {
        DType::F64 => run::<f64>,
        DType::I32 => run::<i32>,
        DType::U32 => run::<u32>,
        DType::I64 => run::<i64>,
        DType::I8 => run::<i8>,
        DType::U8 => run::<u8>,
        DType::F32 | DType::F16 | DType::BF16 | DType::Bool => run::<f32>,
    };
    LoweredNode {
        work: |layouts| {
            let numel = layouts.iter().map(tercet_ir::layout::Layout::numel);
            4 * numel.max().unwrap_or(0)
        },
        ..LoweredNode::new(1, move |args: &mut KernelArgs<'_>| {
            run(&op, &frame, args);
            Ok(())
        })
    }
}

/// Element type that a pool computes with.
trait PoolElem: Element {
    const LOWEST: Self;
    const GREATEST: Self;
    const ZERO: Self;
    const ONE: Self;
    fn greater(self, other: Self) -> Self;
    fn lesser(self, other: Self) -> Self;
    fn plus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    /// Divides a sum by a count of elements; never called for integers.
    fn over(self, count: usize) -> Self;
    fn to_f64(self) -> f64;
    fn from_f64(x: f64) -> Self;
    /// True if sums of this type round.
    const ROUGH: bool;
}

macro_rules! floats {
    ($($t:ty, $rough:literal);*) => {$(impl PoolElem for $t {
        const LOWEST: $t = <$t>::NEG_INFINITY;
        const GREATEST: $t = <$t>::INFINITY;
        const ZERO: $t = 0.0;
        const ONE: $t = 1.0;
        const ROUGH: bool = $rough;
        #[inline(always)]
        fn greater(self, other: $t) -> $t {
            if self.is_nan() || self >= other { self } else { other }
        }
        #[inline(always)]
        fn lesser(self, other: $t) -> $t {
            if self.is_nan() || self <= other { self } else { other }
        }
        #[inline(always)]
        fn plus(self, other: $t) -> $t { self + other }
        #[inline(always)]
        fn times(self, other: $t) -> $t { self * other }
        fn over(self, count: usize) -> $t { self / count as $t }
        fn to_f64(self) -> f64 { f64::from(self) }
        fn from_f64(x: f64) -> $t { x as $t }
    })*};
}
floats!(f32, true; f64, false);

macro_rules! ints {
    ($($t:ty),*) => {$(impl PoolElem for $t {
        const LOWEST: $t = <$t>::MIN;
        const GREATEST: $t = <$t>::MAX;
        const ZERO: $t = 0;
        const ONE: $t = 1;
        const ROUGH: bool = false;
        #[inline(always)]
        fn greater(self, other: $t) -> $t { self.max(other) }
        #[inline(always)]
        fn lesser(self, other: $t) -> $t { self.min(other) }
        #[inline(always)]
        fn plus(self, other: $t) -> $t { self.wrapping_add(other) }
        #[inline(always)]
        fn times(self, other: $t) -> $t { self.wrapping_mul(other) }
        fn over(self, _: usize) -> $t { self }
        fn to_f64(self) -> f64 { self as f64 }
        fn from_f64(x: f64) -> $t { x as $t }
    })*};
}
ints!(i32, u32, i64, i8, u8);

fn run<T: PoolElem>(op: &Pool, frame: &ConvWindowParams, args: &mut KernelArgs<'_>) {
    let (x, out) = (args.ins[0], &mut args.outs[0]);
    let w = frame.windows(&x.shape()[2..], &op.kernel, &out.shape()[2..]);
    let (count, plane) = (w.count(), w.plane());
    if out.layout.numel() == 0 {
        return;
    }
    let x: &[T] = x.dense();
    let planes = TASK.div_ceil(count * w.taps().min(64));
    parts(
        args.parallel,
        out.as_mut(),
        planes * count,
        |i, y: &mut [T]| {
            for (j, y) in y.chunks_exact_mut(count).enumerate() {
                let x = &x[(i * planes + j) * plane..][..plane];
                for (row, y) in y.chunks_exact_mut(w.out[2]).enumerate() {
                    pool_row(op, frame, &w, x, row, y);
                }
            }
        },
    );
}

/// Computes the windows of one row of a channel.
fn pool_row<T: PoolElem>(
    op: &Pool,
    frame: &ConvWindowParams,
    w: &ConvWindowAxes,
    x: &[T],
    row: usize,
    y: &mut [T],
) {
    match op.f {
        PoolFn::Max => extreme(w, x, row, y, T::LOWEST, T::greater),
        PoolFn::Min => extreme(w, x, row, y, T::GREATEST, T::lesser),
        PoolFn::Sum | PoolFn::Mean if T::ROUGH && w.taps() > MIN_TAPS_FOR_F64_SUMS => {
            wide_fold(w, x, row, y, 0.0, |sum, x| sum + x)
        }
        PoolFn::Prod if T::ROUGH && w.taps() > MIN_TAPS_FOR_F64_SUMS => {
            wide_fold(w, x, row, y, 1.0, |product, x| product * x)
        }
        PoolFn::Sum | PoolFn::Mean => fold(w, x, row, y, T::ZERO, T::plus),
        PoolFn::Prod => fold(w, x, row, y, T::ONE, T::times),
    }
    if op.f == PoolFn::Mean {
        for (i, y) in y.iter_mut().enumerate() {
            let at = [row / w.out[1], row % w.out[1], i];
            let taps = (0..3).map(|axis| taps_of(op, frame, w, axis, at[axis]));
            *y = y.over(taps.product());
        }
    }
}

/// Pools one row of windows by maximum or minimum. First folds the rows of x that the windows cover
/// into one padded row, then folds neighbours of that row.
#[inline(always)]
fn extreme<T: PoolElem>(
    w: &ConvWindowAxes,
    x: &[T],
    row: usize,
    y: &mut [T],
    start: T,
    f: impl Fn(T, T) -> T,
) {
    /// Elements of the buffer.
    const SPAN: usize = 512;
    let (stride, dilation, pad) = (w.stride[2], w.dilation[2], w.pad[2]);
    let extent = w.kernel[2].saturating_sub(1) * dilation + 1;
    if extent > SPAN / 2 {
        return fold(w, x, row, y, start, f);
    }
    let most = (SPAN - extent) / stride + 1;
    for (i, y) in y.chunks_mut(most).enumerate() {
        // Position in the padded row of the first element that these windows read.
        let first = i * most * stride;
        let span = (y.len() - 1) * stride + extent;
        let before = pad.saturating_sub(first).min(span);
        let at = (first + before).saturating_sub(pad).min(w.sizes[2]);
        let count = (w.sizes[2] - at).min(span - before);
        let mut folded = [start; SPAN];
        let inside = &mut folded[before..before + count];
        for t in (0..w.taps()).step_by(w.kernel[2].max(1)) {
            if let Some(from) = w.row(x, row, w.tap(t)) {
                let from = &from[at..at + count];
                inside
                    .iter_mut()
                    .zip(from)
                    .for_each(|(y, x)| *y = f(*y, *x));
            }
        }
        y.fill(start);
        for from in (0..w.kernel[2]).map(|tap| &folded[tap * dilation..]) {
            match stride {
                1 => y.iter_mut().zip(from).for_each(|(y, x)| *y = f(*y, *x)),
                // A constant stride lets the compiler vectorize the loop.
                2 => {
                    let (pairs, rest) = from.as_chunks::<2>();
                    let last = rest.first().map(|x| [*x; 2]);
                    let pairs = pairs.iter().copied().chain(last);
                    y.iter_mut()
                        .zip(pairs)
                        .for_each(|(y, [x, _])| *y = f(*y, x));
                }
                stride => {
                    let from = from.iter().step_by(stride);
                    y.iter_mut().zip(from).for_each(|(y, x)| *y = f(*y, *x));
                }
            }
        }
    }
}

#[inline(always)]
fn fold<T: PoolElem>(
    w: &ConvWindowAxes,
    x: &[T],
    row: usize,
    y: &mut [T],
    start: T,
    f: impl Fn(T, T) -> T,
) {
    y.fill(start);
    let width = y.len();
    for t in 0..w.taps() {
        let tap = w.tap(t);
        let Some(from) = w.row(x, row, tap) else {
            continue;
        };
        let (inside, first) = w.inside(tap[2], 0..width);
        if inside.is_empty() {
            continue;
        }
        let (y, from) = (&mut y[inside], &from[first..]);
        match w.stride[2] {
            1 => y.iter_mut().zip(from).for_each(|(y, x)| *y = f(*y, *x)),
            stride => {
                let from = from.iter().step_by(stride);
                y.iter_mut().zip(from).for_each(|(y, x)| *y = f(*y, *x));
            }
        }
    }
}

/// Folds many taps in f64, one window after the other.
fn wide_fold<T: PoolElem>(
    w: &ConvWindowAxes,
    x: &[T],
    row: usize,
    y: &mut [T],
    start: f64,
    f: impl Fn(f64, f64) -> f64,
) {
    for (i, y) in y.iter_mut().enumerate() {
        let mut all = start;
        for t in 0..w.taps() {
            let tap = w.tap(t);
            let Some(from) = w.row(x, row, tap) else {
                continue;
            };
            let (inside, first) = w.inside(tap[2], i..i + 1);
            if !inside.is_empty() {
                all = f(all, from[first].to_f64());
            }
        }
        *y = T::from_f64(all);
    }
}

/// Number of taps of a window along an axis by which the sum is divided for the mean.
pub(super) fn taps_of(
    op: &Pool,
    frame: &ConvWindowParams,
    w: &ConvWindowAxes,
    axis: usize,
    out: usize,
) -> usize {
    let after = frame.pad_after[axis];
    let (low, high) = match op.count_include_pad {
        true => (0, w.pad[axis] + w.sizes[axis] + after),
        false => (w.pad[axis], w.pad[axis] + w.sizes[axis]),
    };
    let places = (0..w.kernel[axis]).map(|t| out * w.stride[axis] + t * w.dilation[axis]);
    places.filter(|at| (low..high).contains(at)).count()
}
