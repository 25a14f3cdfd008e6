//! `Sort` of elements of up to 4 bytes: all of each line, by the keys of `TopK`.

use tercet_ir::{Graph, Node, Op};

use crate::args::Args;
use crate::lower::Lowered;
use crate::lower::elem::for_element;
use crate::lower::top_k::{Order, Top, run};

pub(crate) fn lower(graph: &Graph, node: &Node) -> Lowered {
    let Op::Sort(op) = &node.op else {
        unreachable!("invariant: the table gives this row `Sort` only")
    };
    let axis = op.axis;
    let order = match op.descending {
        true => Order::Greatest,
        false => Order::Ascending,
    };
    let run = for_element!(graph.ty(node.inputs[0]).dtype, run);
    Lowered {
        scratch: Some(Box::new(move |layouts, threads| {
            layouts[0].shape()[axis] * size_of::<u64>() * threads.max(1)
        })),
        work: |layouts| layouts[0].numel() * 8,
        ..Lowered::new(1, move |args: &mut Args<'_>| {
            let k = args.ins[0].shape()[axis];
            run(Top { k, axis, order }, args)
        })
    }
}
