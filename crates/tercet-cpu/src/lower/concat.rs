//! `Concat`: the operands, of any strides, copied line by line to their places.

use tercet_ir::{Graph, Node, Op};

use crate::args::{Args, View};
use crate::lower::elem::{AxisView, parts};
use crate::lower::{Accept, Lowered, copy_view};
use tercet_ir::layout::Layout;

/// Bytes of a parallel task, at least.
const TASK_BYTES: usize = 1 << 16;

pub(crate) fn lower(_: &Graph, node: &Node) -> Lowered {
    let Op::Concat(op) = &node.op else {
        unreachable!("invariant: the table gives this row `Concat` only")
    };
    let axis = op.axis;
    Lowered {
        accepts: vec![Accept::Any; node.inputs.len()],
        ..Lowered::new(node.inputs.len(), move |args: &mut Args<'_>| {
            run(axis, args);
            Ok(())
        })
    }
}

fn run(axis: usize, args: &mut Args<'_>) {
    let out = &mut args.outs[0];
    let view = AxisView::of(out.shape(), axis);
    let size = out.dtype.size_bytes();
    let line = view.len * view.inner * size;
    if line == 0 {
        return;
    }
    let (ins, parallel) = (&args.ins, args.parallel);
    let bytes_of = |x: &View<'_>| x.shape()[axis] * view.inner * size;
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
                        &View {
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

fn copy_whole(x: &View<'_>, to: &mut [u8], parallel: bool) {
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

/// The part of a layout at a row-major index of the axes before `axis`.
fn line_of(layout: &Layout, axis: usize, mut index: usize) -> Layout {
    let (shape, strides) = (layout.shape(), layout.strides());
    let mut offset = layout.offset as isize;
    for a in (0..axis).rev() {
        offset += (index % shape[a]) as isize * strides[a];
        index /= shape[a];
    }
    Layout::new(&shape[axis..], &strides[axis..], offset as usize)
}
