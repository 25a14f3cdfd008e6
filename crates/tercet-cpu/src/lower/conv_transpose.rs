//! `ConvTranspose` with a stride. Without one it is a convolution, and without overlapping windows a 1x1 convolution:
//! the rules of the IR compute both.

use tercet_ir::ops::{ConvTranspose, Op};
use tercet_ir::{Graph, Node, OpKind, Support};

use crate::args::KernelArgs;
use crate::kernels::conv_transpose::{TransposedConvShape, conv_transpose};
use crate::kernels::{KernelThreads, SimdLevel};
use crate::lower::conv::three;
use crate::lower::elem::{REALS, native_for};
use crate::lower::{CpuKernel, LoweredNode, floats_mut, missing, through_f32};

/// The kernels of this file.
pub(super) const KERNELS: &[CpuKernel] = &[through_f32(
    "conv_transpose",
    OpKind::ConvTranspose,
    supports,
    lower,
)];

pub(crate) fn supports(graph: &Graph, node: &Node) -> Support {
    let Op::ConvTranspose(op) = &node.op else {
        return missing("this kernel computes only `ConvTranspose`");
    };
    let one = |list: &[usize]| list.iter().all(|n| *n == 1);
    if one(&op.stride) {
        return missing("a convolution is faster without a stride");
    }
    let kernel = graph.ty(node.inputs[1]).shape.as_known();
    let kernel = kernel.as_deref().and_then(|w| w.get(2..));
    if op.groups == 1 && one(&op.dilation) && kernel == Some(&*op.stride) {
        return missing("a 1x1 convolution is faster without overlapping windows");
    }
    native_for(REALS, graph.ty(node.inputs[0]).dtype)
}

fn shape_of(op: &ConvTranspose, x: &[usize], w: &[usize], y: &[usize]) -> TransposedConvShape {
    TransposedConvShape {
        batch: x[0],
        groups: op.groups,
        channels: x[1] / op.groups,
        own: w[1],
        sizes: three(&x[2..]),
        kernel: three(&w[2..]),
        out: three(&y[2..]),
        stride: three(&op.stride),
        dilation: three(&op.dilation),
        pad: padding(&op.pad_before),
    }
}

/// The padding on three axes; missing axes have none.
fn padding(pad: &[usize]) -> [usize; 3] {
    let mut all = [0; 3];
    all[3 - pad.len()..].copy_from_slice(pad);
    all
}

pub(crate) fn lower(_: &Graph, node: &Node) -> LoweredNode {
    let Op::ConvTranspose(op) = &node.op else {
        unreachable!("invariant: the kernel table maps only `ConvTranspose` to this row")
    };
    let level = SimdLevel::detect();
    let (op, sized) = (op.clone(), op.clone());
    let run = move |args: &mut KernelArgs<'_>| {
        let (x, w) = (args.ins[0], args.ins[1]);
        let y = &mut args.outs[0];
        let shape = shape_of(&op, x.shape(), w.shape(), y.shape());
        let bias = args.ins.get(2).map(|b| b.dense::<f32>());
        let threads = KernelThreads::parallel(args.parallel);
        let scratch = floats_mut(args.scratch);
        conv_transpose(
            level,
            threads,
            &shape,
            x.dense(),
            w.dense(),
            bias,
            y.as_mut(),
            scratch,
        );
        Ok(())
    };
    LoweredNode {
        scratch: Some(Box::new(move |layouts, threads| {
            let [x, w, .., y] = layouts else { return 0 };
            let shape = shape_of(&sized, x.shape(), w.shape(), y.shape());
            4 * shape.scratch_len(level, threads)
        })),
        work: |layouts| {
            let k: usize = layouts[1].shape()[1..].iter().product();
            layouts[0].numel() * k / 16
        },
        ..LoweredNode::new(node.inputs.len(), run)
    }
}
