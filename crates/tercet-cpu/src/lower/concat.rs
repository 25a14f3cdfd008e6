//! `Concat`: copies operands of any strides line by line into the result.

use tercet_ir::{Graph, Node, Op, OpKind};

use crate::args::{KernelArgs, KernelView};
use crate::lower::elem::{AxisBlocks, parts};
use crate::lower::{AcceptedLayout, CpuKernel, LoweredNode, always, copy_view, kernel};
use tercet_ir::layout::Layout;

/// The kernels of this file.
pub(super) const KERNELS: &[CpuKernel] = &[kernel("concat", OpKind::Concat, always, lower)];

/// Minimum bytes of a parallel task.
const TASK_BYTES: usize = 1 << 16;

pub(crate) fn lower(_: &Graph, node: &Node) -> LoweredNode {
    let Op::Concat(op) = &node.op else {
        unreachable!("invariant: the kernel table maps only `Concat` to this row")
    };
    let axis = op.axis;
    LoweredNode {
        accepts: vec![AcceptedLayout::Any; node.inputs.len()],
        ..LoweredNode::new(node.inputs.len(), move |args: &mut KernelArgs<'_>| {
            run(axis, args);
            Ok(())
        })
    }
}

fn run(axis: usize, args: &mut KernelArgs<'_>) {
    let out = &mut args.outs[0];
    let view = AxisBlocks::new(out.shape(), axis);
    let size = out.dtype.size_bytes();
    let line = view.len * view.inner * size;
    if line == 0 {
        return;
    }
    let (ins, parallel) = (&args.ins, args.parallel);
    let bytes_of = |x: &KernelView<'_>| x.shape()[axis] * view.inner * size;
    if view.outer == 1 {
        let mut rest = &mut *out.bytes;
        for x in ins {
            let (part, tail) = rest.split_at_mut(bytes_of(x));
            copy_whole(x, part, parallel);
            rest = tail;
        }
        return;
    }
    let task = TASK_BYTES.div_ceil(line);
    parts(parallel, out.bytes, task * line, |i, out| {
        let mut at = 0;
        for x in ins {
            let bytes = bytes_of(x);
            if bytes == 0 {
                continue;
            }
            let lines = out
                .chunks_exact_mut(line)
                .map(|line| &mut line[at..at + bytes]);
            if x.layout.is_dense() {
                let from = x.dense_bytes()[i * task * bytes..].chunks_exact(bytes);
                lines
                    .zip(from)
                    .for_each(|(to, from)| to.copy_from_slice(from));
            } else {
                for (j, to) in lines.enumerate() {
                    let layout = line_of(x.layout, axis, i * task + j);
                    copy_view(
                        &KernelView {
                            layout: &layout,
                            ..*x
                        },
                        to,
                        false,
                    );
                }
            }
            at += bytes;
        }
    });
}

fn copy_whole(x: &KernelView<'_>, to: &mut [u8], parallel: bool) {
    if to.is_empty() {
        return;
    }
    if x.layout.is_dense() {
        let from = x.dense_bytes();
        let task = 4 * TASK_BYTES;
        parts(parallel, to, task, |i, to| {
            to.copy_from_slice(&from[i * task..][..to.len()]);
        });
    } else {
        copy_view(x, to, parallel);
    }
}

/// Layout of `axis` and the axes after it, at one row-major index of the axes before `axis`.
fn line_of(layout: &Layout, axis: usize, mut index: usize) -> Layout {
    let (shape, strides) = (layout.shape(), layout.strides());
    let mut offset = layout.offset as isize;
    for a in (0..axis).rev() {
        offset += (index % shape[a]) as isize * strides[a];
        index /= shape[a];
    }
    Layout::new(&shape[axis..], &strides[axis..], offset as usize)
}
