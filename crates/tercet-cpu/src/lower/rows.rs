//! Softmax and norms in f32 along the last axis.

use tercet_ir::{Graph, Node, Op, OpKind, Support};

use crate::args::{KernelArgs, KernelView};
use crate::kernels::parallel::{DisjointChunks, for_each_part};
use crate::kernels::rows::{self, RowNormKind};
use crate::kernels::{KernelThreads, SimdLevel};
use crate::lower::elem::{REALS, native_for, parts};
use crate::lower::{CpuKernel, LoweredNode, missing, through_f32};

/// The kernels of this file.
pub(super) const KERNELS: &[CpuKernel] = &[
    through_f32("rows", OpKind::Softmax, supports, lower_map),
    through_f32("rows", OpKind::LayerNorm, supports, lower_norm),
    through_f32("rows", OpKind::RmsNorm, supports, lower_norm),
    through_f32(
        "rows",
        OpKind::ResidualLayerNorm,
        supports,
        lower_residual_norm,
    ),
    through_f32(
        "rows",
        OpKind::ResidualRmsNorm,
        supports,
        lower_residual_norm,
    ),
];

/// Elements per parallel task.
const TASK: usize = 1 << 14;

/// Supports floats that are computed in f32, along the last axis.
pub(crate) fn supports(graph: &Graph, node: &Node) -> Support {
    let x = graph.ty(node.inputs[0]);
    if !REALS.contains(&x.dtype) {
        return native_for(REALS, x.dtype);
    }
    let last = x.rank().saturating_sub(1);
    let along_last = match &node.op {
        Op::Softmax(o) => o.axis == last,
        Op::LayerNorm(_) | Op::RmsNorm(_) => true,
        Op::ResidualLayerNorm(_) | Op::ResidualRmsNorm(_) => true,
        _ => false,
    };
    if along_last {
        Support::Native
    } else {
        missing("this kernel supports only the last axis")
    }
}

type RowFn = Box<dyn Fn(SimdLevel, &[f32], usize, &mut [f32]) + Send + Sync>;

/// Lowers operators with one operand and a result of the same shape.
pub(crate) fn lower_map(_: &Graph, node: &Node) -> LoweredNode {
    let f: RowFn = match &node.op {
        Op::Softmax(_) => Box::new(rows::softmax),
        _ => unreachable!("invariant: the kernel table maps only one operator to this kernel"),
    };
    let level = SimdLevel::detect();
    let run = move |args: &mut KernelArgs<'_>| {
        let x = args.ins[0];
        let cols = x.shape().last().copied().unwrap_or(1);
        if x.layout.numel() == 0 {
            return Ok(());
        }
        let (x, y): (&[f32], &mut [f32]) = (x.dense(), args.outs[0].as_mut());
        let part = TASK.div_ceil(cols) * cols;
        parts(args.parallel, y, part, |i, y| {
            f(level, &x[i * part..][..y.len()], cols, y);
        });
        Ok(())
    };
    LoweredNode {
        work: |layouts| 4 * layouts[0].numel(),
        ..LoweredNode::new(1, run)
    }
}

/// Lowers `LayerNorm` and `RmsNorm`.
pub(crate) fn lower_norm(_: &Graph, node: &Node) -> LoweredNode {
    let (kind, eps, axes) = match &node.op {
        Op::LayerNorm(o) => (RowNormKind::Layer, o.eps.0, node.outputs[0].rank() - o.axis),
        Op::RmsNorm(o) => (RowNormKind::Rms, o.eps.0, 1),
        _ => unreachable!("invariant: the kernel table maps only two operators to this kernel"),
    };
    let level = SimdLevel::detect();
    let run = move |args: &mut KernelArgs<'_>| {
        let x = args.ins[0];
        let outer = x.shape().len() - axes;
        let cols: usize = x.shape()[outer..].iter().product();
        if x.layout.numel() == 0 {
            return Ok(());
        }
        let gamma: &[f32] = args.ins[1].dense();
        let beta: Option<&[f32]> = args.ins.get(2).map(KernelView::dense);
        let (x, y): (&[f32], &mut [f32]) = (x.dense(), args.outs[0].as_mut());
        let part = TASK.div_ceil(cols) * cols;
        let eps = eps as f32;
        parts(args.parallel, y, part, |i, y| {
            let x = &x[i * part..][..y.len()];
            rows::norm(level, kind, eps, x, gamma, beta, y);
        });
        Ok(())
    };
    LoweredNode {
        work: |layouts| 2 * layouts[0].numel(),
        ..LoweredNode::new(node.inputs.len(), run)
    }
}

/// Lowers `ResidualLayerNorm` and `ResidualRmsNorm`.
pub(crate) fn lower_residual_norm(_: &Graph, node: &Node) -> LoweredNode {
    let (kind, eps, betas) = match &node.op {
        Op::ResidualLayerNorm(o) => (RowNormKind::Layer, o.eps.0, 1),
        Op::ResidualRmsNorm(o) => (RowNormKind::Rms, o.eps.0, 0),
        _ => unreachable!("invariant: the kernel table maps only two operators to this kernel"),
    };
    let level = SimdLevel::detect();
    let run = move |args: &mut KernelArgs<'_>| {
        let cols = args.ins[0].shape().last().copied().unwrap_or(1);
        if args.ins[0].layout.numel() == 0 {
            return Ok(());
        }
        let (x, residual): (&[f32], &[f32]) = (args.ins[0].dense(), args.ins[1].dense());
        let gamma: &[f32] = args.ins[2].dense();
        let beta: Option<&[f32]> = (betas == 1).then(|| args.ins[3].dense());
        let bias: Option<&[f32]> = args.ins.get(3 + betas).map(KernelView::dense);
        let [out, sum] = &mut args.outs[..] else {
            unreachable!("invariant: two results")
        };
        let (out, sum): (&mut [f32], &mut [f32]) = (out.as_mut(), sum.as_mut());
        let eps = eps as f32;
        let part = TASK.div_ceil(cols) * cols;
        let outs = (
            DisjointChunks::new(out, part),
            DisjointChunks::new(sum, part),
        );
        for_each_part(
            KernelThreads::parallel(args.parallel),
            outs,
            |i, (out, sum)| {
                let of = i * part..i * part + out.len();
                let (x, r) = (&x[of.clone()], &residual[of]);
                rows::residual_norm(level, kind, eps, x, r, bias, gamma, beta, out, sum);
            },
        );
        Ok(())
    };
    LoweredNode {
        work: |layouts| 2 * layouts[0].numel(),
        ..LoweredNode::new(node.inputs.len(), run)
    }
}
