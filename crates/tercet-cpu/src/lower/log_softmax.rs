//! `LogSoftmax` of F32, F16 and BF16: three passes over a line in blocks that stay in cache.
//!
//! Along the last axis a line is read block by block; along another one, a tile of neighbouring
//! lines is read row by row. The order of the sums depends on the shape alone.

use tercet_ir::{Graph, Node, Op, Support};

use crate::args::Args;
use crate::kernels::columns::{Column, fold_all, fold_row};
use crate::kernels::{SimdLevel, rows, vmath};
use crate::lower::Lowered;
use crate::lower::elem::{AxisView, BUFFER, REALS, Real, for_real, native_for, parts};
use tercet_ir::layout::Layout;

/// Neighbouring lines that are worked on together.
const TILE: usize = 256;
/// Elements of a parallel task, at least.
const TASK: usize = 1 << 14;

pub(crate) fn supports(graph: &Graph, node: &Node) -> Support {
    native_for(REALS, graph.ty(node.inputs[0]).dtype)
}

pub(crate) fn lower(graph: &Graph, node: &Node) -> Lowered {
    let Op::LogSoftmax(op) = &node.op else {
        unreachable!("invariant: the table gives this row `LogSoftmax` only")
    };
    let run = for_real!(graph.ty(node.inputs[0]).dtype, run);
    let axis = op.axis;
    let level = SimdLevel::detect();
    Lowered {
        work: |layouts| layouts.iter().map(Layout::numel).max().unwrap_or(0) * 8,
        ..Lowered::new(1, move |args: &mut Args<'_>| {
            let view = AxisView::of(args.ins[0].shape(), axis);
            run(level, view, args);
            Ok(())
        })
    }
}

fn run<T: Real>(level: SimdLevel, view: AxisView, args: &mut Args<'_>) {
    let AxisView { outer, len, inner } = view;
    let block = len * inner;
    if outer * block == 0 {
        return;
    }
    let x: &[T] = args.ins[0].dense();
    let out = args.outs[0].as_mut::<T>();
    let blocks = TASK.div_ceil(block);
    parts(args.parallel, out, blocks * block, |i, out| {
        let x = &x[i * blocks * block..][..out.len()];
        for (x, out) in x.chunks_exact(block).zip(out.chunks_exact_mut(block)) {
            if inner == 1 {
                line(level, x, out);
            } else {
                columns(level, inner, x, out);
            }
        }
    });
}

fn line<T: Real>(level: SimdLevel, x: &[T], out: &mut [T]) {
    let (mut wide, mut y, mut e) = ([0.0; BUFFER], [0.0; BUFFER], [0.0; BUFFER]);
    let mut max = f32::NEG_INFINITY;
    for x in x.chunks(BUFFER) {
        let most = fold_all(level, Column::Max, T::widen(level, x, &mut wide));
        max = if most.is_nan() || most > max {
            most
        } else {
            max
        };
        if max.is_nan() {
            break;
        }
    }
    if max == f32::NEG_INFINITY {
        y.fill(max);
        out.chunks_mut(BUFFER)
            .for_each(|out| T::narrow(level, &y[..out.len()], out));
        return;
    }
    let mut sum = 0f64;
    for x in x.chunks(BUFFER) {
        let x = T::widen(level, x, &mut wide);
        let (y, e) = (&mut y[..x.len()], &mut e[..x.len()]);
        y.iter_mut().zip(x).for_each(|(y, x)| *y = x - max);
        vmath::exp(level, y, e);
        sum += f64::from(rows::sum(level, e));
    }
    let log = sum.ln() as f32;
    for (x, out) in x.chunks(BUFFER).zip(out.chunks_mut(BUFFER)) {
        let x = T::widen(level, x, &mut wide);
        let y = &mut y[..x.len()];
        y.iter_mut().zip(x).for_each(|(y, x)| *y = (x - max) - log);
        T::narrow(level, y, out);
    }
}

/// The lines of one outer index, whose elements are `inner` apart.
fn columns<T: Real>(level: SimdLevel, inner: usize, x: &[T], out: &mut [T]) {
    let len = x.len() / inner;
    let (mut wide, mut y, mut e) = ([0.0; TILE], [0.0; TILE], [0.0; TILE]);
    for first in (0..inner).step_by(TILE) {
        let n = TILE.min(inner - first);
        let (y, e) = (&mut y[..n], &mut e[..n]);
        let row = |i: usize| &x[i * inner + first..][..n];
        let (mut max, mut sum) = ([f32::NEG_INFINITY; TILE], [0f64; TILE]);
        for i in 0..len {
            fold_row(
                level,
                Column::Max,
                &mut max[..n],
                T::widen(level, row(i), &mut wide),
            );
        }
        for i in 0..len {
            let x = T::widen(level, row(i), &mut wide);
            y.iter_mut()
                .zip(x)
                .zip(&max)
                .for_each(|((y, x), m)| *y = x - m);
            vmath::exp(level, y, e);
            sum.iter_mut()
                .zip(&*e)
                .for_each(|(s, e)| *s += f64::from(*e));
        }
        for i in 0..len {
            let x = T::widen(level, row(i), &mut wide);
            let known = max.iter().zip(&sum);
            for ((y, x), (max, sum)) in y.iter_mut().zip(x).zip(known) {
                *y = match *max == f32::NEG_INFINITY {
                    true => *max,
                    false => (x - max) - sum.ln() as f32,
                };
            }
            T::narrow(level, y, &mut out[i * inner + first..][..n]);
        }
    }
}
