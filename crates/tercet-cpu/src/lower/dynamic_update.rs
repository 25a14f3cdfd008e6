//! `DynamicUpdateSlice` for every dtype. For example, a KV cache is updated in place.

use tercet_ir::{EvalError, Graph, MAX_RANK, Node, OpKind, next_index};

use crate::args::{KernelArgs, KernelView};
use crate::lower::copy::copy_view;
use crate::lower::{AcceptedLayout, CpuKernel, KernelRunFn, LoweredNode, always, indices, kernel};
use tercet_ir::layout::Layout;

/// The kernels of this file.
pub(super) const KERNELS: &[CpuKernel] = &[kernel(
    "dynamic_update_slice",
    OpKind::DynamicUpdateSlice,
    always,
    lower,
)];

/// Start index of a window, clamped so that the window fits.
fn window(
    starts: &KernelView<'_>,
    shape: &[usize],
    window: &[usize],
) -> Result<[usize; MAX_RANK], EvalError> {
    let mut at = [0; MAX_RANK];
    for (axis, start) in indices(starts).enumerate() {
        let (n, w) = (shape[axis], window[axis]);
        let Some(last) = n.checked_sub(w) else {
            let reason = format!("a window of {w} does not fit axis {axis} of size {n}");
            return Err(EvalError::Data(reason));
        };
        let start = if start < 0 {
            start.saturating_add(n as i64)
        } else {
            start
        };
        at[axis] = start.clamp(0, last as i64) as usize;
    }
    Ok(at)
}

/// Layout of the window of shape `sizes` at index `at` inside a tensor.
fn inside(layout: &Layout, at: &[usize], sizes: &[usize]) -> Layout {
    let offset: isize = at
        .iter()
        .zip(layout.strides())
        .map(|(&i, s)| i as isize * s)
        .sum();
    let offset = layout.offset as isize + offset;
    Layout::new(sizes, layout.strides(), offset.max(0) as usize)
}

/// Bytes in scratch memory before the saved window, which store the position of the window.
const HEADER_BYTES: usize = 8 * MAX_RANK;

/// Lowers `DynamicUpdateSlice`. The kernel writes the operand's own memory if that is a state or
/// has no later reader. Before it overwrites the window of a state, the kernel saves the window's
/// old contents, so that a failed run can restore them.
pub(crate) fn lower(_: &Graph, node: &Node) -> LoweredNode {
    let run = |args: &mut KernelArgs<'_>| {
        let (x, update) = (args.ins[0], args.ins[1]);
        let at = window(&args.ins[2], x.shape(), update.shape())?;
        let at = &at[..x.shape().len()];
        let out = &mut args.outs[0];
        let size = out.dtype.size_bytes();
        let layout = inside(out.layout, at, update.shape());
        if x.root.is_empty() {
            let (header, saved) = args.scratch.split_at_mut(HEADER_BYTES);
            let place = KernelView {
                root: out.bytes,
                within: 0,
                dtype: out.dtype,
                layout: &layout,
            };
            copy_view(&place, &mut saved[..layout.numel() * size], false);
            for (slot, &at) in header.chunks_exact_mut(8).zip(at) {
                slot.copy_from_slice(&(at as u64).to_le_bytes());
            }
        } else {
            copy_view(&x, out.bytes, args.parallel);
        }
        write_window(&update, out.bytes, &layout);
        Ok(())
    };
    let undo: KernelRunFn = Box::new(|args| {
        let update = args.ins[1];
        let out = &mut args.outs[0];
        let (header, saved) = args.scratch.split_at(HEADER_BYTES);
        let mut at = [0; MAX_RANK];
        for (at, slot) in at.iter_mut().zip(header.chunks_exact(8)) {
            *at = u64::from_le_bytes(slot.try_into().unwrap_or_default()) as usize;
        }
        let layout = inside(out.layout, &at[..update.shape().len()], update.shape());
        let dense = Layout::dense(update.shape());
        let saved = KernelView {
            root: saved,
            within: 0,
            dtype: out.dtype,
            layout: &dense,
        };
        write_window(&saved, out.bytes, &layout);
        Ok(())
    });
    let size = node.outputs[0].dtype.size_bytes();
    LoweredNode {
        accepts: vec![
            AcceptedLayout::Any,
            AcceptedLayout::Any,
            AcceptedLayout::Dense,
        ],
        fallible: true,
        in_place: vec![0],
        scratch: Some(Box::new(move |layouts, _| {
            HEADER_BYTES + layouts[1].numel() * size
        })),
        work: |layouts| layouts[1].numel(),
        undo: Some(undo),
        ..LoweredNode::new(3, run)
    }
}

/// Writes a view into a window of a dense tensor, row by row.
fn write_window(from: &KernelView<'_>, to: &mut [u8], window: &Layout) {
    let shape = window.shape();
    if window.numel() == 0 {
        return;
    }
    let size = from.dtype.size_bytes();
    // Merge trailing axes into the longest run that is dense in both the window and the tensor.
    let mut axes = shape.len();
    let mut run = 1;
    while axes > 0 {
        let (n, axis) = (shape[axes - 1], axes - 1);
        let dense = |l: &Layout| n == 1 || l.strides()[axis] == run as isize;
        if !dense(window) || !dense(from.layout) {
            break;
        }
        run *= n;
        axes -= 1;
    }
    let mut index = [0; MAX_RANK];
    loop {
        let place = |l: &Layout| -> usize {
            let outer = index[..axes].iter().zip(l.strides());
            let at: isize = outer.map(|(&i, s)| i as isize * s).sum();
            (l.offset as isize + at) as usize * size
        };
        let (source, target) = (place(from.layout), place(window));
        to[target..target + run * size].copy_from_slice(&from.root[source..source + run * size]);
        if !next_index(&mut index[..axes], &shape[..axes]) {
            return;
        }
    }
}
