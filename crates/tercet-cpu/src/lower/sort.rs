//! `Sort`: sorts each line along the axis by the same keys as `TopK`.

use tercet_ir::{Graph, Node, Op};

use crate::args::KernelArgs;
use crate::lower::LoweredNode;
use crate::lower::elem::for_element;
use crate::lower::top_k::{TopKOrder, TopKParams, key_bytes, run};

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
