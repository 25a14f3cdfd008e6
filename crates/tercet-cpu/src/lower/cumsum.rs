//! `CumSum`: cumulative sums, products, maxima and minima. Floats accumulate in f64; integers wrap.
//!
//! One thread processes a line in order. Lines along the last axis are distributed over threads.
//! Along another axis, a tile of adjacent lines is processed together.

use half::{bf16, f16};
use tercet_ir::ops::{CumSum, ScanFn};
use tercet_ir::{DType, Element, Graph, Node, Op, Support, scalar};

use crate::args::KernelArgs;
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
    let run = for_element!(graph.ty(node.inputs[0]).dtype, run);
    LoweredNode::new(1, move |args: &mut KernelArgs<'_>| {
        run(&op, args);
        Ok(())
    })
}

/// Element type with its accumulator.
pub(crate) trait CumSumElem: Element {
    /// Accumulator type: `f64` for floats, the same type for integers.
    type Wide: Copy;

    /// Identity element of the function.
    fn identity(f: ScanFn) -> Self::Wide;
    /// Combines the accumulator with one more element.
    fn combine(f: ScanFn, so_far: Self::Wide, x: Self) -> Self::Wide;
    /// Converts an accumulator to the element type, rounding once.
    fn result(so_far: Self::Wide) -> Self;
}

macro_rules! float_scans {
    ($($t:ty: $from:expr, $into:expr);* $(;)?) => {$(impl CumSumElem for $t {
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
    })*};
}
float_scans! {
    f32: f64::from, |x| x as f32;
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
int_scans!(i32, u32, i64, i8, u8);

fn run<T: CumSumElem>(op: &CumSum, args: &mut KernelArgs<'_>) {
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
            for (x, out) in x.chunks_exact(block).zip(out.chunks_exact_mut(block)) {
                match inner {
                    1 => lines::<T, 1>(op, inner, x, out),
                    _ => lines::<T, TILE>(op, inner, x, out),
                }
            }
        },
    );
}

/// Processes the lines of one outer index. The elements of a line have stride `inner`; `N` lines
/// are processed together.
fn lines<T: CumSumElem, const N: usize>(op: &CumSum, inner: usize, x: &[T], out: &mut [T]) {
    let CumSum {
        axis: _,
        f,
        exclusive,
        reverse,
    } = *op;
    let len = x.len() / inner;
    for first in (0..inner).step_by(N) {
        let n = N.min(inner - first);
        let mut so_far = [T::identity(f); N];
        for step in 0..len {
            let i = if reverse { len - 1 - step } else { step };
            let at = i * inner + first;
            let row = x[at..at + n].iter().zip(&mut out[at..at + n]);
            for (so_far, (x, y)) in so_far.iter_mut().zip(row) {
                let with = T::combine(f, *so_far, *x);
                *y = T::result(if exclusive { *so_far } else { with });
                *so_far = with;
            }
        }
    }
}
