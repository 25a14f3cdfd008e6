//! `DynamicSlice`: a strided copy whose start offset is an operand.

use tercet_ir::{DType, EvalError, Graph, Node, Op, OpKind};

use crate::args::{KernelArgs, KernelView};
use crate::lower::reference_eval::evaluate;
use crate::lower::{AcceptedLayout, CpuKernel, LoweredNode, always, copy_view, kernel};
use tercet_ir::layout::Layout;

/// The kernels of this file.
pub(super) const KERNELS: &[CpuKernel] =
    &[kernel("dynamic_slice", OpKind::DynamicSlice, always, lower)];

pub(crate) fn lower(_: &Graph, node: &Node) -> LoweredNode {
    let op = node.op.clone();
    LoweredNode {
        accepts: vec![AcceptedLayout::Any, AcceptedLayout::Dense],
        fallible: true,
        work: |layouts| layouts.last().map_or(0, Layout::numel),
        ..LoweredNode::new(2, move |args: &mut KernelArgs<'_>| run(&op, args))
    }
}

fn run(op: &Op, args: &mut KernelArgs<'_>) -> Result<(), EvalError> {
    let (x, starts) = (args.ins[0], args.ins[1]);
    let sizes = args.outs[0].layout.shape();
    let fits = |(n, size): (&usize, &usize)| size <= n;
    if !x.shape().iter().zip(sizes).all(fits) {
        return evaluate(op, args);
    }
    let mut offset = x.layout.offset as isize;
    if !x.shape().is_empty() {
        for (axis, (&n, &size)) in x.shape().iter().zip(sizes).enumerate() {
            // Start indices are I32 or I64.
            let start = match starts.dtype == DType::I64 {
                true => starts.dense::<i64>()[axis],
                false => i64::from(starts.dense::<i32>()[axis]),
            };
            let start = match start < 0 {
                true => start.saturating_add(n as i64),
                false => start,
            };
            let start = start.clamp(0, (n - size) as i64);
            offset += start as isize * x.layout.strides()[axis];
        }
    }
    let layout = Layout::new(sizes, x.layout.strides(), offset as usize);
    copy_view(
        &KernelView {
            layout: &layout,
            ..x
        },
        args.outs[0].bytes,
        args.parallel,
    );
    Ok(())
}
