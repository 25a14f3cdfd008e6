//! `Sort`: sorts each line along the axis by the same keys as `TopK`. `SearchSorted`: binary search
//! by these keys.

use tercet_ir::{Graph, Node, Op, OpKind};

use crate::args::KernelArgs;
use crate::lower::elem::{for_element, parts};
use crate::lower::rank::SortKey;
use crate::lower::top_k::{TopKOrder, TopKParams, key_bytes, run};
use crate::lower::{CpuKernel, LoweredNode, always, kernel};

/// The kernels of this file.
pub(super) const KERNELS: &[CpuKernel] = &[
    kernel("sort", OpKind::Sort, always, lower),
    kernel("search_sorted", OpKind::SearchSorted, always, lower_search),
];

/// Minimum number of values that a parallel task searches for.
const TASK: usize = 1 << 12;

pub(crate) fn lower(graph: &Graph, node: &Node) -> LoweredNode {
    let Op::Sort(op) = &node.op else {
        unreachable!("invariant: the kernel table maps only `Sort` to this row")
    };
    let axis = op.axis;
    let order = match op.descending {
        true => TopKOrder::Greatest,
        false => TopKOrder::Ascending,
    };
    let dtype = graph.ty(node.inputs[0]).dtype;
    let run = for_element!(dtype, run);
    LoweredNode {
        scratch: Some(Box::new(move |layouts, threads| {
            layouts[0].shape()[axis] * key_bytes(dtype) * threads.max(1)
        })),
        work: |layouts| layouts[0].numel() * 8,
        ..LoweredNode::new(1, move |args: &mut KernelArgs<'_>| {
            let k = args.ins[0].shape()[axis];
            run(TopKParams { k, axis, order }, args)
        })
    }
}

fn lower_search(graph: &Graph, node: &Node) -> LoweredNode {
    let Op::SearchSorted(op) = &node.op else {
        unreachable!("invariant: the kernel table maps only `SearchSorted` to this row")
    };
    let right = op.right;
    let search = for_element!(graph.ty(node.inputs[0]).dtype, search);
    LoweredNode {
        work: |layouts| layouts[1].numel() * 16,
        ..LoweredNode::new(2, move |args: &mut KernelArgs<'_>| {
            search(right, args);
            Ok(())
        })
    }
}

fn search<T: SortKey>(right: bool, args: &mut KernelArgs<'_>) {
    let (rows, values): (&[T], &[T]) = (args.ins[0].dense(), args.ins[1].dense());
    let (shape, values_shape) = (args.ins[0].shape(), args.ins[1].shape());
    let len = shape.last().copied().unwrap_or(0);
    // A single row serves all values.
    let (width, step) = match shape.len() {
        1 => (values.len(), 0),
        _ => (values_shape.last().copied().unwrap_or(1), len),
    };
    let out = args.outs[0].as_mut::<i32>();
    parts(args.parallel, out, TASK, |part, out| {
        for (i, y) in (part * TASK..).zip(out) {
            let row = &rows[i / width * step..][..len];
            // Keys descend along an ascending row, so that NaN has the lowest key.
            *y = place_in_row(row, values[i].rank(true), right) as i32;
        }
    });
}

/// The number of elements of a row before the place of a key.
fn place_in_row<T: SortKey>(row: &[T], key: u64, right: bool) -> usize {
    let (mut low, mut high) = (0, row.len());
    while low < high {
        let middle = low + (high - low) / 2;
        let own = row[middle].rank(true);
        match own > key || (right && own == key) {
            true => low = middle + 1,
            false => high = middle,
        }
    }
    low
}
